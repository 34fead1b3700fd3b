"""The study in the order of its trials: scores, the best so far, confirmations, and the drift of the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sweep.objective import Objective
from sweep.recommend import rank_key
from sweep.reference import block_reference
from sweep.report.facts.sheets import Sheet
from sweep.store import StoredTrial
from sweep.trial import SEARCHING, Finished, Flags, Score, TrialKind, TrialStatus


class State(StrEnum):
    """How a trial counts; the words of the legends."""

    KEPT = "measured"
    BREAKS = "breaks an SLO"
    CENSORED = "stopped early"
    DISTURBED = "disturbed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Moment:
    """One trial. `began_s` counts from the first trial's start; `score` is None where there is none.

    `best` is the score of the best trial that counts, this one included, while the search runs; None outside of it. A
    launch of the confirmation is scored against the baseline's launch of its block.
    """

    number: int
    kind: TrialKind
    state: State
    began_s: float
    score: float | None
    best: float | None


def state_of(one: Finished) -> State:
    """How a trial counts."""
    if one.status is TrialStatus.CENSORED:
        return State.CENSORED
    if one.status is not TrialStatus.COMPLETE:
        return State.FAILED
    if one.disturbed and one.kind is not TrialKind.BASELINE:
        return State.DISTURBED
    return State.BREAKS if any(excess > 0 for excess in one.violations.values()) else State.KEPT


def history_of(
    trials: Sequence[StoredTrial], known: Mapping[int, Finished], sheets: Mapping[int, Sheet], objective: Objective
) -> tuple[Moment, ...]:
    """All stored trials but calibrations and soaks, by number.

    `known` has the scores of the search by the report's objective, `sheets` the metrics of every trial.
    """
    if not trials:
        return ()
    first_s = min(one.started_wall_s for one in trials)
    launches = _launches(trials, sheets)
    best: Finished | None = None
    moments = []
    for one in trials:
        mine = known[one.number]
        if one.kind in (TrialKind.CALIBRATION, TrialKind.SOAK):
            continue
        state, score = state_of(mine), mine.score
        if one.kind is TrialKind.CONFIRM:
            found = _launch_score(one, launches, sheets, objective)
            score = None if found is None else found.value
            if found is not None and not found.feasible and state is State.KEPT:
                state = State.BREAKS
        if one.kind in SEARCHING and state in (State.KEPT, State.BREAKS) and mine.score is not None:
            best = mine if best is None or rank_key(mine) < rank_key(best) else best
        shown = best.score if best is not None and one.kind in (*SEARCHING, TrialKind.DRIFT) else None
        moments.append(Moment(one.number, one.kind, state, one.started_wall_s - first_s, score, shown))
    return tuple(moments)


@dataclass(frozen=True, slots=True)
class _Launch:
    """A trial with the metrics of today's objective, for `block_reference`."""

    kind: TrialKind
    flags: Flags
    block: int | None
    number: int
    metrics: Mapping[str, float | None] | None


def _launches(trials: Sequence[StoredTrial], sheets: Mapping[int, Sheet]) -> list[_Launch]:
    wanted = (TrialKind.BASELINE, TrialKind.CONFIRM)
    return [
        _Launch(one.kind, one.flags, one.block, one.number, sheets[one.number].metrics or None)
        for one in trials
        if one.kind in wanted
    ]


def _launch_score(
    one: StoredTrial, launches: Sequence[_Launch], sheets: Mapping[int, Sheet], objective: Objective
) -> Score | None:
    """The score of a launch of the confirmation against the baseline's launch of its block; None without one."""
    reference = block_reference(launches, one.block)
    own = sheets[one.number].metrics
    return objective.score(own, reference) if reference and own else None
