"""Optuna's samplers by the name a study file gives them. `random` and `grid` need no model: see `proposer`.

A sampler is made anew for each proposal, from a seed of its own, over a study that holds the trials of lower number
and no other state. So a sampler that keeps something between its proposals is rebuilt here from those trials.

None of them takes a standard error with a value. TPE reads values by their order; the Gaussian process estimates one
noise for all trials from how much near ones differ, so measuring a point twice tells it more than any number would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from sweep.searcher.axes import Axes

# Trials drawn at random before TPE takes over, the baseline not counted. A night has 30 to 100 trials: ten show each
# parameter's coarse direction (TPE calls a tenth of the trials good, so fewer make one trial the whole of "good").
STARTUP_TRIALS = 10
# A night is few generations: parents of ten leave it three to ten of them.
_POPULATION = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """What a sampler is made for: one proposal. `axes` turn Optuna's parameters into flags and back; `front`: of how
    many metrics a front is looked for, 0 for the one score."""

    number: int
    seed: int
    axes: Axes
    front: int


class CannotTell(Exception):
    """A sampler has nothing to go by for this trial: the `otherwise` of its recipe proposes."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a sampler is made and used.

    `startup`: trials it wants to be shown, one of them complete, before it is asked; until then points are random.
    `asks`: proposals that break a constraint, repeat or are refused before a random point is taken. `credits`: whether
    a point that shares another trial's measurement is shown with it, else it is one to keep away from. `whole`: every
    trial is shown with every parameter and finite values, the number beside a null being the middle of its range.
    `steps`: every second time before it is asked the best flags so far are left in one flag instead (see
    `sweep.searcher.steps`), and every third time after, where it is known of a flag what it does. `otherwise`: who
    proposes where the sampler raises `CannotTell`.
    """

    make: Callable[[Asked], BaseSampler]
    startup: int = STARTUP_TRIALS
    asks: int = 16
    credits: bool = False
    whole: bool = False
    steps: bool = False
    otherwise: Recipe | None = None


class _Nsga2(NSGAIISampler):
    """NSGA-II whose generations are the trials in their order, ten by ten: Optuna's own are marks on the trials that
    it proposed itself."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed, population_size=_POPULATION)
        # Optuna draws mutated parameters by the very numbers that decided on the mutation: here by others.
        self._drawn = RandomSampler(seed=seed ^ 0x5BD1E995)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._drawn.sample_independent(study, trial, param_name, param_distribution)

    def get_trial_generation(self, study: Study, trial: FrozenTrial) -> int:
        del trial
        return len(_complete(study)) // _POPULATION

    def get_population(self, study: Study, generation: int) -> list[FrozenTrial]:
        return _complete(study)[generation * _POPULATION : (generation + 1) * _POPULATION]


def _complete(study: Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def _tpe(asked: Asked) -> BaseSampler:
    return TPESampler(seed=asked.seed, n_startup_trials=0, multivariate=True)


def _gp(asked: Asked) -> BaseSampler:
    return GPSampler(seed=asked.seed, n_startup_trials=0, independent_sampler=RandomSampler(seed=asked.seed))


def _nsga2(asked: Asked) -> BaseSampler:
    return _Nsga2(asked.seed)


def _cmaes(asked: Asked) -> BaseSampler:
    from sweep.searcher.cma_sampler import CmaSampler  # it brings scipy's statistics, a second or two of each start

    return CmaSampler(asked.seed, asked.axes.distributions())


MODELS: Mapping[str, Recipe] = {
    "tpe": Recipe(_tpe, steps=True),
    # Each ask fits the process anew: seconds of one core where many are needed.
    "gp": Recipe(_gp, asks=6, credits=True, whole=True, steps=True),
    "nsga2": Recipe(_nsga2, whole=True),
    "cmaes": Recipe(_cmaes, startup=1, whole=True),
}
