"""How well a sample knows its percentile, and how many requests one needs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from sweep.metrics import samples_needed
from sweep.verdict.quantiles import Array
from sweep.verdict.values import Interval

_RESAMPLES = 2000


def prompts_needed(percentiles: Sequence[float] | float) -> int:
    """The fewest requests that carry these percentiles (0..100): 10 / (1 - p) of the highest, see `samples_needed`."""
    wanted = [percentiles] if isinstance(percentiles, int | float) else percentiles
    return max((samples_needed(percentile) for percentile in wanted), default=1)


def percentile_interval(
    values: ArrayLike, percentile: float, blocks: ArrayLike | None = None, level: float = 0.95, seed: int = 0
) -> Interval | None:
    """The percentile (0..100) of a sample with its interval; None where the sample is too small to have one.

    Without `blocks` from order statistics, for any distribution (David & Nagaraja, Order Statistics, section 7.1): the
    number of values below the true percentile is binomial. Not even the largest of 200 values is an upper limit of p99,
    so there is no interval then. With `blocks`, a label a value such as its round, by a bootstrap
    that draws within each block, so that every round keeps its share; needs at least `prompts_needed` values, else the
    same as without.

    Both take requests for independent draws of one server: how much *another server* differs is the matter of `judge`.
    NaN is left out. Raises ValueError for a percentile outside 0..100.
    """
    if not 0 < percentile < 100:
        raise ValueError(f"{percentile} is not a percentile between 0 and 100")
    sample = np.asarray(values, dtype=float)
    known = np.isfinite(sample)
    ascending = np.sort(sample[known])
    if not len(ascending):
        return None
    value = float(np.percentile(ascending, percentile))
    if blocks is not None and len(ascending) >= samples_needed(percentile):
        labels = np.asarray(blocks)[known]
        low, high = _bootstrap(sample[known], labels, percentile, level, seed)
        return Interval(value, low, high)
    below = _binomial_cdf(len(ascending), percentile / 100)
    # Ranks from 1: P(rank of the truth > r) is known exactly from the binomial distribution.
    error = (1 - level) / 2
    low_rank = int(np.searchsorted(below, error, side="right"))
    high_rank = int(np.searchsorted(below, 1 - error)) + 1
    if low_rank < 1 or high_rank > len(ascending):
        return None
    return Interval(value, float(ascending[low_rank - 1]), float(ascending[high_rank - 1]))


def _binomial_cdf(n: int, p: float) -> Array:
    """P(X <= x) for x = 0..n."""
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    x = np.arange(n + 1)
    logs = factorials[n] - factorials - factorials[::-1] + x * math.log(p) + (n - x) * math.log1p(-p)
    return np.asarray(np.minimum(1.0, np.cumsum(np.exp(logs))))


def _bootstrap(sample: Array, labels: ArrayLike, percentile: float, level: float, seed: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    marks = np.asarray(labels)
    groups = [sample[marks == label] for label in np.unique(marks)]
    rows = max(1, 2_000_000 // len(sample))
    found: list[Array] = []
    for at in range(0, _RESAMPLES, rows):
        size = min(rows, _RESAMPLES - at)
        drawn = np.concatenate([group[rng.integers(0, len(group), (size, len(group)))] for group in groups], axis=1)
        found.append(np.asarray(np.percentile(drawn, percentile, axis=1)))
    low, high = np.percentile(np.concatenate(found), [50 * (1 - level), 50 * (1 + level)])
    return float(low), float(high)
