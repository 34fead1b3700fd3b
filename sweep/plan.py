"""Which trial runs next, and when the study stops. No Ray, no Optuna: decisions only.

The baseline runs first and alone, since every score is a ratio to it; where the study asks for it, a calibration of its
load comes before it, as alone. After it, trials are proposed until the asked number is reached, the time of the search
is out, nothing is left to propose, or a cause is met that no flag can mend. In the middle and at the end of the search
the baseline runs once more, alone, for what drifted. Then comes whatever follows the search, one launch at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from sweep.clock import MARGIN, describe_end, why_no_time
from sweep.diagnosis import cause_of
from sweep.looks import second_look
from sweep.neighbours import disturb, launches_due
from sweep.plan_asks import Follows, Proposes, expected_trial_s, proposed
from sweep.plan_nodes import home, home_room, nodes_full, unmeasured
from sweep.reference import reference_metrics
from sweep.trial import CUT, SEARCHING, Finished, Flags, TrialKind, TrialSpec, TrialStatus

# A shorter search has no middle worth two more launches.
_DRIFT_TRIALS = 12
# Nor is its best worth a second look.
_LOOK_TRIALS = 20
# All else runs alone: nothing but what is searched, and the baseline on a node that took none yet.
_SIDE_BY_SIDE = (*SEARCHING, TrialKind.NODE)
# What does not follow the search.
_BEFORE = (*_SIDE_BY_SIDE, TrialKind.NEIGHBOUR, TrialKind.CALIBRATION)
# Policies of a failure after which no further launch makes sense.
NEEDS_A_PERSON = ("stop_now", "host")


@dataclass(slots=True)
class StudyPlan:
    """The state of a night. `next()` gives a trial to run, None for "not now", or raises StopIteration at the end.

    `minimum_s` is what no trial of this study can be shorter than, whatever the machine: before one was measured it
    decides whether another can end in time. `follow` is what comes after the search, and `follow_share` how much of the
    time the search leaves to it at most. `drift`: whether the baseline is measured again. `second_looks`: the share of
    the trials, at their end, that measure the best ones once more. `calibrate`: whether a calibration comes first.
    `rate_open`: that the load is known only after it, so that the plan ends with it. `nodes` of a joined cluster that
    take trials, with how many each holds at once. `server_sd`: how launches differ, for the check of neighbours.
    `said`: lines for the person.
    """

    proposer: Proposes
    trials: int
    baseline_flags: Flags
    concurrent: int = 1
    stop_after_same_failure: int = 3
    max_lost: int = 2
    time_left_s: Callable[[], float] = lambda: float("inf")
    grace_s: float = 0.0
    minimum_s: float = 0.0
    follow: Follows | None = None
    follow_share: float = 0.25
    drift: bool = False
    second_looks: float = 0.0
    calibrate: bool = False
    rate_open: bool = False
    stop_reason: str | None = None
    failed: bool = False
    finished: dict[int, Finished] = field(default_factory=dict)
    live: dict[int, TrialSpec] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    busy_devices: set[str] = field(default_factory=set)
    nodes: Mapping[str, int] | None = None
    server_sd: float | None = None
    _again: list[TrialSpec] = field(default_factory=list)
    _exhausted: str | None = None
    _whole_s: float = 0.0
    _lost: dict[int, int] = field(default_factory=dict)
    _same: tuple[tuple[str, str] | None, int] = (None, 0)

    def __post_init__(self) -> None:
        self._whole_s = self.time_left_s()

    def next(self) -> TrialSpec | None:
        """The next trial; None when one must end first. Raises StopIteration when no further trial will come, or none
        before somebody has looked (see `paused`)."""
        if self.stop_reason is not None:
            raise StopIteration(self.stop_reason)
        ended = self._search_ended()
        if ended is not None and (self._out_of_time() is not None or not self._follows()):
            self._end(ended)
            return None
        if self.busy_devices and not self.live:
            raise StopIteration("busy devices are taken out first")
        kinds = {spec.kind for spec in self.live.values()}
        at_once = 1 if self.nodes is None and self.one_a_node else self.concurrent
        if self.busy_devices or len(self.live) >= at_once or not kinds <= {*_SIDE_BY_SIDE, TrialKind.NEIGHBOUR}:
            return None
        if ended is None and (spec := self._baseline_again()) is not None:
            return self._start(spec)
        if TrialKind.NEIGHBOUR in kinds:
            return None
        if ended is not None:
            return self._after(ended)
        if nodes_full(self.nodes, self.finished, self.live.values(), self._again):
            return None
        if self._again:
            return self._start(self._at_home(self._again.pop(0)))
        return self._searched()

    def _baseline_again(self) -> TrialSpec | None:
        """The baseline on a node that has none, or beside itself: both come before any trial of the search is there."""
        first = self.finished.get(0)
        if first is None or first.metrics is None or self.rate_open:
            return None
        spec = TrialSpec(self._next_number(), TrialKind.NEIGHBOUR, self.baseline_flags, first.metrics)
        shared = self.server_sd is not None and home_room(self.nodes, self.finished, self.concurrent) > 1
        if shared and launches_due(self.finished, self.live.values()):
            return self._at_home(spec)
        if self.nodes is None:
            return None
        self._again = [spec for spec in self._again if spec.kind is not TrialKind.NODE or spec.node in self.nodes]
        node = unmeasured(self.nodes, self.finished, [*self.live.values(), *self._again])
        return None if node is None else replace(spec, kind=TrialKind.NODE, node=node)

    @property
    def one_a_node(self) -> bool:
        """Whether trials were found to disturb each other on one node."""
        return self.server_sd is not None and disturb(self.finished.values(), self.server_sd) is True

    def _searched(self) -> TrialSpec | None:
        """The next trial of the search."""
        number = self._next_number()
        if number == 0 and self.calibrate and not self._calibrated():
            number = next(number for number in count(1) if number not in self.finished)
            return self._start(TrialSpec(number, TrialKind.CALIBRATION, self.baseline_flags))
        if self.rate_open:
            raise StopIteration("the request rate is taken from the calibration first")
        if number == 0:
            return self._start(TrialSpec(0, TrialKind.BASELINE, self.baseline_flags))
        baseline = self.finished.get(0)
        if baseline is None:
            return None
        if baseline.metrics is None:
            self.stop(f"the baseline failed: {baseline.line_of_cause()}", failed=True)
            raise StopIteration(self.stop_reason)
        if self._drift_due(halfway=True):
            drift = TrialSpec(number, TrialKind.DRIFT, self.baseline_flags, baseline.metrics)
            return None if self.live else self._start(self._at_home(drift))
        pending = [spec.flags for spec in self.live.values()]
        flags = self._looked_at_again(pending)
        if flags is None:
            flags, self._exhausted = proposed(self.proposer, number, pending)
        if flags is None:
            return self.next() if self._exhausted else None
        metrics = reference_metrics(self.finished, number)
        return self._start(TrialSpec(number, TrialKind.SEARCH, flags, metrics))

    def _looked_at_again(self, pending: Sequence[Flags]) -> Flags | None:
        """The last trials of a search measure its best once more."""
        looks = int(self.second_looks * self.trials)
        if self.trials < _LOOK_TRIALS or self._searching() < self.trials - looks:
            return None
        return second_look(self.finished.values(), pending, looks)

    def _after(self, ended: str) -> TrialSpec | None:
        """What follows the search, one launch at a time and alone."""
        self._again = [spec for spec in self._again if spec.kind not in _SIDE_BY_SIDE]
        if self.live or (self.nodes is not None and not self.nodes):
            return None
        if self._again:
            return self._start(self._at_home(self._again.pop(0)))
        spec = self._following()
        if spec is not None:
            return self._start(self._at_home(spec))
        self._end(ended)
        return None

    def _follows(self) -> bool:
        """Whether anything follows the search, as far as it is known while trials still run."""
        if self.live or any(spec.kind not in _SIDE_BY_SIDE for spec in self._again):
            return True
        return self._following() is not None

    def _following(self) -> TrialSpec | None:
        baseline, number = self.finished.get(0), self._next_number()
        if baseline is None or baseline.metrics is None:
            return None
        if self._drift_due(halfway=False):
            return TrialSpec(number, TrialKind.DRIFT, self.baseline_flags, baseline.metrics)
        return None if self.follow is None else self.follow.next(number, self.finished, self._room())

    def _at_home(self, spec: TrialSpec) -> TrialSpec:
        """What is compared with each other runs on one node: that of trial 0, or the first while that one is gone."""
        if not self.nodes or spec.kind in (*SEARCHING, TrialKind.CALIBRATION, TrialKind.NODE):
            return spec
        return replace(spec, node=home(self.nodes, self.finished))

    @property
    def paused(self) -> bool:
        """Whether somebody must look before further trials come: at busy devices, or at the calibration."""
        return bool(self.busy_devices) or (self.rate_open and self._calibrated())

    def _calibrated(self) -> bool:
        return any(one.kind is TrialKind.CALIBRATION for one in self.finished.values())

    def _searching(self) -> int:
        """Trials of the search that ended or run, the baseline included."""
        kinds = [*(one.kind for one in self.finished.values()), *(spec.kind for spec in self.live.values())]
        return sum(kind in SEARCHING for kind in kinds)

    def _search_ended(self) -> str | None:
        """Why no further trial of the search will start; None while one may."""
        if not any(spec.kind in SEARCHING for spec in self._again) and self._searching() >= self.trials:
            return "all trials done"
        return self._exhausted or self._out_of_time(self.reserve_s())

    def _drift_due(self, *, halfway: bool) -> bool:
        """Whether the baseline is to be measured again: halfway through the search, and at its end."""
        drifts = sum(one.kind is TrialKind.DRIFT for one in self.finished.values())
        if not self.drift or self.trials < _DRIFT_TRIALS or drifts >= (1 if halfway else 2):
            return False
        searched = self._searching()
        if not halfway:
            # Once a search, and not right after the one in the middle: a search that time cut short had no second half.
            last = max((n for n, one in self.finished.items() if one.kind is TrialKind.DRIFT), default=0)
            return sum(number > last for number, one in self.finished.items() if one.kind in SEARCHING) > 2
        expected_s, left_s = self._expected_s(), self.time_left_s() - self.reserve_s()
        ahead = self.trials - searched
        if expected_s is not None and left_s < float("inf"):
            ahead = min(ahead, int(left_s // expected_s) * self.concurrent)
        return searched >= _DRIFT_TRIALS // 2 and searched >= ahead

    def _room(self) -> int | None:
        """Launches that fit the time left, None without an end."""
        left_s, expected_s = self.time_left_s(), self._expected_s()
        if left_s == float("inf") or not expected_s:
            return None
        return int(left_s // (expected_s * MARGIN))

    def reserve_s(self) -> float:
        """Seconds at the end that the search leaves to what follows it, by what a launch took so far.

        Zero while nothing would follow, for want of a trial that is worth it.
        """
        expected_s = self._expected_s()
        if self.follow is None or expected_s is None or self._whole_s == float("inf"):
            return 0.0
        if self.follow.next(self._next_number(), self.finished, None) is None:
            return 0.0
        return min(self.follow_share * self._whole_s, self.follow.least_launches() * expected_s * MARGIN)

    def hear(self, finished: Finished, *, earlier: bool = False) -> None:
        """A trial ended. `earlier`: it is read back from the record of an earlier run."""
        self.live.pop(finished.number, None)
        self.finished[finished.number] = finished
        self.busy_devices.update(finished.dirty_devices)
        self.proposer.hear(finished)
        if finished.number == 0 and finished.status is TrialStatus.COMPLETE and finished.score is None:
            missing = [name for name, value in (finished.metrics or {}).items() if value is None]
            self.stop(f"the baseline has no score: the load left {', '.join(missing)} undefined", failed=True)
        elif finished.status in (TrialStatus.COMPLETE, TrialStatus.CENSORED):
            self._same = (None, 0)
        elif not earlier and finished.kind is not TrialKind.NODE:  # that node takes no trials, the others do
            self._judge(finished)

    def lost(self, number: int) -> bool:
        """The worker of a live trial is gone without a result. True when the same trial will run once more."""
        spec = self.live.pop(number)
        self._lost[number] = self._lost.get(number, 0) + 1
        if self._lost[number] > self.max_lost:
            return False
        self._again.append(spec)
        return True

    def postpone(self, finished: Finished) -> None:
        """A live trial met busy devices: it runs first once they are taken out, and nothing starts until then."""
        self._again.insert(0, self.live.pop(finished.number))
        self._lost[finished.number] = self._lost.get(finished.number, 0) + 1
        self.busy_devices.update(finished.dirty_devices)

    def give_back(self, spec: TrialSpec) -> None:
        """`spec` was taken but not started; it comes first the next time."""
        del self.live[spec.number]
        self._again.insert(0, spec)

    def times_lost(self, number: int) -> int:
        """How often the worker of this trial was lost."""
        return self._lost.get(number, 0)

    def stop(self, reason: str, *, failed: bool = False) -> None:
        """Start no further trial."""
        if self.stop_reason is None:
            self.stop_reason, self.failed = reason, failed

    def _start(self, spec: TrialSpec) -> TrialSpec:
        self.live[spec.number] = spec
        return spec

    def _end(self, reason: str) -> None:
        """No new trial will come: the end once nothing is live, otherwise a wait for what is."""
        if not self.live:
            self.stop(reason)
            raise StopIteration(reason)

    def _next_number(self) -> int:
        taken = {*self.finished, *self.live, *(spec.number for spec in self._again)}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def expected_left_s(self) -> tuple[float, float] | None:
        """Seconds to the end of the search, and from there to the end, by the last trials; None before one ended."""
        if (each_s := self._expected_s()) is None:
            return None
        searched = sum(one.kind in SEARCHING for one in self.finished.values())
        after = 0 if self.follow is None else self.follow.least_launches()
        after -= sum(one.kind not in _BEFORE for one in self.finished.values())
        left_s = max(0.0, self.time_left_s())
        search_s = min(each_s * max(0, self.trials - searched) / self.concurrent, left_s)
        return search_s, min(each_s * max(0, after), left_s - search_s)

    def _expected_s(self) -> float | None:
        return expected_trial_s(self.finished.values())

    def overdue(self) -> bool:
        """Whether the time and its grace are over: a trial that still runs is cut."""
        return self.time_left_s() < -self.grace_s

    def describe_time(self) -> str | None:
        """What the end of the time means, in one line; None where there is no end."""
        return describe_end(self.time_left_s(), self.minimum_s, self.grace_s)

    def _out_of_time(self, reserve_s: float = 0.0) -> str | None:
        """Why no further trial can end in time, `reserve_s` before the end; None when one can."""
        return why_no_time(self.time_left_s() - reserve_s, self._expected_s(), self.minimum_s)

    def _judge(self, finished: Finished) -> None:
        """Stop for causes that no flag can mend."""
        cause = finished.line_of_cause()
        if finished.policy == CUT:
            self.stop("the time is out; what was cut is measured when the same command is typed again")
        elif finished.number == 0:
            self.stop(f"the baseline failed: {cause}", failed=True)
        elif finished.policy in NEEDS_A_PERSON:
            self.stop(cause, failed=True)
        elif finished.kind is TrialKind.CALIBRATION:
            if self.rate_open:
                self.stop(f"the calibration failed, so the request rate is not known: {cause}", failed=True)
        elif finished.status is not TrialStatus.INFEASIBLE:
            (previous, count), what = self._same, cause_of(finished.failure_class, finished.failure_line)
            count = count + 1 if what == previous else 1
            self._same = (what, count)
            if count >= self.stop_after_same_failure:
                self.stop(f"{count} trials in a row failed of one cause that is not the flags: {cause}", failed=True)
