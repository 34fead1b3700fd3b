"""The twin as an Optuna sampler: it proposes what the twin would measure next, and is told what was measured alone.

Where the twin cannot tell (`Advice.kind` "unfit") Optuna's TPE proposes in its place. Where nothing is promising any
more it raises `NothingLeft`, and the search ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from sweep.plan_asks import NothingLeft
from sweep.searcher.axes import Params
from sweep.searcher.samplers import STARTUP_TRIALS, Asked, Recipe
from sweep.trial import Flags
from sweep.twinning import Advice

Advise = Callable[[int, Sequence[Flags]], Advice]


def twin_recipe(advise: Advise) -> Recipe:
    """The recipe of the sampler `twin`. `advise(number, taken)`: see `sweep.twinning.Adviser`."""
    # Asked again, it takes the next of its list, which is as good as any random point a hundred times over.
    return Recipe(lambda asked: TwinSampler(asked, advise), startup=0, asks=64)


class TwinSampler(BaseSampler):
    """Proposes for one trial; see `twin_recipe`."""

    def __init__(self, asked: Asked, advise: Advise) -> None:
        self._asked, self._advise = asked, advise
        self._tpe = TPESampler(seed=asked.seed, n_startup_trials=STARTUP_TRIALS, multivariate=True)
        self._params: Params | None = None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Empty where the twin proposes, since it proposes whole points; TPE's otherwise."""
        shown = [self._asked.axes.decode(one.params) for one in study.get_trials(deepcopy=False)]
        advice = self._advise(self._asked.number, shown)
        if advice.kind == "done":
            raise NothingLeft(advice.reason)
        encoded = (self._asked.axes.encode(flags) for flags in advice.ranked if flags not in shown)
        self._params = next((params for params in encoded if params is not None), None)
        return {} if self._params is not None else self._tpe.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """TPE's, where it proposes."""
        return {} if self._params is not None else self._tpe.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The twin's value; that of a number whose switch is off does not count."""
        if self._params is None or param_name not in self._params:
            return self._tpe.sample_independent(study, trial, param_name, param_distribution)
        return self._params[param_name]
