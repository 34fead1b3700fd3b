"""What a report says, as plain values: computed once, then printed in whatever form. Nothing here is text to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sweep.confirm import Confirmed
from sweep.equivalence import Findings
from sweep.front import Front
from sweep.gate import Tally
from sweep.measured import Measured
from sweep.objective import Objective
from sweep.recommend import Recommendation, changed_flags
from sweep.reference import drifted
from sweep.report.not_launched import NotLaunched
from sweep.trial import Failure, Finished, Flag, Flags, Score, TrialKind, TrialStatus
from sweep.verdict import Interval


@dataclass(frozen=True, slots=True)
class RankedTrial:
    """One stored trial, its metrics computed anew from its requests and scored by the report's objective.

    `place` counts from 1, the best; None with the reason in `why_no_place`. `score` is None where nothing was measured;
    it is a ratio to trial `reference`: 0, or the baseline measured again where the machine had drifted.
    `stored_score` is the one of the night, by the objective of that time. `metrics` are those the report needs;
    `intervals` and `thin` are of the percentiles among them, as in `Measured`. `completed` counts all requests.
    """

    number: int
    kind: TrialKind
    status: TrialStatus
    flags: Flags
    place: int | None
    why_no_place: str | None
    score: Score | None
    reference: int
    stored_score: float | None
    metrics: Mapping[str, float | None]
    intervals: Mapping[str, Interval]
    thin: frozenset[str]
    completed: int | None
    failed_requests: int | None
    disturbances: tuple[str, ...]
    failure: Failure | None
    command: str

    @property
    def broken_slos(self) -> tuple[str, ...]:
        """The SLOs it does not keep."""
        violations = {} if self.score is None else self.score.violations
        return tuple(name for name, excess in violations.items() if excess > 0)


@dataclass(frozen=True, slots=True)
class ThinMetric:
    """A percentile that fewer completed requests stand behind than it needs, in `trials`; `completed` is the fewest."""

    metric: str
    needed: int
    completed: int
    trials: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChangedFlag:
    """A flag that differs between today's flags and those recommended; None is "left to vLLM"."""

    name: str
    today: Flag
    then: Flag


@dataclass(frozen=True, slots=True)
class Drift:
    """The baseline measured again as trial `number`: its score, 1 where nothing moved. `moved`: by more than launches
    differ, so that later trials are scored against this one."""

    number: int
    score: float
    moved: bool


@dataclass(frozen=True, slots=True)
class Report:
    """A study as it stands.

    `running` says who has the study now, None when nobody of this host has; `asked` is the number of trials asked for,
    None when not known. `objective` ranks; `own_winner` is what the study's own objective makes of the same record,
    None when it is the one that ranks. `trials`: those of the search with a place in its order, then the others by
    number. `search_winner` is what these say alone; `confirmed` is the verdict on launches made to confirm, None
    without. `recommendation` is the verdict's where it judged the best of the search, otherwise the search's own and
    unconfirmed. `command` starts a server with the flags recommended. `known` are all stored trials by number, those of
    the search scored by `objective`. `stood_in`: how the trials came about where no server ran them, such as
    "replayed"; nothing is recommended for production then. `equal`: flags that made no difference. `not_launched`:
    candidates that cost no launch. `gpu_hours`: devices times hours of all trials, None where the study's settings
    cannot be read; `wall_s`: from the first trial's start to the last one's end, None before there is one.
    """

    study: str
    folder: str
    running: str | None
    asked: int | None
    objective: Objective
    trials: tuple[RankedTrial, ...]
    recommendation: Recommendation
    search_winner: Recommendation
    confirmed: Confirmed | None
    own_winner: Recommendation | None
    thin: tuple[ThinMetric, ...]
    front: Front | None
    notes: tuple[str, ...]
    command: str | None
    gate: Tally
    known: Mapping[int, Finished]
    equal: Findings
    stood_in: str | None = None
    not_launched: NotLaunched = field(default_factory=NotLaunched)
    gpu_hours: float | None = None
    wall_s: float | None = None

    @property
    def changed(self) -> tuple[ChangedFlag, ...]:
        """The flags that differ between today's and those recommended."""
        flags, baseline = self.recommendation.flags, self.baseline
        if flags is None or baseline is None:
            return ()
        return tuple(
            ChangedFlag(name, baseline.flags.get(name), flags[name]) for name in changed_flags(flags, baseline.flags)
        )

    @property
    def drift(self) -> tuple[Drift, ...]:
        """The baseline's later measurements by number, as far as they have a score."""
        return tuple(
            Drift(number, one.score, drifted(one))
            for number, one in sorted(self.known.items())
            if one.kind is TrialKind.DRIFT and one.score is not None
        )

    @property
    def measured(self) -> Mapping[int, Measured]:
        """The trials with metrics, by number."""
        return {
            one.number: Measured(one.metrics, one.completed, one.failed_requests or 0, one.intervals, one.thin)
            for one in self.trials
            if one.completed is not None
        }

    @property
    def winner(self) -> RankedTrial | None:
        """The trial of the search recommended: the best one, or the baseline where nothing beats it. Where flags nearer
        to today's were launched in its place, the one they stand for.

        None without a verdict, and for flags that the search never tried (less memory, after a soak that failed).
        """
        number = self.recommendation.number
        found = next((trial for trial in self.trials if trial.number == number), None)
        if found is not None or number is None or self.confirmed is None or not self.recommendation.confirmed:
            return found
        meant = self.confirmed.in_place_of.get(number)
        return next((trial for trial in self.trials if trial.number == meant), None)

    @property
    def baseline(self) -> RankedTrial | None:
        """The flags in use, if they were measured."""
        return next((trial for trial in self.trials if trial.kind is TrialKind.BASELINE), None)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics shown: those of the objective, then those of the front."""
        extra = () if self.front is None else self.front.metrics
        return tuple(dict.fromkeys((*self.objective.metrics_needed(), *extra)))
