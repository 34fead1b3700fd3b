"""How well a sample knows its percentile, and how many requests one needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sweep.metrics import samples_needed
from sweep.verdict.quantiles import Array, t_quantile
from sweep.verdict.values import Interval

# Beyond so many values ranks by the normal distribution are those of the binomial, within one.
_EXACT = 20_000


def prompts_needed(percentiles: Sequence[float] | float) -> int:
    """The fewest requests that carry these percentiles (0..100): 10 / (1 - p) of the highest, see `samples_needed`."""
    wanted = [percentiles] if isinstance(percentiles, int | float) else percentiles
    return max((samples_needed(percentile) for percentile in wanted), default=1)


def percentile_interval(
    values: ArrayLike,
    percentile: float,
    blocks: ArrayLike | None = None,
    owners: ArrayLike | None = None,
    level: float = 0.95,
) -> Interval | None:
    """The percentile (0..100) of a sample with its interval; None where the sample is too small to have one.

    By order statistics, for any distribution (David & Nagaraja, Order Statistics, section 7.1): the number of values
    below the true percentile is binomial. Not even the largest of 200 values is an upper limit of p99, so there is no
    interval then. `blocks` is a label a value, its round: what rounds differ by is no error, each keeps its share.
    `owners` is whose each value is, such as the request of a gap between tokens: values of one owner are no
    independent draws. Both change how many independent draws the sample is worth, by the variance of the share below
    the percentile (Woodruff, "Confidence intervals for medians and other position measures", JASA 47 (1952) 635-646;
    Korn & Graubard, Survey Methodology 24 (1998) 193-201, section 2). An owner's values must lie in one block.

    Owners are taken for independent draws of one server: how much *another server* differs is the matter of `judge`.
    NaN is left out. Raises ValueError for a percentile outside 0..100.
    """
    if not 0 < percentile < 100:
        raise ValueError(f"{percentile} is not a percentile between 0 and 100")
    sample = np.asarray(values, dtype=float)
    known = np.isfinite(sample)
    sample = sample[known]
    if not len(sample):
        return None
    ascending = np.sort(sample)
    value, n, share = float(np.percentile(ascending, percentile)), len(sample), percentile / 100
    error = (1 - level) / 2
    worth = n
    if blocks is not None or owners is not None:
        labels = np.zeros(n, dtype=np.int64) if blocks is None else _codes(np.asarray(blocks)[known])
        whose = np.arange(n) if owners is None else _codes(np.asarray(owners)[known])
        worth = _worth((sample <= value) - share, labels, whose, share, error)
    low_rank, high_rank = _ranks(worth, share, error)
    if low_rank < 1 or high_rank > worth:
        return None
    # Ranks among `worth` draws, as places among the n there are.
    low, high = math.floor(low_rank * n / worth), math.ceil(high_rank * n / worth)
    return Interval(value, float(ascending[max(low, 1) - 1]), float(ascending[min(high, n) - 1]))


def _worth(above: Array, labels: NDArray[np.int64], whose: NDArray[np.int64], share: float, error: float) -> int:
    """How many independent draws of one distribution know their percentile as well. `above` sums to about zero."""
    there = np.bincount(whose) > 0
    of_owner = np.bincount(whose, weights=above)[there]
    block_of = np.zeros(len(there), dtype=np.int64)
    block_of[whose] = labels
    block_of = block_of[there]
    count = np.bincount(block_of)
    mean = np.bincount(block_of, weights=of_owner) / np.maximum(count, 1)
    variance = float(np.sum((of_owner - mean[block_of]) ** 2)) / len(above) ** 2
    df = len(of_owner) - int(np.count_nonzero(count))
    if variance <= 0 or df < 1:
        return len(of_owner)
    worth = share * (1 - share) / variance
    if len(of_owner) < len(above):
        worth *= (NormalDist().inv_cdf(1 - error) / t_quantile(error, min(float(df), 1000.0))) ** 2
    return max(1, math.floor(worth + 1e-6))


def _codes(labels: NDArray[np.generic]) -> NDArray[np.int64]:
    """Small numbers from 0 in place of labels; such numbers stay, since sorting a million takes long."""
    if labels.dtype.kind == "i" and labels.min() >= 0 and labels.max() <= len(labels):
        return labels.astype(np.int64)
    codes: NDArray[np.int64] = np.unique(labels, return_inverse=True)[1].astype(np.int64).reshape(-1)
    return codes


@lru_cache(maxsize=4096)
def _ranks(n: int, p: float, error: float) -> tuple[int, int]:
    """The ranks, from 1, of the order statistics that the true percentile lies between."""
    if n > _EXACT:
        reach = NormalDist().inv_cdf(1 - error) * math.sqrt(n * p * (1 - p))
        return math.floor(n * p - reach), math.ceil(n * p + reach) + 1
    below = _binomial_cdf(n, p)
    # P(rank of the truth > r) is known exactly from the binomial distribution.
    return int(np.searchsorted(below, error, side="right")), int(np.searchsorted(below, 1 - error)) + 1


def _binomial_cdf(n: int, p: float) -> Array:
    """P(X <= x) for x = 0..n."""
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    x = np.arange(n + 1)
    logs = factorials[n] - factorials - factorials[::-1] + x * math.log(p) + (n - x) * math.log1p(-p)
    return np.asarray(np.minimum(1.0, np.cumsum(np.exp(logs))))
