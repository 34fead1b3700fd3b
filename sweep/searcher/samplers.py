"""Optuna's samplers by the name a study file gives them. `random` and `grid` need no model: see `proposer`.

A sampler is made anew for each proposal, from a seed of its own, over a study that holds the trials of lower number
and no other state. So a sampler that keeps something between its proposals needs a recipe that rebuilds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from optuna.samplers import BaseSampler, TPESampler

from sweep.searcher.axes import Axes

# Trials drawn at random before TPE takes over, the baseline not counted. A night has 30 to 100 trials: ten show each
# parameter's coarse direction (TPE calls a tenth of the trials good, so fewer make one trial the whole of "good").
STARTUP_TRIALS = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """What a sampler is made for: one proposal. `axes` turn Optuna's parameters into flags and back; `front`: of how
    many metrics a front is looked for, 0 for the one score."""

    number: int
    seed: int
    axes: Axes
    front: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a sampler is made and used.

    `startup`: trials it wants to be shown, one of them complete, before it is asked; until then points are random.
    `asks`: proposals that break a constraint, repeat or are refused before a random point is taken. `credits`: whether
    a point that shares another trial's measurement is shown with it, else it is one to keep away from.
    """

    make: Callable[[Asked], BaseSampler]
    startup: int = STARTUP_TRIALS
    asks: int = 16
    credits: bool = False


def _tpe(asked: Asked) -> BaseSampler:
    return TPESampler(seed=asked.seed, n_startup_trials=0, multivariate=True)


MODELS: Mapping[str, Recipe] = {"tpe": Recipe(_tpe)}
