"""CMA-ES for one proposal, rebuilt from the trials that are shown.

Optuna's own CMA-ES keeps its state on the trials it proposed, and learns from no others. Here the trials are told to
`cmaes` a generation after the other in their order, whoever proposed them, and the next point is drawn from what comes
out: nothing but the trials and a seed decides it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import cmaes
import numpy as np
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

# Of a parameter's range, around the first trial: three of them reach every corner.
_SIGMA = 0.3

Vector = np.ndarray[Any, np.dtype[np.float64]]
Numeric = IntDistribution | FloatDistribution


class CmaSampler(BaseSampler):
    """Proposes numbers for parameters that are all numeric; one objective. The first trial is where it starts."""

    def __init__(self, seed: int, distributions: dict[str, BaseDistribution]) -> None:
        self._seed = seed
        self._numeric = {name: one for name, one in distributions.items() if isinstance(one, Numeric)}
        if len(self._numeric) < len(distributions):
            raise ValueError("CMA-ES proposes numbers, and nothing else")
        self._asked = 0

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Every parameter."""
        del study, trial
        return dict(self._numeric)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """A draw from what the trials so far have made of the distribution."""
        del trial, search_space
        told = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        start = self._point(told[0]) if told else np.full(len(self._numeric), 0.5)
        bounds = np.tile([0.0, 1.0], (len(self._numeric), 1))
        found = cmaes.CMA(mean=start, sigma=_SIGMA, bounds=bounds, seed=self._seed)
        ranks = dict(_ranks(told))
        size = found.population_size
        for first in range(0, len(told) - size + 1, size):
            found.tell([(self._point(one), ranks[one.number]) for one in told[first : first + size]])
        for _ in range(self._asked):  # asked again for the same trial: the next draw
            found.ask()
        self._asked += 1
        point = found.ask()
        return {name: _value(one, share) for (name, one), share in zip(self._numeric.items(), point, strict=True)}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Never asked: every parameter is in the relative search space."""
        del study, trial, param_distribution
        raise AssertionError(f"{param_name} is not among the parameters")

    def _point(self, trial: FrozenTrial) -> Vector:
        shares = [_share(one, trial.params[name]) for name, one in self._numeric.items()]
        return np.clip(np.array(shares, dtype=np.float64), 0.0, 1.0)


def _ranks(trials: Sequence[FrozenTrial]) -> Iterator[tuple[int, float]]:
    """Places, best first: those that miss no constraint by value, then the others by how much they miss. CMA-ES knows
    no constraints and reads values by their order alone."""

    def key(trial: FrozenTrial) -> tuple[float, float]:
        missed = sum(max(0.0, excess) for excess in trial.constraints.values())
        return missed, 0.0 if missed else float(trial.value or 0.0)

    order = sorted({key(trial) for trial in trials})
    places = {found: float(place) for place, found in enumerate(order)}
    yield from ((trial.number, places[key(trial)]) for trial in trials)


def _edges(one: Numeric) -> tuple[float, float]:
    """The ends of a range on the scale that is searched; those of whole numbers are half a number further out."""
    margin = 0.5 if isinstance(one, IntDistribution) else 0.0
    low, high = one.low - margin, one.high + margin
    return (math.log(low), math.log(high)) if one.log else (low, high)


def _share(one: Numeric, value: float) -> float:
    low, high = _edges(one)
    return ((math.log(value) if one.log else value) - low) / (high - low)


def _value(one: Numeric, share: float) -> int | float:
    low, high = _edges(one)
    exact = low + float(share) * (high - low)
    exact = math.exp(exact) if one.log else exact
    if isinstance(one, IntDistribution):
        return min(max(round(exact), one.low), one.high)
    return min(max(exact, one.low), one.high)
