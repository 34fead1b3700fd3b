"""Of very many trials those that a sampler is shown: it goes through all of them anew for every proposal.

TPE calls at most 25 trials good, so of the bad ones the latest thousand say as much as ten thousand do. No night of one
machine comes to so many: there every trial is shown.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from statistics import fmean

from sweep.searcher.outcome import Told

MOST, BEST = 1_000, 250


def few(told: Sequence[Told], most: int = MOST, best: int = BEST) -> list[int]:
    """The places of those to show, in their order: all of up to `most`, else the `best` ones and the last of the rest.

    Best are those that miss no SLO, then by how much, then by score; on a front by the mean of its ratios.
    """
    if len(told) <= most:
        return list(range(len(told)))
    kept = set(heapq.nsmallest(best, range(len(told)), key=lambda place: (_rank(told[place]), place)))
    for place in reversed(range(len(told))):
        if len(kept) == most:
            break
        kept.add(place)
    return sorted(kept)


def _rank(one: Told) -> tuple[float, float]:
    outcome = one.outcome
    value = fmean(outcome.front) if outcome.front else outcome.value
    if outcome.kind == "infeasible" or value is None:
        return (math.inf, math.inf)
    return (sum(max(0.0, excess) for excess in outcome.violations.values()), value)
