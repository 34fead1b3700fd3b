"""Which flags made the difference: Optuna's PED-ANOVA on what a search measured, with how sure it is.

PED-ANOVA (Watanabe, Bansal, Hutter, IJCAI 2023) asks how differently a flag's values are spread among the best trials
and among all of them. It asks nothing about values that were never tried.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, create_trial

from sweep.search_space import canonical
from sweep.trial import SEARCHING, Finished, Flag, TrialStatus

# Optuna wants five trials at least among the best, which are a quarter here.
MIN_TRIALS = 20
_BEST_SHARE = 0.25
_LEVEL = 0.9
# Of halves and of shuffles.
_DRAWS = 40
_SWITCH = CategoricalDistribution((0, 1))


@dataclass(frozen=True, slots=True)
class FlagImportance:
    """One flag's `share` of what told the best quarter of the trials from all; the shares add up to 1.

    `low` to `high` is what nine of ten halves of the trials give. `chance` is what a flag without any effect stays
    below in nineteen of twenty shufflings of the scores.
    """

    name: str
    share: float
    low: float
    high: float
    chance: float

    @property
    def beyond_chance(self) -> bool:
        """Whether chance would rarely give so much."""
        return self.share > self.chance


@dataclass(frozen=True, slots=True)
class Importance:
    """Of every flag that was varied, most important first; from `trials` measured trials, of which `needed` are the
    fewest. Empty where there are fewer, or nothing varies.
    """

    flags: tuple[FlagImportance, ...]
    trials: int
    needed: int = MIN_TRIALS


def flag_importance(finished: Sequence[Finished], *, seed: int = 0) -> Importance:
    """The importance of each searched flag for the score of `finished`.

    Trials of the search count that ended with a score and undisturbed; what failed has none. The same trials give the
    same answer. The interval is by random halves: the share in a half of the trials scatters around that in all of them
    about as the latter does around the truth (Politis, Romano and Wolf, Subsampling, 1999, section 2.1).
    """
    every = [one for one in finished if one.kind in SEARCHING and one.status is TrialStatus.COMPLETE]
    trials = sorted((one for one in every if one.score is not None and not one.disturbed), key=lambda one: one.number)
    codes = _codes(trials)
    if len(trials) < MIN_TRIALS or not codes:
        return Importance((), len(trials))
    scores = np.array([one.score for one in trials], dtype=float)
    ask = _Question(trials, codes)
    rng = np.random.default_rng(seed)
    own = ask.shares(scores)
    halves, shuffled = [], []
    for _ in range(_DRAWS):
        half = scores.copy()
        half[rng.permutation(len(scores))[len(scores) // 2 :]] = np.inf  # Optuna leaves these out
        halves.append(ask.shares(half))
        shuffled.append(ask.shares(rng.permutation(scores)))
    tail = (1 - _LEVEL) / 2
    flags = []
    for name, share in own.items():
        low, high = np.quantile([one[name] for one in halves], [tail, 1 - tail])
        chance = float(np.quantile([one[name] for one in shuffled], 0.95))
        flags.append(FlagImportance(name, share, min(share, float(low)), max(share, float(high)), chance))
    return Importance(tuple(sorted(flags, key=lambda one: -one.share)), len(trials))


class _Question:
    """Trials as Optuna's, asked about for several scores of theirs."""

    def __init__(self, trials: Sequence[Finished], codes: Mapping[str, _Code]) -> None:
        self._codes = codes
        with _quiet():
            self._study = optuna.create_study()
            self._study.add_trials([_trial(_params(one, codes), codes) for one in trials])

    def shares(self, scores: NDArray[np.float64]) -> dict[str, float]:
        """Each flag's share, its switch's included, where trial i has the i-th score; one that is infinite is out."""
        with _quiet():
            evaluator = PedAnovaImportanceEvaluator(target_quantile=_BEST_SHARE)
            found = get_param_importances(
                self._study, evaluator=evaluator, target=lambda trial: float(scores[trial.number])
            )
        return {name: found.get(name, 0.0) + found.get(f"{name}?", 0.0) for name in self._codes}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Optuna says that low targets are the good ones, which they are, and that it made a study."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


@dataclass(frozen=True, slots=True)
class _Code:
    """A flag's values as Optuna's: numbers by their rank, others as choices; null is a switch of its own."""

    places: Mapping[tuple[str, Flag], int]
    distribution: BaseDistribution | None
    or_null: bool


def _codes(trials: Sequence[Finished]) -> dict[str, _Code]:
    """The code of every flag with two values or more."""
    codes = {}
    for name in dict.fromkeys(name for one in trials for name in one.flags):
        values = [one.flags[name] for one in trials if name in one.flags]
        known = {canonical(value): value for value in values if value is not None}
        ordered = sorted(known, key=lambda key: (key[0], key[1] if key[0] == "number" else 0.0, str(key[1])))
        or_null = any(value is None for value in values)
        numbers = all(kind == "number" for kind, _ in ordered)
        distribution: BaseDistribution | None = None
        if len(ordered) > 1:
            last = len(ordered) - 1
            distribution = IntDistribution(0, last) if numbers else CategoricalDistribution(tuple(range(last + 1)))
        if distribution is not None or (or_null and ordered):
            codes[name] = _Code({key: place for place, key in enumerate(ordered)}, distribution, or_null)
    return codes


def _params(one: Finished, codes: Mapping[str, _Code]) -> dict[str, int]:
    params = {}
    for name, code in codes.items():
        value = one.flags.get(name)
        if code.or_null:
            params[f"{name}?"] = int(value is not None)
        if value is not None and code.distribution is not None:
            params[name] = code.places[canonical(value)]
    return params


def _trial(point: Mapping[str, int], codes: Mapping[str, _Code]) -> FrozenTrial:
    distributions: dict[str, BaseDistribution] = {}
    for name in point:
        own = codes.get(name)
        distributions[name] = _SWITCH if own is None or own.distribution is None else own.distribution
    return create_trial(params=dict(point), distributions=distributions, value=0.0)
