"""The remaining sections of a study file and the whole of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from sweep.config.models import (
    Boolean,
    Choice,
    Environment,
    FixedFlags,
    FlagValue,
    FloatRange,
    IntRange,
    ModelSection,
    ParameterSpec,
    PlainFlags,
    SearchSpaceConfig,
    Section,
    ServeSection,
    StudySection,
    Words,
)
from sweep.errors import ConfigError
from sweep.metric_table import LATENCIES, parse_metric
from sweep.trial import Flag

# One trial's parallel sizes multiply to its devices.
_PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
_OURS = frozenset(
    {
        *("host", "port", "api-key", "config", "uds"),
        *("served-model-name", "model", "chat-template", "chat-template-content-format"),
    }
)
_LARGEST_WEIGHT = 1e6


def _rate(value: object) -> object:
    """None for the ways to write "unlimited"."""
    if isinstance(value, str) and value.strip().lower() in {"inf", "unlimited"}:
        return None
    return None if value == float("inf") else value


def _known_metrics(value: object) -> object:
    if isinstance(value, dict):
        for name in value:
            try:
                parse_metric(str(name))
            except ConfigError as error:
                raise ValueError(error.message) from None
    return value


Rate = Annotated[Annotated[float, Field(gt=0)] | None, BeforeValidator(_rate)]
MetricMap = Annotated[dict[str, float], BeforeValidator(_known_metrics)]


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
    path: str | None = Field(
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
    num_prompts: int = Field(200, ge=1, description="Measured requests of a trial.")
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
    flags: FixedFlags = Field(default_factory=dict, description="Further flags of `vllm bench serve`.")
    env: Environment = Field(default_factory=dict, description="Environment variables of the load client.")

    @property
    def longest_prompt_tokens(self) -> int | None:
        """The limit on prompts; None for none."""
        return 1024 if self.max_prompt_tokens is None and self.dataset == "sharegpt" else self.max_prompt_tokens

    @model_validator(mode="after")
    def _percentiles(self) -> LoadSection:
        if any(not 0 < p < 100 for p in self.percentiles):
            raise ValueError("percentiles must lie between 0 and 100")
        if self.dataset == "custom" and self.path is None:
            raise ValueError("dataset custom needs a path")
        return self


class ObjectiveSection(Section):
    """What is minimised: a weighted mean of metric / baseline, so 1.0 is as good as today's flags."""

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

    @model_validator(mode="after")
    def _one_of(self) -> ObjectiveSection:
        if self.preset is not None and self.weights:
            raise ValueError("give preset or weights, not both")
        for name, weight in self.weights.items():
            lower = parse_metric(name).lower_is_better
            if abs(weight) > _LARGEST_WEIGHT:
                raise ValueError(f"the weight of {name} is beyond {_LARGEST_WEIGHT:g}; weights count in relation")
            if weight == 0 or (weight > 0) is not lower:
                raise ValueError(f"the weight of {name} must be {'above' if lower else 'below'} zero")
        if any(limit <= 0 for limit in self.slo.values()):
            raise ValueError("an SLO limit must be above zero")
        if "goodput_per_s" in self.weights and not any(parse_metric(name).stem in LATENCIES for name in self.slo):
            raise ValueError("goodput_per_s needs an SLO on a latency: it counts the requests that keep it")
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


def _misfit(value: Flag, spec: ParameterSpec) -> str | None:
    """What is wrong with a baseline's value by its kind; it may lie outside the range. None when it fits."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is None:
        return None
    if isinstance(spec, IntRange) and not (number and float(value) == int(value)):
        return "a whole number is searched"
    if isinstance(spec, FloatRange) and not number:
        return "a number is searched"
    if isinstance(spec, Boolean) and not isinstance(value, bool):
        return "true or false is searched"
    return None


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
    resources: ResourcesSection = ResourcesSection()

    @model_validator(mode="after")
    def _consistent(self) -> StudyConfig:
        searched = set(self.search_space.parameters)
        for where, names in (
            ("serve.flags", set(self.serve.flags)),
            ("search_space.parameters", searched),
            ("baseline", set(self.baseline)),
        ):
            if taken := sorted(names & _OURS):
                raise ValueError(f"{where}: {taken[0]} is set by sweep; see the keys of `model` and `serve`")
        every = {*searched, *self.serve.flags}
        if twins := sorted(name for name in every if f"no-{name}" in every):
            raise ValueError(f"{twins[0]} and no-{twins[0]} are one flag; set {twins[0]} to true or false")
        for name, value in self.baseline.items():
            if name in searched and (fault := _misfit(value, self.search_space.parameters[name])):
                raise ValueError(f"baseline: {name} is {value!r}, but {fault}")
        if both := sorted(searched & set(self.serve.flags)):
            raise ValueError(f"search_space: {both[0]} is also fixed under serve.flags; keep one of the two")
        if both := sorted(set(self.baseline) & set(self.serve.flags)):
            raise ValueError(
                f"baseline: {both[0]} is also fixed under serve.flags; a flag that is not searched belongs there alone"
            )
        if extra := sorted(set(self.baseline) - searched):
            raise ValueError(
                f"baseline: {extra[0]} is not searched; put it under serve.flags, or add it to search_space.parameters"
            )
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
        for name in _PARALLEL:
            size = merged.get(name)
            count *= size if isinstance(size, int) and not isinstance(size, bool) else 1
        return count

    def most_gpus(self) -> int:
        """Devices of the largest trial the search space allows."""
        largest: dict[str, FlagValue] = {}
        for name in _PARALLEL:
            spec = self.search_space.parameters.get(name)
            if isinstance(spec, Choice):
                largest[name] = max((v for v in spec.values if isinstance(v, int)), default=1)
            elif isinstance(spec, IntRange):
                largest[name] = spec.high
        return max(self.gpus(largest), self.gpus(self.baseline_flags()))
