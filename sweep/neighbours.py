"""Whether trials that share a node disturb each other: the baseline twice at a time, beside the baseline alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from sweep.trial import Finished, TrialKind, TrialSpec, TrialStatus

# At the same time on one node: two, since more than two share less than two do, if they share anything.
TOGETHER = 2
# Two-sided 95 %.
_SIGMAS = 1.96


def launches_due(finished: Mapping[int, Finished], live: Iterable[TrialSpec]) -> bool:
    """Whether a launch of the check is still to come, with nothing but the other one beside it."""
    running = [spec.kind for spec in live]
    ended = sum(one.kind is TrialKind.NEIGHBOUR for one in finished.values())
    return all(kind is TrialKind.NEIGHBOUR for kind in running) and ended + len(running) < TOGETHER


def slowdown(finished: Iterable[Finished]) -> float | None:
    """The score of the baseline with a neighbour, 1.0 as alone: the mean of both; None before both are measured."""
    scores = [
        one.score
        for one in finished
        if one.kind is TrialKind.NEIGHBOUR and one.status is TrialStatus.COMPLETE and one.score is not None
    ]
    return math.exp(sum(map(math.log, scores)) / len(scores)) if len(scores) >= TOGETHER else None


def disturb(finished: Iterable[Finished], server_sd: float) -> bool | None:
    """Whether the slowdown is beyond what launches of the same flags differ by; None before it is known.

    `server_sd` is the standard deviation of a launch's log score. The mean of two launches against one more has
    server_sd * sqrt(1 / 2 + 1).
    """
    found = slowdown(finished)
    return None if found is None else abs(math.log(found)) > margin(server_sd)


def margin(server_sd: float) -> float:
    """How far the log of the slowdown must be from 0 to count."""
    return _SIGMAS * server_sd * math.sqrt(1.0 / TOGETHER + 1.0)


def describe(finished: Iterable[Finished], server_sd: float) -> tuple[str, ...]:
    """The outcome in one line; none before it is known."""
    every = tuple(finished)
    found, disturbing = slowdown(every), disturb(every, server_sd)
    if found is None:
        return ()
    beyond = "beyond" if disturbing else "within"
    then = "one trial at a time on a node from here on" if disturbing else "trials go on sharing nodes"
    line = (
        f"two trials at a time on one node: the baseline scores {found:.3f} of alone, {beyond} what launches differ by "
        f"({math.expm1(margin(server_sd)):.0%}): {then}"
    )
    return (line,)
