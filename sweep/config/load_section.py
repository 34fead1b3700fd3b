"""The load of a study: the section `load` of its file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from sweep.config.mistakes import Mistake, hint, shown
from sweep.config.models import Environment, FixedFlags, Section, Text, Words


def _rates(value: object) -> object:
    """A rate, `auto`, or several rates; None for the ways to write "unlimited"."""
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    if not isinstance(value, (list, tuple)):
        return _rate(value, "a number, inf, auto or a list of numbers")
    rates = tuple(_rate(one, "a number or inf", place) for place, one in enumerate(value))
    if not rates:
        raise Mistake("is empty; give at least one entry")
    for place, rate in enumerate(rates):
        if rate in rates[:place]:
            raise Mistake(f"{'inf' if rate is None else format(rate, 'g')} stands twice", place)
    return rates


def _rate(value: object, wanted: str, *place: int) -> float | None:
    if value is None or value == float("inf"):
        return None
    if isinstance(value, str) and value.strip().lower() in {"inf", "unlimited"}:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value != value:
        raise Mistake(f"needs {wanted}, not {shown(value)}{hint('float_type', value)}", *place)
    if value <= 0:
        raise Mistake(f"must be above 0, not {shown(value)}", *place)
    return float(value)


Rates = Annotated[float | Literal["auto"] | tuple[float | None, ...] | None, BeforeValidator(_rates)]


class LoadSection(Section):
    """The load each server gets."""

    command: Words | None = Field(
        None,
        strict=False,
        min_length=1,
        description="Words that start the load client; default: `vllm bench serve` of the installed vLLM.",
    )
    dataset: Literal["sharegpt", "custom"] = Field(
        "sharegpt",
        description="`sharegpt`: a ShareGPT file; `custom`: your own prompts, one JSON "
        "object a line with `prompt` and, if you like, `output_tokens`.",
    )
    path: Text | None = Field(
        None,
        description="The prompt file; looked for beside the study file, then where the command "
        "is typed. Default: the small generated file that ships with sweep.",
    )
    salvage: bool = Field(False, description="Take the whole conversations of a truncated ShareGPT file.")
    output_tokens: int | None = Field(
        None,
        ge=1,
        description="Output length of every request (`--sharegpt-output-len`); "
        "default: the length of each stored reply.",
    )
    max_prompt_tokens: int | None = Field(
        None,
        ge=4,
        description="Longest prompt taken; default: 1024 for sharegpt, no limit for custom. Above 1024 sweep chooses "
        "the conversations itself, since the load client's own ShareGPT reader drops them.",
    )
    num_prompts: int = Field(200, ge=1, description="Measured requests of a trial, over all its rounds.")
    rounds: int = Field(
        3,
        ge=1,
        description="Runs of the load client on one server that share `num_prompts`: their spread is a trial's noise.",
    )
    held_out_share: float = Field(
        0.3,
        ge=0,
        lt=1,
        description="Share of the prompts (by a hash of their text) that the search never sends: they are kept to "
        "confirm the winner. 0: none.",
    )
    warmup_prompts: int = Field(
        8, ge=0, description="Requests sent before, which are not measured and are not measured prompts."
    )
    request_rate: Rates = Field(
        None,
        description="Mean arrivals per second; `inf` (the default) sends all at once. A list, `[4, 8]`: each rate gets "
        "`rounds` rounds, which take turns and share `num_prompts`, and is judged by itself: see `objective`. `auto`: "
        "`knee_share` of the knee that the calibration finds.",
    )
    calibrate: bool = Field(
        False,
        description="Before the search, launch the baseline once more under rising request rates, find where waiting "
        "begins (the knee), and say where this load lies.",
    )
    knee_share: float = Field(0.8, gt=0, le=2, description="With `request_rate: auto`, the share of the knee.")
    burstiness: float = Field(1.0, ge=0.01, description="1 is Poisson arrivals; lower is burstier.")
    max_concurrency: int | None = Field(
        None, ge=1, description="Most requests in flight; hides waiting time from the latencies."
    )
    seed: int | None = Field(None, ge=0, description="Seed of arrivals and choice of prompts; default: the study's.")
    ignore_eos: bool = Field(
        True,
        description="Generate the full output length whatever the model says: every trial then does the same work.",
    )
    percentiles: tuple[float, ...] = Field(
        (50.0, 95.0, 99.0), strict=False, min_length=1, description="Percentiles stored for each latency."
    )
    startup_timeout_s: float = Field(
        300.0, gt=0, description="Longest wait for the load client to send its first request."
    )
    request_timeout_s: float = Field(
        600.0, gt=0, description="Longest a single request may take before the load is cut."
    )
    min_success_share: float = Field(
        0.99, gt=0, le=1, description="Share of requests that must succeed for a trial to count."
    )
    max_lag_ms: float = Field(
        250.0,
        gt=0,
        description="A round whose p99 of real behind planned sends is above this, or above the median TTFT where that "
        "is less (but 100 ms), was limited by the load client and counts as disturbed.",
    )
    flags: FixedFlags = Field(default_factory=dict, description="Further flags of `vllm bench serve`.")
    env: Environment = Field(default_factory=dict, description="Environment variables of the load client.")

    @property
    def longest_prompt_tokens(self) -> int | None:
        """The limit on prompts; None for none."""
        return 1024 if self.max_prompt_tokens is None and self.dataset == "sharegpt" else self.max_prompt_tokens

    @property
    def rates(self) -> tuple[float | None, ...]:
        """Every request rate, None for all at once; of `auto`, which is not known here, that stands in for it."""
        if isinstance(self.request_rate, tuple):
            return self.request_rate
        return (None if self.request_rate == "auto" else self.request_rate,)

    @model_validator(mode="after")
    def _percentiles(self) -> LoadSection:
        for place, percentile in enumerate(self.percentiles):
            if not 0 < percentile < 100:
                raise Mistake(f"a percentile lies above 0 and below 100, not at {percentile:g}", "percentiles", place)
            if percentile < 1:
                meant = f"{percentile * 100:g}"
                text = f"p{percentile:g} is almost the smallest value; write {meant} for p{meant}"
                raise Mistake(text, "percentiles", place)
        if self.dataset == "custom" and self.path is None:
            raise Mistake("custom needs a path beside it: the file of your prompts", "dataset")
        if self.dataset == "custom" and self.salvage:
            raise Mistake("is for ShareGPT files; each line of a custom file stands for itself", "salvage")
        if self.request_rate == "auto" and not self.calibrate:
            raise Mistake("auto needs calibrate: true beside it, which finds the knee", "request_rate")
        if self.rounds * len(self.rates) > self.num_prompts >= self.rounds:
            text = f"each of {self.rounds} rounds at each of {len(self.rates)} rates needs a prompt of its own"
            raise Mistake(f"{text}, but num_prompts is {self.num_prompts}; raise it", "request_rate")
        if self.rounds > self.num_prompts:
            text = (
                f"each round needs a prompt of its own, but num_prompts is {self.num_prompts}; raise it or lower this"
            )
            raise Mistake(text, "rounds")
        return self
