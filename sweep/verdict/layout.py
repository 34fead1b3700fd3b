"""Configurations by interleaving blocks: the linear model behind every interval of the verdict.

**Model.** The log of a metric of one launch is `configuration + block + launch`, where `launch` is all that a fresh
server brings with it: the server itself, its rounds and its requests. A server is the unit that is repeated, so this
one term, estimated from whole launches, carries all three levels with the degrees of freedom that three launches
really give. A bootstrap of three servers would not: it draws from three values only and its spread is too small by
sqrt(2/3) (Davison & Hinkley 1997, section 3.8). The variance is pooled over the configurations, as in Dunnett,
"A multiple comparison procedure for comparing several treatments with a control", JASA 50 (1955) 1096-1121.

Three corrections:

- Blocks take up drift and the prompts of a block, which differ by design: in an A/A study on a shared CPU p95 TTFT was
  374 and 369 ms in one block, 764 and 749 in the next. They cost degrees of freedom, so below `_FEWEST_DF` of them the
  blocks are left in the launch term, which only widens the intervals.
- The launches of a comparison may agree by luck. Requests drawn again (paired, since a block has one load for all)
  give the least variance that they can have: the estimate is not taken below it.
- Where blocks had the same load, what its prompts do to one configuration and not to the other is the same in every
  block and no spread shows it. It is the covariance of the redrawn differences of two such blocks, and is added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweep.verdict.launches import LaunchFigures
from sweep.verdict.quantiles import Array, f_tail

_FEWEST_DF = 2
# Where the spread of a configuration and the baseline is so improbably beyond that of the others, it is not pooled.
_OWN_SPREAD = 0.02
# Zero is a measurement (no request kept its SLO), but has no logarithm: a thousandth of the largest stands for it.
_LEAST = 1e-3


@dataclass(frozen=True, slots=True)
class Contrast:
    """A difference of logarithms between two configurations: estimate, standard error, degrees of freedom."""

    log_ratio: float
    error: float
    df: float


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The fitted model. `means` (configurations x metrics) are logarithms, as if every configuration had run in every
    block; `spread` (metrics x metrics) is the covariance of a launch, resting on `df` degrees of freedom.
    """

    keys: tuple[int, ...]
    names: tuple[str, ...]
    counts: tuple[int, ...]
    means: Array
    spread: Array
    df: float
    blocked: bool
    _inverse: Array
    _logs: Array
    _redrawn: Array
    _key_at: NDArray[np.int64]
    _block_at: NDArray[np.int64]
    _loads: tuple[tuple[int, ...], ...]

    def metrics(self, key: int) -> dict[str, float]:
        """The geometric mean of each metric over the launches of a configuration, in its unit."""
        return dict(zip(self.names, np.exp(self.means[self.keys.index(key)]).tolist(), strict=True))

    def level_error(self, key: int) -> tuple[Array, float]:
        """The standard error of each mean of `metrics` on the log scale, drift included, and its df."""
        centred = self._logs.copy()
        for place in range(len(self.keys)):
            mine = self._key_at == place
            centred[mine] -= centred[mine].mean(axis=0)
        df = len(centred) - len(self.keys)
        variance = (centred**2).sum(axis=0) / max(1, df)
        return np.sqrt(variance / self.counts[self.keys.index(key)]), float(df)

    def contrast(self, key: int, against: int, weights: Array) -> Contrast:
        """The weighted difference of log metrics between two configurations. `weights` has an entry a metric."""
        one, other = self.keys.index(key), self.keys.index(against)
        pick = np.zeros(self._inverse.shape[0])
        pick[one], pick[other] = 1.0, -1.0
        pooled = float(pick @ self._inverse @ pick) * float(weights @ self.spread @ weights)
        variance, df = pooled, self.df
        own, own_df = self._own(one, other, weights)
        if own > pooled and own_df >= 1 and self.df - own_df >= 1:
            # These two are a part of the pooled spread of their own, so what is left of it is independent of them.
            rest = max(1e-300, (pooled * self.df - own * own_df) / (self.df - own_df))
            if f_tail(own / rest, own_df, self.df - own_df) < _OWN_SPREAD:
                variance, df = own, own_df
        least, shared = self._redrawn_variances(one, other, weights)
        variance = max(variance, least)
        total = variance + shared
        if total > 0:
            df = min(df * (total / variance) ** 2 if variance > 0 else 1e6, 1e6)
        return Contrast(float(weights @ (self.means[one] - self.means[other])), math.sqrt(total), df)

    def within_variance(self, key: int, against: int, weights: Array) -> float:
        """The variance of one launch's weighted log metrics that its rounds and requests alone explain, paired."""
        drawn, _ = self._drawn(self.keys.index(key), self.keys.index(against), weights)
        return float(drawn.var(axis=1).mean()) / 2 if len(drawn) else 0.0

    def _own(self, one: int, other: int, weights: Array) -> tuple[float, float]:
        """The variance of the difference from these two configurations alone, with its df (Welch 1947 unpaired)."""
        mine, its = self._logs[self._key_at == one] @ weights, self._logs[self._key_at == other] @ weights
        if self.blocked:
            ours, theirs = self._pairs(one, other)
            if len(ours) < 2:
                return 0.0, 0.0
            differences = (self._logs[ours] - self._logs[theirs]) @ weights
            return float(np.var(differences, ddof=1)) / len(ours), len(ours) - 1.0
        if min(len(mine), len(its)) < 2:
            return 0.0, 0.0
        parts = [(float(np.var(part, ddof=1)) / len(part), len(part) - 1) for part in (mine, its)]
        total = sum(variance for variance, _ in parts)
        below = sum(variance**2 / df for variance, df in parts)
        return total, total**2 / below if below > 0 else 0.0

    def _pairs(self, one: int, other: int) -> tuple[list[int], list[int]]:
        """Indices of the launches of two configurations in the same block."""
        place = {int(self._block_at[i]): i for i in np.flatnonzero(self._key_at == other).tolist()}
        mine = [i for i in np.flatnonzero(self._key_at == one).tolist() if int(self._block_at[i]) in place]
        return mine, [place[int(self._block_at[i])] for i in mine]

    def _drawn(self, one: int, other: int, weights: Array) -> tuple[Array, list[tuple[int, ...]]]:
        """Redrawn differences (blocks x resamples) of the blocks in which both had the same load, and these loads."""
        pairs = [(i, j) for i, j in zip(*self._pairs(one, other), strict=True) if self._loads[i] == self._loads[j]]
        ours, theirs = [i for i, _ in pairs], [j for _, j in pairs]
        return (self._redrawn[ours] - self._redrawn[theirs]) @ weights, [self._loads[i] for i in ours]

    def _redrawn_variances(self, one: int, other: int, weights: Array) -> tuple[float, float]:
        """The least variance the mean difference can have, and what blocks of the same load share beyond it."""
        drawn, loads = self._drawn(one, other, weights)
        n = len(drawn)
        if n < 2:
            return 0.0, 0.0
        least = float(drawn.var(axis=1, ddof=1).sum()) / n**2
        alike = [(p, q) for p in range(n) for q in range(p) if loads[p] == loads[q]] if len(set(loads)) < n else []
        if not alike:
            return least, 0.0
        covariance = np.cov(drawn)
        mean = sum(float(covariance[p, q]) for p, q in alike) / len(alike)
        # Of the n * n products of a mean's variance those on the diagonal share their load as well.
        return least, max(0.0, mean) * (2 * len(alike) + n) / n**2


def fit(figures: Sequence[LaunchFigures], baseline: int, names: Sequence[str]) -> Layout | None:
    """The model of launches that all have the metrics `names`; None while no spread can be told (df of zero).

    The baseline comes first in `keys`, the others in order of number.
    """
    keys = tuple(sorted({launch.key for launch in figures}, key=lambda key: (key != baseline, key)))
    blocks = sorted({launch.block for launch in figures})
    if len(keys) < 2 or keys[0] != baseline:
        return None
    logs = _logs(np.array([[launch.metrics[name] for name in names] for launch in figures], dtype=float))
    key_at = np.array([keys.index(launch.key) for launch in figures])
    block_at = np.array([blocks.index(launch.block) for launch in figures])
    design = np.eye(len(keys))[key_at]
    blocked = False
    if len(blocks) > 1:
        # Effects that sum to zero over the blocks: a mean of a configuration is then one over all blocks.
        effects = np.vstack([np.eye(len(blocks) - 1), -np.ones(len(blocks) - 1)])[block_at]
        with_blocks = np.hstack([design, effects])
        rank = int(np.linalg.matrix_rank(with_blocks))
        blocked = rank == with_blocks.shape[1] and len(figures) - rank >= _FEWEST_DF
        design = with_blocks if blocked else design
    df = len(figures) - design.shape[1]
    if df < 1:
        return None
    inverse = np.linalg.inv(design.T @ design)
    found = inverse @ design.T @ logs
    residuals = logs - design @ found
    columns = [list(figures[0].metrics).index(name) for name in names]
    return Layout(
        keys=keys,
        names=tuple(names),
        counts=tuple(int((key_at == place).sum()) for place in range(len(keys))),
        means=found[: len(keys)],
        spread=residuals.T @ residuals / df,
        df=float(df),
        blocked=blocked,
        _inverse=inverse,
        _logs=logs,
        _redrawn=_redrawn(figures, columns),
        _key_at=key_at,
        _block_at=block_at,
        _loads=tuple(launch.loads for launch in figures),
    )


def _logs(values: Array) -> Array:
    return np.asarray(np.log(np.maximum(values, np.maximum(values.max(axis=0) * _LEAST, 1e-300))))


def _redrawn(figures: Sequence[LaunchFigures], columns: Sequence[int]) -> Array:
    """Logs of the redrawn metrics (launches x resamples x metrics); a draw without a value is taken as the mean."""
    values = np.array([launch.resampled[:, columns] for launch in figures])
    every = np.array([list(launch.metrics.values()) for launch in figures], dtype=float)
    measured = every[:, columns]
    values = np.where(np.isfinite(values), values, measured[:, None, :])
    return np.asarray(np.log(np.maximum(values, np.maximum(values.max(axis=(0, 1)) * _LEAST, 1e-300))))
