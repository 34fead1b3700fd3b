"""The verdict in words."""

from __future__ import annotations

import dataclasses

from sweep.verdict.values import Effect, Interval, Outcome, Verdict


def sentence_of(verdict: Verdict, broken: str | None) -> Verdict:
    """The verdict with its sentence. `broken` is the SLO that the baseline breaks."""
    return dataclasses.replace(verdict, sentence=_words(verdict, broken))


def _words(verdict: Verdict, broken: str | None) -> str:
    leader = verdict.leader
    if leader is None:
        return "No clear winner: too few launches were measured to compare anything."
    launches = f"{verdict.launches} launches of the baseline, {leader.launches} of the leader"
    if verdict.launches == leader.launches:
        launches = f"{verdict.launches} launches each"
    if verdict.winner is not None:
        winner = verdict.effect(verdict.winner)
        assert winner is not None  # a winner is one of the effects
        text = f"Configuration {winner.key} is {gain(winner.score, verdict.level)}"
        if broken is not None:
            slo = "keeps the SLOs" if winner.feasible else "comes nearer to the SLOs"
            text = f"Configuration {winner.key} {slo}: the baseline breaks that on {broken}. It is "
            text += gain(winner.score, verdict.level)
        return f"{text}; {launches}{_tie(verdict, winner)}."
    if verdict.outcome is Outcome.KEEP:
        return f"Keep your flags: {_leader(leader, verdict)}; {launches}."
    return f"No clear winner, keep your flags: {_leader(leader, verdict)}, which may be chance; {launches}."


def gain(score: Interval, level: float) -> str:
    """`12.0 % better (95 % interval 8.1 to 16.0)`; below zero is worse."""
    value = 100 * (1 - score.value)
    text = f"{value:.1f} % better" if value >= 0 else f"{-value:.1f} % worse"
    return f"{text} ({100 * level:g} % interval {100 * (1 - score.high):.1f} to {100 * (1 - score.low):.1f})"


def _leader(leader: Effect, verdict: Verdict) -> str:
    text = f"the best candidate, configuration {leader.key}, measured {gain(leader.score, verdict.level)}"
    if not leader.feasible:
        broken = ", ".join(name for name, excess in leader.violations.items() if excess > 0)
        text += f" and breaks the SLO on {broken}"
    return text


def _tie(verdict: Verdict, winner: Effect) -> str:
    if verdict.leader is None or verdict.leader.key == winner.key:
        return ""
    return (
        f"; configuration {verdict.leader.key} measured {gain(verdict.leader.score, verdict.level)}, which cannot be"
        f" told from it, and changes {verdict.leader.changed} flags instead of {winner.changed}"
    )
