"""What measured scores say of the twin: how far off it is, beyond the noise of launches, and whether it is of use."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sweep.twinning.basis import distance
from sweep.twinning.improve import Residuals
from sweep.twinning.scene import UNFIT, Scene

# What one launch differs from the next by, at least.
LEAST_NOISE = 0.02
# So many scores tell whether the twin is of use: they speak against it where they are off by as much as figures may be,
# or by this much and in another order.
_ENOUGH_TO_TELL, _OFF, _ORDER = 5, 0.1, 0.3


def residuals_of(scene: Scene) -> tuple[Residuals, list[tuple[float, float]]]:
    """What measured scores differ from simulated ones by, and the pairs themselves (simulated, measured), those of the
    launch that scores are against left out."""
    engines, values, pairs = [], [], []
    base = next(launch for launch, one in scene.measured if one is scene.base)
    for launch, one in scene.measured:
        own = scene.objective.score(scene.metrics(launch), scene.metrics(base)).value
        simulated = scene.score(one.played, scene.base.played)
        if own and simulated and launch is not base:
            engines.append(one.engines[0])
            values.append(math.log(own / simulated))
            pairs.append((simulated, own))
    return Residuals.of(engines, values, scene.base.engines[0], _noise(scene), distance), pairs


def _noise(scene: Scene) -> float:
    """What a launch's score is expected to be off by, as a logarithm: what its rounds differ by where they are alike,
    otherwise what launches lie from the fit."""
    errors = []
    if len(set(scene.landscape.rates)) == 1:
        for launch, _ in scene.measured:
            scores = [value for value in launch.trial.round_scores if value]
            if len(scores) > 1:
                errors.append(float(np.std(np.log(scores), ddof=1)) / math.sqrt(len(scores)))
    found = np.median(errors) if errors else np.mean(scene.learnt.calibration.spread)
    return max(float(found), LEAST_NOISE)


def misfit(pairs: Sequence[tuple[float, float]], residuals: Residuals) -> str | None:
    """Why the measured scores speak against the twin; None where they do not, or no more than noise would."""
    if len(pairs) < _ENOUGH_TO_TELL:
        return None
    simulated, measured = np.log(np.array(pairs)).T
    off = _beyond(float(np.std(measured - simulated)), residuals.noise)
    ranks = [np.argsort(np.argsort(values)) for values in (simulated, measured)]
    order = float(np.corrcoef(ranks[0], ranks[1])[0, 1]) if np.ptp(simulated) > 0 and np.ptp(measured) > 0 else 1.0
    if off > UNFIT or (off > _OFF and order < _ORDER):
        return f"measured scores are off by {math.expm1(off):.0%} and in another order (rank correlation {order:.2f})"
    return None


def _beyond(off: float, noise: float) -> float:
    """What is left of a standard deviation beyond that of noise."""
    return math.sqrt(max(off**2 - noise**2, 0.0))


def off_by(scores: Sequence[tuple[float, float]], residuals: Residuals) -> float:
    """What measured scores are off by from simulated ones, as a logarithm: root of the mean square beyond a launch's
    noise. As far as the launch of today's flags was a bad or a lucky one, which is in all of them, it does not count.
    """
    if not scores:
        return 0.0
    simulated, measured = np.log(np.array(scores)).T
    lucky, _ = residuals.at(residuals.base)
    return _beyond(float(np.sqrt(np.mean((measured - simulated - lucky) ** 2))), residuals.noise)
