"""From the launches of a check to its answer: held, regressed, or cannot tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sweep.confirm import Confirmed
from sweep.recommend import Recommendation
from sweep.search_space import flags_key
from sweep.trial import Finished, TrialStatus
from sweep.verdict import Effect, gain

BASELINE, RECOMMENDED = 0, 1


class Result(StrEnum):
    """What a check came to."""

    HELD = "held"
    REGRESSED = "regressed"
    CANNOT_TELL = "cannot tell"

    @property
    def exit_code(self) -> int:
        """0 held, 1 regressed, 2 cannot tell."""
        return list(Result).index(self)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result with its reason. `effect` is the recommended flags against the baseline, None where too few launches
    could be measured.
    """

    result: Result
    sentence: str
    effect: Effect | None


def decide(
    found: Confirmed | None, launches: Sequence[Finished], said: Recommendation, *, width: float, why: str | None
) -> Answer:
    """The answer. `found` is the verdict on the launches, `said` the study's recommendation, `width` the width of an
    interval that is sharp enough to tell (`confirm.width`). `why` is what cut the check short, None where nothing did.

    Held: better than the baseline beyond doubt, SLOs included. Regressed: the flags no longer work while the baseline
    does; an SLO is broken that the baseline keeps; the interval lies at or beyond "no better"; it is sharp enough and
    holds "no better"; or it lies wholly below what the study said. Anything else cannot be told.
    """
    lost = _cannot_work(launches, said)
    if lost is not None:
        return lost
    effect = None if found is None else found.verdict.effect(RECOMMENDED)
    if found is None or effect is None:
        cause = why or _cause(launches) or "two launches of each are needed, and fewer could be measured"
        return Answer(Result.CANNOT_TELL, f"Cannot tell: {cause}.", None)
    now = f"{gain(effect.score, found.verdict.level)} than the baseline"
    broken = [name for name, excess in effect.violations.items() if excess > 0]
    if effect.clear:
        return Answer(Result.HELD, f"Held: {now}{_beside(effect, said)}.", effect)
    if broken and found.verdict.baseline_feasible:
        slo = ", ".join(broken)
        return Answer(
            Result.REGRESSED, f"Regressed: it breaks the SLO on {slo}, which the baseline keeps; {now}.", effect
        )
    if effect.score.low >= 1.0:
        return Answer(Result.REGRESSED, f"Regressed: worse than the baseline beyond doubt, {now}.", effect)
    if said.gain_low_share is not None and effect.gain.high < said.gain_low_share:
        return Answer(Result.REGRESSED, f"Regressed: {now}{_beside(effect, said)}.", effect)
    if effect.score.width <= width:
        return Answer(Result.REGRESSED, f"Regressed: no longer better for all that can be told, {now}.", effect)
    cut = f"; {why}" if why else ""
    return Answer(Result.CANNOT_TELL, f"Cannot tell: {now}{cut}.", effect)


def _cannot_work(launches: Sequence[Finished], said: Recommendation) -> Answer | None:
    """The flags of one of the two turned out impossible; the baseline's first, since then nothing can be said."""
    lost = [one for one in launches if one.status is TrialStatus.INFEASIBLE]
    ours = [one for one in lost if said.flags is not None and flags_key(one.flags) == flags_key(said.flags)]
    if others := [one for one in lost if one not in ours]:
        return Answer(
            Result.CANNOT_TELL, f"Cannot tell: the baseline does not work here: {others[0].line_of_cause()}.", None
        )
    if ours:
        return Answer(
            Result.REGRESSED, f"Regressed: the recommendation does not work here: {ours[0].line_of_cause()}.", None
        )
    return None


def _cause(launches: Sequence[Finished]) -> str | None:
    failed = [one for one in launches if one.status is TrialStatus.FAILED]
    return failed[-1].line_of_cause() if failed else None


def _beside(effect: Effect, said: Recommendation) -> str:
    """What the study had said, and whether this is less."""
    if said.gain_low_share is None or said.gain_high_share is None or said.gain_share is None:
        return "; the study had not confirmed it"
    less = "; that is less than" if effect.gain.high < said.gain_low_share else ";"
    return (
        f"{less} the study said {100 * said.gain_share:.1f} % "
        f"({100 * said.gain_low_share:.1f} to {100 * said.gain_high_share:.1f})"
    )
