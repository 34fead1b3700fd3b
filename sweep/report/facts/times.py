"""Where the night went, from the phases that each trial recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sweep.records import Event
from sweep.store import StoredTrial
from sweep.trial import Phase, TrialStatus

_WAITING, _STARTING = (Phase.HOST,), (Phase.START, Phase.READY)


@dataclass(frozen=True, slots=True)
class Spans:
    """The seconds of one trial. `lost_s` is all of a trial that gave no metrics, and of attempts before the last."""

    waiting_s: float
    startup_s: float
    load_s: float
    other_s: float
    lost_s: float


@dataclass(frozen=True, slots=True)
class TimeRow:
    """One line of the time table; `share` is of the whole."""

    what: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class TimeTable:
    """Where the night went: `rows` add up to `total_s`, which is the time of all trials and that between them.

    Trials that ran side by side count each, so `total_s` may be more than the clock's `wall_s`, which runs from the
    start of the first trial to the end of the last.
    """

    rows: tuple[TimeRow, ...]
    total_s: float
    wall_s: float


def spans_of(events: Sequence[Event], trial: StoredTrial) -> Spans:
    """How the `total_s` of a stored trial divide, by the changes of phase of its last attempt."""
    if trial.status not in (TrialStatus.COMPLETE, TrialStatus.CENSORED):
        return Spans(0.0, 0.0, 0.0, 0.0, lost_s=trial.total_s)
    last = max((event.attempt for event in events), default=0)
    own = [event for event in events if event.attempt == last]
    phases = [event for event in own if event.kind == "phase"]
    if not phases:
        return Spans(0.0, 0.0, 0.0, other_s=trial.total_s, lost_s=0.0)
    # What `total_s` has beyond the last attempt are the attempts before it and the waits between them.
    end_s = max((event.at_s for event in own), default=0.0)
    lost_s = max(0.0, trial.total_s - end_s) if last > 1 else 0.0
    took: dict[str, float] = defaultdict(float)
    for event, after in zip(phases, [*phases[1:], None], strict=True):
        until_s = end_s if after is None else after.at_s
        took[event.phase] += max(0.0, until_s - event.at_s)
    waiting_s = sum(took[phase] for phase in _WAITING)
    startup_s = sum(took[phase] for phase in _STARTING)
    known_s = waiting_s + startup_s + took[Phase.LOAD] + lost_s
    return Spans(waiting_s, startup_s, took[Phase.LOAD], max(0.0, trial.total_s - known_s), lost_s)


def time_table(trials: Iterable[tuple[StoredTrial, Spans]]) -> TimeTable | None:
    """The time table of a study; None before a trial is stored."""
    every = list(trials)
    if not every:
        return None
    runs = sorted((one.started_wall_s, one.started_wall_s + one.total_s) for one, _ in every)
    between_s, reached_s = 0.0, runs[0][1]
    for start_s, end_s in runs[1:]:
        between_s += max(0.0, start_s - reached_s)
        reached_s = max(reached_s, end_s)
    sums = {
        "servers starting": sum(spans.startup_s for _, spans in every),
        "measured rounds, the load client's own start included": sum(spans.load_s for _, spans in every),
        "warming up and stopping": sum(spans.other_s for _, spans in every),
        "waiting for devices to be free": sum(spans.waiting_s for _, spans in every),
        "lost: failed trials and attempts": sum(spans.lost_s for _, spans in every),
        "between trials": between_s,
    }
    total_s = sum(sums.values())
    rows = tuple(TimeRow(what, seconds, seconds / total_s if total_s else 0.0) for what, seconds in sums.items())
    return TimeTable(rows, total_s, reached_s - runs[0][0])
