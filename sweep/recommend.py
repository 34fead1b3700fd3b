"""From finished trials to a recommendation: the best flags, or "keep your flags"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from sweep.search_space import canonical, flags_key
from sweep.trial import CUT, SEARCHING, Finished, Flags, TrialKind, TrialStatus


class Verdict(StrEnum):
    """What the study came to."""

    BETTER = "better"
    KEEP = "keep your flags"
    NO_CLEAR_WINNER = "no clear winner"
    NOTHING_YET = "nothing measured yet"
    NO_BASELINE = "no baseline"
    ALL_FAILED = "all failed"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The verdict with its trial. `gain_share` is 1 - score: 0.12 means 12 % better than the baseline.

    `gain_low_share` to `gain_high_share` is the 95 % interval of a `confirmed` one. `flags` are those to use, today's
    included; None where there is nothing to say.
    """

    verdict: Verdict
    number: int | None
    flags: Flags | None
    score: float | None
    gain_share: float | None
    sentence: str
    confirmed: bool = False
    gain_low_share: float | None = None
    gain_high_share: float | None = None


def rank_key(trial: Finished) -> tuple[bool, float, float]:
    """Sorts trials best first: those that keep every SLO, then by how far they miss, then by score."""
    excess = sum(max(0.0, value) for value in trial.violations.values())
    return (excess > 0, excess, trial.score if trial.score is not None else float("inf"))


def recommend(trials: Iterable[Finished]) -> Recommendation:
    """The best trial of a search against its baseline, which nothing confirmed.

    Trials that were cut do not count: they are not decided. Only COMPLETE trials with a score count, and none that was
    disturbed (a throttling device, say). Among equals the baseline wins, then the lower trial number. The winner is the
    best of single noisy measurements: the sentence says "unconfirmed".
    """
    decided = [t for t in trials if t.policy != CUT and t.kind in SEARCHING]
    if not decided:
        return Recommendation(Verdict.NOTHING_YET, None, None, None, None, "Nothing measured yet.")
    scored = [t for t in decided if t.status is TrialStatus.COMPLETE and t.score is not None]
    scored = [t for t in scored if not t.disturbed or t.kind is TrialKind.BASELINE]
    if not scored:
        return Recommendation(Verdict.ALL_FAILED, None, None, None, None, "No trial could be measured.")
    baseline = next((t for t in scored if t.kind is TrialKind.BASELINE), None)
    if baseline is None:
        return Recommendation(Verdict.NO_BASELINE, None, None, None, None, "The baseline could not be measured.")
    best = min(scored, key=lambda t: (rank_key(t), t.kind is not TrialKind.BASELINE, t.number))
    if best is baseline or rank_key(best) >= rank_key(baseline):
        sentence = "Keep your flags: no trial beat the baseline" + _slo_note(baseline) + "."
        return Recommendation(Verdict.KEEP, baseline.number, baseline.flags, baseline.score, 0.0, sentence)
    assert best.score is not None  # every trial in `scored` has one
    gain = 1.0 - best.score
    how = f"{gain:.1%} better than the baseline" if gain > 0 else f"{-gain:.1%} worse than the baseline by the weights"
    if rank_key(best)[0] is not rank_key(baseline)[0]:
        how += ", and it keeps the SLOs, which the baseline does not"
    sentence = f"Trial {best.number} is {how}{_slo_note(best)} (unconfirmed: one measurement each)."
    return Recommendation(Verdict.BETTER, best.number, best.flags, best.score, gain, sentence)


def nearest_to_today(found: Recommendation, baseline: Flags, prefer: Callable[[Flags], Flags]) -> Recommendation:
    """An unconfirmed recommendation with the flags that `prefer` names among those provably the same as the winner's.

    Those nearer to `baseline` are the smaller change for the same measurement; where they are today's own, the winner
    was ahead by luck alone, and today's flags stay.
    """
    if found.verdict is not Verdict.BETTER or found.confirmed or found.flags is None:
        return found
    flags = prefer(found.flags)
    if flags_key(flags) == flags_key(baseline):
        sentence = (
            f"Keep your flags: trial {found.number}, the best one, is the same to the engine as they are, by its "
            "own counters."
        )
        return Recommendation(Verdict.KEEP, 0, flags, 1.0, 0.0, sentence)
    names = [name for name, value in flags.items() if canonical(value) != canonical(found.flags.get(name))]
    if not names:
        return found
    words = ", ".join(f"{name} {found.flags.get(name)}" for name in names)
    values = ", ".join("left to vLLM" if flags[name] is None else str(flags[name]) for name in names)
    sentence = f"{found.sentence} By the engine's counters its {words} made no difference: {values} instead."
    return replace(found, flags=flags, sentence=sentence)


def not_for_production(found: Recommendation, word: str) -> Recommendation:
    """The same of trials that no server ran; `word` says how they came about, such as "replayed"."""
    sentence = f"{found.sentence} But this is {word}, not measured: no recommendation for production, no best.yaml."
    return replace(found, sentence=sentence)


def _slo_note(trial: Finished) -> str:
    broken = [name for name, excess in trial.violations.items() if excess > 0]
    return f"; it breaks the SLO on {', '.join(broken)}" if broken else ""


def changed_flags(flags: Flags, baseline: Flags) -> Mapping[str, tuple[object, object]]:
    """The flags that differ, as (baseline, recommended)."""
    return {name: (baseline.get(name), value) for name, value in flags.items() if baseline.get(name) != value}
