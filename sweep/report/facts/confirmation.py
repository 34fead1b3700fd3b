"""What was launched again, as a plot needs it: one row a configuration, the baseline first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sweep.confirm import BASELINE, Confirmed
from sweep.report.facts.history import Moment
from sweep.search_space import flags_key
from sweep.store import StoredTrial
from sweep.trial import Flags, TrialKind
from sweep.verdict import Interval


@dataclass(frozen=True, slots=True)
class ConfirmedRow:
    """One configuration, known by the trial of the search that found it.

    `score` is None of the baseline, which is 1 by definition. `launch_scores` are those of its single launches, each
    against the baseline's launch of its block. `search_score` is what the search had believed.
    """

    key: int
    flags: Flags
    launches: int
    score: Interval | None
    launch_scores: tuple[float, ...]
    search_score: float | None
    feasible: bool
    recommended: bool


def confirmed_rows(
    confirmed: Confirmed, trials: Sequence[StoredTrial], moments: Sequence[Moment]
) -> tuple[ConfirmedRow, ...]:
    """The baseline, then the candidates, best first."""
    verdict = confirmed.verdict
    scores = {moment.number: moment.score for moment in moments}
    launches = [one for one in trials if one.kind is TrialKind.CONFIRM]

    def of(flags: Flags) -> tuple[float, ...]:
        own = [one for one in launches if flags_key(one.flags) == flags_key(flags)]
        return tuple(score for one in own if (score := scores.get(one.number)) is not None)

    searched = {one.key: one.search_score for one in verdict.shrinkage}
    keeps = confirmed.recommended is None
    base = confirmed.flags.get(BASELINE)
    rows = []
    if base is not None:
        feasible = verdict.baseline_feasible
        # Against its own launch of the block each is 1: nothing to show of its spread.
        rows.append(ConfirmedRow(BASELINE, base, verdict.launches, None, (), None, feasible, keeps))
    rows += [
        ConfirmedRow(
            key=effect.key,
            flags=confirmed.flags[effect.key],
            launches=effect.launches,
            score=effect.score,
            launch_scores=of(confirmed.flags[effect.key]),
            search_score=searched.get(effect.key),
            feasible=effect.feasible,
            recommended=effect.key == confirmed.recommended,
        )
        for effect in verdict.effects
    ]
    return tuple(rows)
