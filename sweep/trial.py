"""Value types of a trial: what was asked, how it ended, what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sweep.records import EngineConfig, EngineSample, EngineSummary, Event, RequestRecord, RoundRecord

Flag = str | int | float | bool | None
Flags = Mapping[str, Flag]


def chunks_prefill(flags: Mapping[str, object]) -> bool:
    """Whether prompts are read in chunks, which vLLM does unless told otherwise, by either name of the flag."""
    return flags.get("enable-chunked-prefill") is not False and flags.get("no-enable-chunked-prefill") is not True


# The policy of a trial that the end of the study's time cut: nothing is decided, the next start measures it again.
CUT = "cut"


class Phase(StrEnum):
    """Where a trial is; the words of the live view and of the `events` table."""

    HOST = "host"
    START = "start"
    READY = "ready"
    WARMUP = "warmup"
    LOAD = "load"
    STOP = "stop"


class TrialKind(StrEnum):
    """Why a trial runs."""

    BASELINE = "baseline"
    CALIBRATION = "calibration"  # the baseline's flags under rising rates, to see where the load lies
    SEARCH = "search"
    DRIFT = "drift"  # the baseline once more, for what the machine did meanwhile
    CONFIRM = "confirm"
    SOAK = "soak"
    NEIGHBOUR = "neighbour"  # the baseline twice at a time on one node, for what neighbours do to each other
    NODE = "node"  # the baseline on a further node of the cluster: what the trials there are scored against


# The trials that a study file counts.
SEARCHING = (TrialKind.BASELINE, TrialKind.SEARCH)


class TrialStatus(StrEnum):
    """How a trial ended. Only COMPLETE and CENSORED have metrics, and only COMPLETE can win.

    CENSORED: stopped early as hopeless, with metrics of the rounds it finished (all None where it finished none).
    INFEASIBLE: these flags cannot work, the search learns it. FAILED: no verdict on the flags.
    """

    COMPLETE = "complete"
    CENSORED = "censored"
    INFEASIBLE = "infeasible"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """One trial to run. `flags` are the searched flags (None: left to vLLM); trial 0 is the baseline.

    A calibration's load is a ladder of rates. For the others `block` None is the load of the search, a number that
    block of held-out prompts (see `confirmation_plans`). `node` is the one of a cluster that it must run on, and once
    it runs, the one it runs on.
    """

    number: int
    kind: TrialKind
    flags: Flags
    baseline_metrics: Mapping[str, float | None] | None = None
    block: int | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """The weighted objective (1.0 is the baseline, lower is better) and how far each SLO is missed.

    `value` is None when a metric of the objective is missing. `violations` holds `measured / limit - 1` per SLO in
    the order of the study file, with several request rates per SLO and rate: above zero is a breach. `front` holds the
    ratios that a search for a front minimises.
    """

    value: float | None
    ratios: Mapping[str, float] = field(default_factory=dict)
    violations: Mapping[str, float] = field(default_factory=dict)
    front: tuple[float, ...] | None = None

    @property
    def feasible(self) -> bool:
        """Whether every SLO is kept."""
        return all(excess <= 0 for excess in self.violations.values())


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a trial has no metrics; filled from the diagnosis."""

    failure_class: str
    phase: str
    line: str | None
    advice: str
    retryable: bool
    informative_for_search: bool
    policy: str
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Everything one trial leaves.

    `metrics` pool the requests of all `rounds`; `load_s` is the sum of the rounds' durations. `round_scores` holds for
    each round its own metrics scored against the baseline's of all its rounds, or of those at its request rate where
    there are several: their spread is the noise within one server. `stopped_because` is the reason a CENSORED trial was
    stopped for. `stood_in` marks a trial that no server ran, such as "replayed"; None for a measured one. Raises
    ValueError unless COMPLETE and CENSORED go with metrics, the others with a failure, and CENSORED with a reason.
    """

    spec: TrialSpec
    status: TrialStatus
    metrics: Mapping[str, float | None] | None
    score: Score | None
    failure: Failure | None
    requests: tuple[RequestRecord, ...]
    engine: tuple[EngineSample, ...]
    engine_config: EngineConfig
    events: tuple[Event, ...]
    command: str
    attempts: int
    started_wall_s: float
    startup_s: float | None
    load_s: float | None
    total_s: float
    remarks: tuple[str, ...] = ()
    disturbances: tuple[str, ...] = ()
    rounds: tuple[RoundRecord, ...] = ()
    round_scores: tuple[float | None, ...] = ()
    stopped_because: str | None = None
    stood_in: str | None = None

    def __post_init__(self) -> None:
        measured = self.status in (TrialStatus.COMPLETE, TrialStatus.CENSORED)
        if measured is not (self.metrics is not None):
            raise ValueError(f"trial {self.spec.number}: status {self.status} does not go with its metrics")
        if measured is not (self.failure is None):
            raise ValueError(f"trial {self.spec.number}: status {self.status} does not go with its failure")
        if (self.status is TrialStatus.CENSORED) is not (self.stopped_because is not None):
            raise ValueError(f"trial {self.spec.number}: status {self.status} does not go with why it was stopped")


@dataclass(frozen=True, slots=True)
class Finished:
    """What the plan needs to know of a trial that ended, now or in an earlier run of the study."""

    number: int
    kind: TrialKind
    flags: Flags
    status: TrialStatus
    score: float | None = None
    violations: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float | None] | None = None
    failure_class: str | None = None
    failure_line: str | None = None
    advice: str | None = None
    informative_for_search: bool = False
    policy: str | None = None
    total_s: float | None = None
    disturbed: bool = False
    # Devices, as Ray names them, that no further trial may use: busy before the launch, or held by a process of this
    # trial that cannot be ended. Unless the trial is complete, nothing is stored and it runs again on others.
    dirty_devices: tuple[str, ...] = ()
    block: int | None = None
    front: tuple[float, ...] | None = None  # as in Score
    # What the engine made of the flags and what it saw under the load; None where it told nothing.
    engine_config: EngineConfig | None = None
    engine: EngineSummary | None = None
    round_scores: tuple[float | None, ...] = ()  # as in TrialResult
    node: str | None = None
    # The node, not the flags, was in the way, and there are others: nothing is stored, and it runs again on another.
    again_elsewhere: bool = False

    @classmethod
    def of(
        cls,
        spec: TrialSpec,
        status: TrialStatus,
        score: Score | None,
        metrics: Mapping[str, float | None] | None,
        failure: Failure | None,
        *,
        total_s: float,
        disturbed: bool,
        dirty_devices: tuple[str, ...] = (),
        engine_config: EngineConfig | None = None,
        engine: EngineSummary | None = None,
        round_scores: tuple[float | None, ...] = (),
    ) -> Finished:
        """The same for a trial that ended just now and for one that is read back."""
        return cls(
            number=spec.number,
            kind=spec.kind,
            flags=spec.flags,
            status=status,
            score=None if score is None else score.value,
            violations={} if score is None else dict(score.violations),
            metrics=None if metrics is None else dict(metrics),
            failure_class=None if failure is None else failure.failure_class,
            failure_line=None if failure is None else failure.line,
            advice=None if failure is None else failure.advice,
            informative_for_search=failure is not None and failure.informative_for_search,
            policy=None if failure is None else failure.policy,
            total_s=total_s,
            disturbed=disturbed,
            dirty_devices=dirty_devices,
            block=spec.block,
            front=None if score is None else score.front,
            engine_config=engine_config,
            engine=engine,
            round_scores=round_scores,
            node=spec.node,
        )

    @property
    def postponed(self) -> bool:
        """Whether its devices, not its flags, were in the way: nothing is stored, and it runs again on others."""
        return bool(self.dirty_devices) and self.status is not TrialStatus.COMPLETE

    def line_of_cause(self) -> str:
        """The cause in one line: class, matched line and what to do."""
        parts = (self.failure_class or "unknown", self.failure_line, self.advice)
        return " - ".join(part for part in parts if part)
