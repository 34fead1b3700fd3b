"""The remaining sections of a study file and the whole of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from sweep.config.agreement import PARALLEL, check_agreement, size_of
from sweep.config.load_section import LoadSection
from sweep.config.mistakes import Mistake
from sweep.config.models import (
    Choice,
    Duration,
    FlagValue,
    IntRange,
    ModelSection,
    PlainFlags,
    SearchSpaceConfig,
    Section,
    ServeSection,
    StudySection,
    Text,
)
from sweep.config.notify_section import NotifySection
from sweep.errors import ConfigError
from sweep.metric_table import check_rate, parse_metric, request_limits
from sweep.trial import Flag

_LARGEST_WEIGHT = 1e6


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


MetricMap = Annotated[dict[str, float], BeforeValidator(_known_metrics)]
MetricNames = Annotated[tuple[str, ...], BeforeValidator(_known_names)]


class ObjectiveSection(Section):
    """What is minimised: metric / baseline, aggregated, so that 1.0 is as good as today's flags."""

    preset: Literal["responsive", "fluent", "steady", "complete", "balanced"] | None = Field(
        None,
        description="Weights by purpose: `responsive` (TTFT), `fluent` (TPOT), `steady` "
        "(ITL tail and spread), `complete` (E2EL), `balanced` (default).",
    )
    weights: MetricMap = Field(
        default_factory=dict,
        description="Metric to weight: `p95_ttft_ms: 0.4`; negative on throughputs, where more is better. With several "
        "request rates shared evenly among them, but `p95_ttft_ms@8: 0.4` is of that rate alone.",
    )
    slo: MetricMap = Field(
        default_factory=dict,
        description="Metric to limit: upper for latencies, lower for throughputs. To be kept at every request rate; "
        "`p95_ttft_ms@8: 900` is the limit at that rate.",
    )
    aggregate: Literal["mean", "geometric", "worst"] = Field(
        "mean",
        description="How the ratios metric / baseline make one score: weighted `mean`, weighted `geometric` mean, or "
        "the `worst` of them.",
    )
    front: MetricNames = Field(
        (),
        strict=False,
        description="Two or three metrics: the search looks for their Pareto front instead of one best score; weights "
        "still name the winner. With several request rates each names its own: `p95_ttft_ms@8`.",
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
        if self.front and not 2 <= len({parse_metric(name).name for name in self.front}) == len(self.front) <= 3:
            raise Mistake(f"a front is of two or three different metrics, not {', '.join(self.front)}", "front")
        for place in ("weights", "slo", "front"):
            metrics = [parse_metric(name) for name in getattr(self, place)]
            if any(one.base == "goodput_per_s" and not request_limits(self.slo, one.at) for one in metrics):
                text = "goodput_per_s needs an SLO on TTFT, TPOT or E2EL beside it: it counts the requests that keep it"
                raise Mistake(text, place)
        return self


class ConfirmSection(Section):
    """What follows the search: its best against the baseline, on fresh servers with prompts it never saw."""

    candidates: int = Field(
        3, ge=0, le=20, description="Configurations of the search that are confirmed; 0 leaves the winner unconfirmed."
    )
    second_looks: float = Field(
        0.2,
        ge=0,
        le=0.5,
        description="Share of the trials, at the end of a search of 20 and more, that measure its best once more.",
    )
    launches: int = Field(3, ge=2, le=50, description="Fresh servers of each and of the baseline, at least.")
    max_launches: int = Field(12, ge=2, le=50, description="And at most, while the intervals are wider than `width`.")
    width: float = Field(
        0.12, gt=0, le=2, description="Enough is measured once the leader's 95 % interval is narrower: 0.1 is 10 %."
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


def _no_mapping_is_empty(value: object) -> object:
    return {} if value is None else value


class ReplaySection(Section):
    """What `study.engine: replay` reads."""

    path: Text | None = Field(
        None,
        description="Folder of a stored study whose launches are drawn, or of a packed one; looked for beside the "
        "study file, then where the command is typed.",
    )


class SimulatedSection(Section):
    """What `study.engine: simulated` takes for the machine and the model."""

    card: Text = Field("RTX A6000", description="Kind of the cards, such as `RTX 4090`, `H100` or `L40S`.")
    billions: float | None = Field(
        None,
        gt=0,
        le=10_000,
        description="Weights of the model; default: by its `config.json`, or its name (`-32B`).",
    )


class ResourcesSection(Section):
    """What a trial asks of Ray."""

    gpus: int | None = Field(
        None, ge=0, description="Devices of a trial; default: tensor x pipeline x data parallel size."
    )
    cpus: float = Field(1.0, gt=0, description="CPUs of a trial, as Ray counts them.")
    pin_cpus: bool = Field(
        False,
        description="CPUs of its own for each server and its load client: a share of the NUMA node that its devices "
        "sit at, or without devices of the machine, among `concurrent_trials`.",
    )
    memory_gib: float | None = Field(None, gt=0, description="Memory of a trial, as Ray counts it.")
    custom: Annotated[dict[str, float], BeforeValidator(_no_mapping_is_empty)] = Field(
        default_factory=dict, description="Further resources of a trial by Ray's names: `{nvme: 1}`."
    )
    accelerator: Text | None = Field(
        None,
        description="Part of the name of the devices that trials run on, such as `A6000`; nodes with others take none.",
    )
    group_by: Literal["fingerprint"] | None = Field(
        None,
        description="On a joined cluster whose nodes differ in devices, driver or vLLM: `fingerprint` makes a study of "
        "each group of equal nodes, all at once, each with its own baseline, search and verdict, in `NAME-GROUP`. "
        "Default: the largest group takes part, the other nodes are named and left out.",
    )
    check_neighbours: bool = Field(
        True,
        description="Where several trials share a machine's devices, launch the baseline twice at a time once, and run "
        "one trial a machine if that differs from alone.",
    )
    wait_for_nodes: Duration | None = Field(
        None,
        description="On a cluster, the longest wait for a node that a trial fits on; default: none, such a study is "
        "refused.",
    )
    concurrent_trials: int | None = Field(
        None, ge=1, description="Trials at once; default: what the devices allow, and 1 a node without devices."
    )

    @field_validator("custom")
    @classmethod
    def _plain_custom(cls, custom: dict[str, float]) -> dict[str, float]:
        for name, amount in custom.items():
            if name in ("CPU", "GPU", "memory", "object_store_memory"):
                raise Mistake("has a key of its own: cpus, gpus, memory_gib", name)
            if not amount > 0:
                raise Mistake("must be above zero", name)
        return custom


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
    replay: ReplaySection = ReplaySection()
    notify: NotifySection = NotifySection()
    simulated: SimulatedSection = SimulatedSection()

    @model_validator(mode="after")
    def _consistent(self) -> StudyConfig:
        check_agreement(self.serve.flags, self.search_space.parameters, self.baseline)
        if (self.study.engine == "replay") is not (self.replay.path is not None):
            text = "engine: replay needs replay.path beside it, the folder of the recording, and nothing else reads it"
            raise Mistake(text, "study", "engine")
        for place in ("weights", "slo", "front"):
            for name in getattr(self.objective, place):
                try:
                    check_rate(name, self.load.rates, front=place == "front")
                except ConfigError as error:
                    raise Mistake(error.message, "objective", place) from None
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
