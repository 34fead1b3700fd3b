"""Percentiles of values whose owners are drawn again and again, without writing out what each draw holds.

A load of 1,000 requests has 100,000 gaps between tokens; 200 draws of it would be twenty million numbers to sum up for
each percentile. Which value a percentile is follows from how many lie below it, so whole runs of values are counted at
once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# As many runs as keep both their number and their length small.
_MOST_RUNS = 512


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """Values in ascending order with their owners, and how many of each run of them every draw holds: what all
    percentiles of one latency share.
    """

    ascending: Array
    owners: NDArray[np.int64]
    draws: NDArray[np.int32]
    edges: NDArray[np.int64]
    inside: NDArray[np.int64]
    reached: NDArray[np.int64]

    @classmethod
    def of(cls, values: Array, owners: NDArray[np.int64], draws: NDArray[np.int32]) -> Self:
        """`owners[i]` is whose `values[i]` is: it occurs in a row of `draws` (rows x owners) as often as that says."""
        order = np.argsort(values)
        ascending, whose = values[order], owners[order]
        runs = max(1, min(_MOST_RUNS, int(len(ascending) ** 0.5)))
        edges = np.linspace(0, len(ascending), runs + 1).astype(np.int64)
        run_of = np.repeat(np.arange(runs), np.diff(edges))
        of_owner = np.bincount(whose * runs + run_of, minlength=draws.shape[1] * runs).reshape(draws.shape[1], runs)
        inside = (draws.astype(float) @ of_owner.astype(float)).astype(np.int64)  # exact: counts are small
        return cls(ascending, whose, draws, edges, inside, inside.cumsum(axis=1))

    def percentile(self, percentile: float) -> Array:
        """numpy's linear percentile (0..100) for each row of the draws. NaN where nothing was drawn."""
        total = self.reached[:, -1]
        place = percentile / 100 * np.maximum(total - 1, 0)
        below = np.floor(place).astype(np.int64)
        low, high = self._value_at(below), self._value_at(np.maximum(np.minimum(below + 1, total - 1), 0))
        return np.where(total > 0, low + (place - below) * (high - low), np.nan)

    def _value_at(self, rank: NDArray[np.int64]) -> Array:
        """The value of this rank, from 0, in each row."""
        rows, last = np.arange(len(self.draws)), len(self.ascending) - 1
        run = np.minimum((self.reached <= rank[:, None]).sum(axis=1), self.reached.shape[1] - 1)
        places = self.edges[run][:, None] + np.arange(int(np.diff(self.edges).max()))
        known = places < self.edges[run + 1][:, None]
        places = np.minimum(places, last)
        counts = np.where(known, self.draws[rows[:, None], self.owners[places]], 0)
        before = self.reached[rows, run] - self.inside[rows, run]
        found = self.edges[run] + ((before[:, None] + counts.cumsum(axis=1) <= rank[:, None]) & known).sum(axis=1)
        return np.asarray(self.ascending[np.minimum(found, last)])
