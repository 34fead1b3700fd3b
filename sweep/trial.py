"""Value types of a trial: what was asked, how it ended, what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sweep.records import EngineConfig, EngineSample, Event, RequestRecord

Flag = str | int | float | bool | None
Flags = Mapping[str, Flag]


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
    SEARCH = "search"


class TrialStatus(StrEnum):
    """How a trial ended. Only COMPLETE has metrics.

    INFEASIBLE: these flags cannot work, the search learns it. FAILED: no verdict on the flags.
    """

    COMPLETE = "complete"
    INFEASIBLE = "infeasible"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """One trial to run. `flags` are the searched flags (None: left to vLLM); trial 0 is the baseline."""

    number: int
    kind: TrialKind
    flags: Flags
    baseline_metrics: Mapping[str, float | None] | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """The weighted objective (1.0 is the baseline, lower is better) and how far each SLO is missed.

    `value` is None when a metric of the objective is missing. `violations` holds `measured / limit - 1` per SLO in
    the order of the study file: above zero is a breach. `front` holds the ratios that a search for a front minimises.
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
    """Everything one trial leaves. Raises ValueError unless metrics and COMPLETE go together."""

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

    def __post_init__(self) -> None:
        complete = self.status is TrialStatus.COMPLETE
        if complete is not (self.metrics is not None):
            raise ValueError(f"trial {self.spec.number}: status {self.status} does not go with its metrics")
        if complete is not (self.failure is None):
            raise ValueError(f"trial {self.spec.number}: status {self.status} does not go with its failure")


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
    # Devices, as Ray names them, that stayed busy before the launch: nothing was measured and nothing is stored.
    dirty_devices: tuple[str, ...] = ()

    def line_of_cause(self) -> str:
        """The cause in one line: class, matched line and what to do."""
        parts = (self.failure_class or "unknown", self.failure_line, self.advice)
        return " - ".join(part for part in parts if part)
