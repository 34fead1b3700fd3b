"""Expected improvement over the twin's ensemble and a model of what it is off by.

The logarithm of a setting's score against today's flags is taken for normal around

    log simulated + f - f0 - e0,   f: what the twin is off by there;  f0, e0: by today's flags, and their one launch

with the variance of the ensemble and of these, and none of a launch's own noise: what is looked for is a better
setting, not a lucky launch. `f` is a Gaussian process over the distance of settings (Rasmussen and Williams, 2006,
chapter 2), so a bias of the twin in some corner is learnt from the launches there. A measured score differs from a
simulated one by f - f0 + e - e0: where launches are noisy little is learnt from few of them, and neither that the twin
is right nor that it is wrong. So its size and the noise are those that the measured scores leave likely, from what is
to be expected before. Expected improvement of a log-normal value has a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sweep.twin import Engine
from sweep.twin.values import Floats

# How far, in octaves of a setting, what the twin is off by carries over.
_REACH = 2.0
# How much the twin is off by before scores tell: on recorded launches of vLLM on CPU 6 to 9 % beyond noise. And how
# sure that is, as that a launch's noise is what it was taken for: standard deviations of logarithms.
_OFF, _OFF_SD, _NOISE_SD = 0.06, 0.7, 0.4
# Tried: so many standard deviations to either side.
_TRIED = np.linspace(-2.5, 2.5, 11)


@dataclass(frozen=True, slots=True)
class Residuals:
    """What measured settings differ from the twin by, as logarithms of scores against a launch of `base`.

    `noise` is a launch's own standard deviation, `size` that of what the twin is off by, as far as known now.
    """

    engines: tuple[Engine, ...]
    base: Engine
    noise: float
    size: float
    distance: Callable[[Engine, Engine], float]
    _values: Floats
    _inverse: Floats

    @classmethod
    def of(
        cls,
        engines: Sequence[Engine],
        values: Sequence[float],
        base: Engine,
        noise: float,
        distance: Callable[[Engine, Engine], float],
    ) -> Residuals:
        """From launches beside the one of `base` that scores are against; `noise` is what is expected of it."""
        found = np.array(values, np.float64)
        alike = _shape(engines, base, distance)
        sizes, noises = _OFF * np.exp(_OFF_SD * _TRIED), noise * np.exp(_NOISE_SD * _TRIED)
        prior = -0.5 * _TRIED**2
        logs = np.array(
            [
                [
                    prior[i] + prior[j] + _likelihood(found, _covariance(alike, sizes[i], noises[j]))
                    for j in range(len(noises))
                ]
                for i in range(len(sizes))
            ]
        )
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        size = math.sqrt(float(weights.sum(axis=1) @ sizes**2))
        likely = math.sqrt(float(weights.sum(axis=0) @ noises**2))
        inverse = np.asarray(np.linalg.inv(_covariance(alike, size, likely)), np.float64)
        return cls(tuple(engines), base, likely, size, distance, found, inverse)

    def at(self, engine: Engine) -> tuple[float, float]:
        """Mean and variance of what the score of a setting differs from the simulated one by."""
        near = self._beside(engine)
        mean = float(near @ self._inverse @ self._values)
        return mean, self._left(engine, engine, near, near)

    def between(self, one: Engine, other: Engine) -> float:
        """The variance of the difference of two settings' residuals: what is common to both is not in it."""
        mine, theirs = self._beside(one), self._beside(other)
        known = self._left(one, one, mine, mine) + self._left(other, other, theirs, theirs)
        return max(known - 2.0 * self._left(one, other, mine, theirs), 0.0)

    def _left(self, one: Engine, other: Engine, mine: Floats, theirs: Floats) -> float:
        before = self.size**2 * _against(self.distance, self.base, one, other) + self.noise**2
        return before - float(mine @ self._inverse @ theirs)

    def _beside(self, engine: Engine) -> Floats:
        """Covariance with each of the measured residuals: they share what today's flags are off by."""
        shape = [_against(self.distance, self.base, engine, one) for one in self.engines]
        return np.array(shape, np.float64) * self.size**2 + self.noise**2


def _alike(steps: float) -> float:
    return math.exp(-0.5 * (steps / _REACH) ** 2)


def _against(distance: Callable[[Engine, Engine], float], base: Engine, one: Engine, other: Engine) -> float:
    """Covariance of what two settings are off by more than `base`, for a size of 1."""
    return 1.0 + _alike(distance(one, other)) - _alike(distance(one, base)) - _alike(distance(other, base))


def _shape(engines: Sequence[Engine], base: Engine, distance: Callable[[Engine, Engine], float]) -> Floats:
    rows = [[_against(distance, base, one, other) for other in engines] for one in engines]
    return np.array(rows, np.float64).reshape(len(engines), len(engines))


def _covariance(shape: Floats, size: float, noise: float) -> Floats:
    """Of measured residuals: each launch has noise of its own, and that of today's flags is in all of them."""
    found: Floats = size**2 * shape + noise**2 * (np.eye(len(shape)) + 1.0)
    return found


def _likelihood(values: Floats, covariance: Floats) -> float:
    """Logarithm of the density of a normal distribution, but for a constant."""
    if not len(values):
        return 0.0
    _, log = np.linalg.slogdet(covariance)
    return -0.5 * (float(log) + float(values @ np.linalg.solve(covariance, values)))


def expected_improvement(mean_log: float, variance: float, best: float) -> float:
    """How much below `best` a value is on average, counting 0 where it is above, if its logarithm is normal."""
    if variance <= 0:
        return max(best - math.exp(mean_log), 0.0)
    deviation = math.sqrt(variance)
    ahead = (math.log(best) - mean_log) / deviation
    gain = best * below(ahead) - math.exp(mean_log + variance / 2.0) * below(ahead - deviation)
    return max(gain, 0.0)


def below(deviations: float) -> float:
    """The share of a standard normal distribution below a value."""
    return 0.5 * math.erfc(-deviations / math.sqrt(2.0))


def information(figures: Floats, noise: float) -> float:
    """What a launch would tell of the costs: figures of each member of the ensemble (rows) as logarithms.

    Half the logarithm of the determinant of 1 + covariance / noise^2: the mutual information of costs and figures, both
    taken for normal (Lindley, 1956), in nats.
    """
    known = figures[:, np.all(np.isfinite(figures), axis=0)]
    if known.shape[0] < 2 or not known.shape[1]:
        return 0.0
    scaled = (known - known.mean(axis=0)) / (noise * math.sqrt(known.shape[0] - 1))
    _, log = np.linalg.slogdet(np.eye(known.shape[0]) + scaled @ scaled.T)
    return 0.5 * float(log)
