"""Which trial runs next, and when the study stops. No Ray, no Optuna: decisions only.

The baseline runs first and alone, since every score is a ratio to it. After it, trials are proposed until the asked
number is reached, the time is out, nothing is left to propose, or a cause is met that no flag can mend.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from sweep.trial import CUT, Finished, Flags, TrialKind, TrialSpec, TrialStatus

# A trial is planned to take as long as the slowest of the last few, and this much more.
_MARGIN = 1.1
_RECENT = 5
# A trial that still runs so long after the end of the time is cut: this, or this share of a short time.
_GRACE_S, _GRACE_SHARE = 30.0, 0.02
# Policies of a failure after which no further launch makes sense.
NEEDS_A_PERSON = ("stop_now", "host")


class Proposes(Protocol):
    """What the plan asks of the optimiser."""

    def propose(self, number: int, pending: Sequence[Flags]) -> Flags | None:
        """Flags for trial `number`, or None when nothing is left."""

    def hear(self, finished: Finished) -> None:
        """A trial ended."""


@dataclass(slots=True)
class StudyPlan:
    """The state of a night. `next()` gives a trial to run, None for "not now", or raises StopIteration at the end.

    `minimum_s` is what no trial of this study can be shorter than, whatever the machine: before one was measured it
    decides whether another can end in time. `reserve_s` of the time left is kept for what follows the search.
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
    reserve_s: float = 0.0
    stop_reason: str | None = None
    failed: bool = False
    finished: dict[int, Finished] = field(default_factory=dict)
    live: dict[int, TrialSpec] = field(default_factory=dict)
    busy_devices: set[str] = field(default_factory=set)
    _again: list[TrialSpec] = field(default_factory=list)
    _lost: dict[int, int] = field(default_factory=dict)
    _same: tuple[str | None, int] = (None, 0)

    def next(self) -> TrialSpec | None:
        """The next trial; None when one must end first. Raises StopIteration when no further trial will come."""
        if self.stop_reason is not None:
            raise StopIteration(self.stop_reason)
        number = self._again[0].number if self._again else self._next_number()
        if number >= self.trials:
            self._end("all trials done")
            return None
        if (reason := self._out_of_time()) is not None:
            self._end(reason)
            return None
        if self.busy_devices:
            self._pause()
            return None
        if len(self.live) >= self.concurrent:
            return None
        if self._again:
            return self._start(self._again.pop(0))
        if number == 0:
            return self._start(TrialSpec(0, TrialKind.BASELINE, self.baseline_flags))
        baseline = self.finished.get(0)
        if baseline is None:
            return None
        if baseline.metrics is None:
            self.stop(f"the baseline failed: {baseline.line_of_cause()}", failed=True)
            raise StopIteration(self.stop_reason)
        pending = [spec.flags for spec in self.live.values()]
        flags = self.proposer.propose(number, pending)
        if flags is None:
            self._end("every combination of the search space is known")
            return None
        return self._start(TrialSpec(number, TrialKind.SEARCH, flags, baseline.metrics))

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
        elif not earlier:
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

    def _pause(self) -> None:
        if not self.live:
            raise StopIteration("busy devices are taken out first")

    def _end(self, reason: str) -> None:
        """No new trial will come: the end once nothing is live, otherwise a wait for what is."""
        if not self.live:
            self.stop(reason)
            raise StopIteration(reason)

    def _next_number(self) -> int:
        taken = {*self.finished, *self.live}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def expected_left_s(self) -> float | None:
        """Seconds until the asked trials are done, by the last few; None before the first has ended."""
        each_s = self._expected_s()
        if each_s is None:
            return None
        return min(each_s * (self.trials - len(self.finished)) / self.concurrent, max(0.0, self.time_left_s()))

    def _expected_s(self) -> float | None:
        timed = [f for f in self.finished.values() if f.total_s is not None]
        # A start that fails at once says nothing of how long one takes that does not.
        whole = [f for f in timed if f.status is TrialStatus.COMPLETE] or timed
        return max((f.total_s or 0.0 for f in whole[-_RECENT:]), default=None)

    def overdue(self) -> bool:
        """Whether the time and its grace are over: a trial that still runs is cut."""
        return self._left_s() < -self.grace_s

    def describe_time(self) -> str | None:
        """What the end of the time means, in one line; None where there is no end."""
        left_s = self._left_s()
        if left_s == float("inf"):
            return None
        ends = datetime.now().astimezone() + timedelta(seconds=left_s)
        shortest = f" (a load takes {self.minimum_s:.0f} s or more)" if self.minimum_s >= 1 else ""
        return (
            f"the search ends at {ends:%H:%M:%S}: no trial starts that would end later{shortest}; one that still runs "
            f"{self.grace_s:.0f} s after is cut, and measured when the same command is typed again"
        )

    def _left_s(self) -> float:
        return self.time_left_s() - self.reserve_s

    def _out_of_time(self) -> str | None:
        """Why no further trial can end in time; None when one can."""
        left_s, expected_s = self._left_s(), self._expected_s()
        if expected_s is None and self.minimum_s > left_s > 0:
            return f"the time left, {left_s:.0f} s, is shorter than the load of one trial, {self.minimum_s:.0f} s"
        if left_s <= 0 or (expected_s is not None and expected_s * _MARGIN > left_s):
            return "the time left is shorter than a trial"
        return None

    def _judge(self, finished: Finished) -> None:
        """Stop for causes that no flag can mend."""
        cause = finished.line_of_cause()
        if finished.policy == CUT:
            self.stop("the time is out; what was cut is measured when the same command is typed again")
        elif finished.number == 0:
            self.stop(f"the baseline failed: {cause}", failed=True)
        elif finished.policy in NEEDS_A_PERSON:
            self.stop(cause, failed=True)
        elif finished.status is not TrialStatus.INFEASIBLE:
            previous, count = self._same
            count = count + 1 if finished.failure_class == previous else 1
            self._same = (finished.failure_class, count)
            if count >= self.stop_after_same_failure:
                self.stop(f"{count} trials in a row failed of one cause that is not the flags: {cause}", failed=True)


def grace_of(time_left_s: float) -> float:
    """How long after the end of a time a trial that has begun may go on, in seconds."""
    return min(_GRACE_S, _GRACE_SHARE * time_left_s)


def deadline_clock(budget_s: float | None, started: float | None = None) -> Callable[[], float]:
    """Seconds left of a budget that began at monotonic time `started` (default: now); infinite without a budget."""
    if budget_s is None:
        return lambda: float("inf")
    begin = time.monotonic() if started is None else started
    return lambda: begin + budget_s - time.monotonic()
