"""The remaining sections of a study file and the whole of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from sweep.config.agreement import PARALLEL, check_agreement, size_of
from sweep.config.mistakes import Mistake
from sweep.config.models import (
    Choice,
    Environment,
    FixedFlags,
    FlagValue,
    IntRange,
    ModelSection,
    PlainFlags,
    SearchSpaceConfig,
    Section,
    ServeSection,
    StudySection,
    Text,
    Words,
)
from sweep.errors import ConfigError
from sweep.metric_table import parse_metric, request_limits
from sweep.trial import Flag

_LARGEST_WEIGHT = 1e6


def _rate(value: object) -> object:
    """None for the ways to write "unlimited"."""
    if isinstance(value, str) and value.strip().lower() in {"inf", "unlimited"}:
        return None
    return None if value == float("inf") else value


def _known_metrics(value: object) -> object:
    value = {} if value is None else value
    if isinstance(value, dict):
        for name in value:
            try:
                parse_metric(str(name))
            except ConfigError as error:
                raise Mistake(error.message, str(name)) from None
    return value


def _known_names(value: object) -> object:
    value = () if value is None else value
    if isinstance(value, (list, tuple)):
        for place, name in enumerate(value):
            try:
                parse_metric(str(name))
            except ConfigError as error:
                raise Mistake(error.message, place) from None
    return value


Rate = Annotated[Annotated[float, Field(gt=0)] | None, BeforeValidator(_rate)]
MetricMap = Annotated[dict[str, float], BeforeValidator(_known_metrics)]
MetricNames = Annotated[tuple[str, ...], BeforeValidator(_known_names)]


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
        description="Runs of the load client on one server that share `num_prompts`: their spread is a trial's noise. "
        "Each costs a start of the client.",
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
    request_rate: Rate = Field(None, description="Mean arrivals per second; `inf` (the default) sends all at once.")
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

    @model_validator(mode="after")
    def _percentiles(self) -> LoadSection:
        for place, percentile in enumerate(self.percentiles):
            if not 0 < percentile < 100:
                raise Mistake(f"a percentile lies above 0 and below 100, not at {percentile:g}", "percentiles", place)
        if self.dataset == "custom" and self.path is None:
            raise Mistake("custom needs a path beside it: the file of your prompts", "dataset")
        if self.rounds > self.num_prompts:
            text = (
                f"each round needs a prompt of its own, but num_prompts is {self.num_prompts}; raise it or lower this"
            )
            raise Mistake(text, "rounds")
        return self


class ObjectiveSection(Section):
    """What is minimised: metric / baseline, aggregated, so that 1.0 is as good as today's flags."""

    preset: Literal["responsive", "fluent", "steady", "complete", "balanced"] | None = Field(
        None,
        description="Weights by purpose: `responsive` (TTFT), `fluent` (TPOT), `steady` "
        "(ITL tail and spread), `complete` (E2EL), `balanced` (default).",
    )
    weights: MetricMap = Field(
        default_factory=dict,
        description="Metric to weight: `p95_ttft_ms: 0.4`; negative on throughputs, where more is better.",
    )
    slo: MetricMap = Field(
        default_factory=dict, description="Metric to limit: upper for latencies, lower for throughputs."
    )
    aggregate: Literal["mean", "geometric", "worst"] = Field(
        "mean",
        description="How the ratios metric / baseline make one score: weighted `mean`, weighted `geometric` mean, or the "
        "`worst` of them.",
    )
    front: MetricNames = Field(
        (),
        strict=False,
        description="Two or three metrics: the search looks for their Pareto front instead of one best score; weights "
        "still name the winner.",
    )

    @model_validator(mode="after")
    def _one_of(self) -> ObjectiveSection:
        if self.preset is not None and self.weights:
            raise Mistake("give preset or weights, not both", "preset")
        for name, weight in self.weights.items():
            lower = parse_metric(name).lower_is_better
            if abs(weight) > _LARGEST_WEIGHT:
                raise Mistake(f"a weight is beyond {_LARGEST_WEIGHT:g}; weights count in relation", "weights", name)
            if weight == 0 or (weight > 0) is not lower:
                more = "less" if lower else "more"
                wanted = f"must be {'above' if lower else 'below'} zero: {more} of it is better"
                raise Mistake(f"the weight {wanted}", "weights", name)
        for name, limit in self.slo.items():
            if limit <= 0:
                raise Mistake("an SLO limit must be above zero", "slo", name)
        if self.front and not 2 <= len(set(self.front)) == len(self.front) <= 3:
            raise Mistake(f"a front is of two or three different metrics, not {', '.join(self.front)}", "front")
        for place in ("weights", "slo", "front"):
            if "goodput_per_s" in getattr(self, place) and not request_limits(self.slo):
                text = "goodput_per_s needs an SLO on TTFT, TPOT or E2EL beside it: it counts the requests that keep it"
                raise Mistake(text, place)
        return self


class ConfirmSection(Section):
    """What follows the search: its best against the baseline, on fresh servers with prompts it never saw."""

    candidates: int = Field(
        3, ge=0, le=20, description="Configurations of the search that are confirmed; 0 leaves the winner unconfirmed."
    )
    launches: int = Field(3, ge=2, le=50, description="Fresh servers of each and of the baseline, at least.")
    max_launches: int = Field(8, ge=2, le=50, description="And at most, while the intervals are wider than `width`.")
    width: float = Field(
        0.1, gt=0, le=2, description="Enough is measured once the leader's 95 % interval is narrower: 0.1 is 10 %."
    )
    budget_share: float = Field(
        0.25, gt=0, lt=1, description="Share of the time that the search leaves to the confirmation at most."
    )
    drift: bool = Field(
        True, description="Measure the baseline again in the middle and at the end of the search, for what drifts."
    )
    soak: bool = Field(True, description="Put the winner under its worst burst; where it fails, step memory down.")

    @model_validator(mode="after")
    def _possible(self) -> ConfirmSection:
        if self.max_launches < self.launches:
            raise Mistake(f"{self.max_launches} is below launches, {self.launches}", "max_launches")
        return self


class ResourcesSection(Section):
    """What a trial asks of Ray."""

    gpus: int | None = Field(
        None, ge=0, description="Devices of a trial; default: tensor x pipeline x data parallel size."
    )
    cpus: float = Field(1.0, gt=0, description="CPUs of a trial, as Ray counts them.")
    concurrent_trials: int | None = Field(
        None, ge=1, description="Trials at once; default: what the devices allow, and 1 without devices."
    )


class StudyConfig(Section):
    """A whole study file."""

    study: StudySection
    model: ModelSection
    serve: ServeSection = ServeSection()
    search_space: SearchSpaceConfig
    load: LoadSection = LoadSection()
    objective: ObjectiveSection = ObjectiveSection()
    baseline: PlainFlags = Field(
        description="The flags in use today: trial 0. A searched flag left out is left to vLLM."
    )
    confirm: ConfirmSection = ConfirmSection()
    resources: ResourcesSection = ResourcesSection()

    @model_validator(mode="after")
    def _consistent(self) -> StudyConfig:
        check_agreement(self.serve.flags, self.search_space.parameters, self.baseline)
        return self

    @property
    def served_name(self) -> str:
        """The name requests use."""
        return self.model.served_name or self.model.path

    @property
    def load_seed(self) -> int:
        """The seed of arrivals and prompts."""
        return self.study.seed if self.load.seed is None else self.load.seed

    def baseline_flags(self) -> dict[str, Flag]:
        """Every searched flag with its value in the baseline; None where it is left to vLLM."""
        return {name: self.baseline.get(name) for name in self.search_space.parameters}

    def gpus(self, flags: Mapping[str, FlagValue] | None = None) -> int:
        """Devices one trial needs, from `resources.gpus` or the parallel sizes of fixed and searched flags."""
        if self.resources.gpus is not None:
            return self.resources.gpus
        merged = {**self.serve.flags, **(flags or {})}
        count = 1
        for name in PARALLEL:
            count *= size_of(merged.get(name)) or 1
        return count

    def most_gpus(self) -> int:
        """Devices of the largest trial the search space allows."""
        largest: dict[str, FlagValue] = {}
        for name in PARALLEL:
            spec = self.search_space.parameters.get(name)
            if isinstance(spec, Choice):
                largest[name] = max(size_of(value) or 1 for value in spec.values)
            elif isinstance(spec, IntRange):
                largest[name] = spec.high
        return max(self.gpus(largest), self.gpus(self.baseline_flags()))
