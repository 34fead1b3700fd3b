"""Which configurations go into the confirmation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean


def finalists(scores: Mapping[int, Sequence[float]], k: int = 3) -> tuple[int, ...]:
    """The k configurations to confirm, best first, from all scores that the search measured of each (lower is better).

    Those measured twice or more go before those measured once: the best of many single measurements are the lucky ones,
    and a mean of two has lost half of that. So a search does well to measure its best dozen once more at its end, those
    that this function names for k = 12 (`scripts/bench_decision.py` shows what it gains). Only configurations that keep
    the SLOs should be passed, unless none does.
    """
    most = max((len(found) for found in scores.values()), default=0)
    measured = [key for key, found in scores.items() if found]
    return tuple(sorted(measured, key=lambda key: (len(scores[key]) < min(2, most), fmean(scores[key]), key))[:k])
