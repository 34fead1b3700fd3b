"""Expected improvement over the twin's ensemble and a model of what it is off by.

The logarithm of a setting's score is taken for normal around

    log simulated + r,   r: measured / simulated of settings near it

with the variance of the ensemble, of `r`, and none of the launch's own noise: what is looked for is a better setting,
not a lucky launch. `r` is a Gaussian process over the distance of settings (Rasmussen and Williams, 2006, chapter 2),
so a bias of the twin in some corner is learnt from the launches there. Expected improvement of a log-normal value has a
closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sweep.twin import Engine
from sweep.twin.values import Floats

# How far, in octaves of a setting, what the twin is off by carries over; and how much it is off by before that is
# known.
_REACH, _LEAST_OFF = 2.0, 0.03


@dataclass(frozen=True, slots=True)
class Residuals:
    """What measured settings differ from the twin by, as logarithms; `noise` is a launch's own standard deviation."""

    engines: Sequence[Engine]
    values: Floats
    noise: float
    size: float
    distance: Callable[[Engine, Engine], float]

    @classmethod
    def of(
        cls,
        engines: Sequence[Engine],
        values: Sequence[float],
        noise: float,
        distance: Callable[[Engine, Engine], float],
    ) -> Residuals:
        """From measured settings; the size of what the twin is off by is taken from them."""
        found = np.array(values, np.float64)
        spread = float(np.mean(found**2)) if len(found) else 0.0
        return cls(engines, found, noise, math.sqrt(max(spread - noise**2, _LEAST_OFF**2)), distance)

    def at(self, engine: Engine) -> tuple[float, float]:
        """Mean and variance of the residual of a setting."""
        prior = self.size**2
        if not len(self.values):
            return 0.0, prior
        near = np.array([self._alike(engine, one) for one in self.engines])
        between = np.array([[self._alike(one, other) for other in self.engines] for one in self.engines])
        solved = np.linalg.solve(between + self.noise**2 * np.eye(len(between)), np.stack([self.values, near], axis=1))
        return float(near @ solved[:, 0]), max(prior - float(near @ solved[:, 1]), 0.0)

    def _alike(self, one: Engine, other: Engine) -> float:
        return self.size**2 * math.exp(-0.5 * (self.distance(one, other) / _REACH) ** 2)


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
