"""Percentiles of values whose owners are drawn again and again, without writing out what each draw holds.

A load of 1,000 requests has 100,000 gaps between tokens; 200 draws of it would be twenty million numbers to sum up for
each percentile. Which value a percentile is follows from how many lie below it, so whole runs of values are counted at
once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# As many runs as keep both their number and their length small.
_MOST_RUNS = 512


def resampled_percentiles(
    ascending: Array, owners: NDArray[np.int64], draws: NDArray[np.int32], percentile: float
) -> Array:
    """numpy's linear percentile (0..100) for each row of `draws` (rows x owners: how often each owner is drawn).

    `owners[i]` is whose `ascending[i]` is: it occurs in a row as often as its owner was drawn. NaN where none was.
    """
    runs = max(1, min(_MOST_RUNS, int(len(ascending) ** 0.5)))
    edges = np.linspace(0, len(ascending), runs + 1).astype(np.int64)
    run_of = np.repeat(np.arange(runs), np.diff(edges))
    of_owner = np.bincount(owners * runs + run_of, minlength=draws.shape[1] * runs).reshape(draws.shape[1], runs)
    inside = (draws.astype(float) @ of_owner.astype(float)).astype(np.int64)  # exact: counts are small
    reached = inside.cumsum(axis=1)
    total = reached[:, -1]
    place = percentile / 100 * np.maximum(total - 1, 0)
    below = np.floor(place).astype(np.int64)
    rows = np.arange(len(draws))

    def value_at(rank: NDArray[np.int64]) -> Array:
        """The value of this rank, from 0, in each row."""
        run = np.minimum((reached <= rank[:, None]).sum(axis=1), runs - 1)
        places = edges[run][:, None] + np.arange(int(np.diff(edges).max()))
        known = places < edges[run + 1][:, None]
        places = np.minimum(places, len(ascending) - 1)
        counts = np.where(known, draws[rows[:, None], owners[places]], 0)
        before = reached[rows, run] - inside[rows, run]
        found = edges[run] + ((before[:, None] + counts.cumsum(axis=1) <= rank[:, None]) & known).sum(axis=1)
        return np.asarray(ascending[np.minimum(found, len(ascending) - 1)])

    low, high = value_at(below), value_at(np.maximum(np.minimum(below + 1, total - 1), 0))
    return np.where(total > 0, low + (place - below) * (high - low), np.nan)
