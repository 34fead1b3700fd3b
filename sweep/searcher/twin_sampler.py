"""The twin as an Optuna sampler: it proposes what the twin would measure next, and is told what was measured alone.

Where the twin cannot tell (`Advice.kind` "unfit"), or all of its list is known or refused, it raises `CannotTell`, and
the recipe of `tpe` proposes in its place. Where nothing is promising any more it raises `NothingLeft`, and the search
ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from sweep.plan_asks import NothingLeft
from sweep.searcher.axes import Params
from sweep.searcher.samplers import MODELS, Asked, CannotTell, Recipe
from sweep.trial import Flags
from sweep.twinning import Advice

Advise = Callable[[int, Sequence[Flags]], Advice]


def twin_recipe(advise: Advise) -> Recipe:
    """The recipe of the sampler `twin`. `advise(number, taken)`: see `sweep.twinning.Adviser`."""
    # Asked again, it takes the next of its list, which is as good as any random point a hundred times over.
    return Recipe(lambda asked: TwinSampler(asked, advise), startup=0, asks=64, otherwise=MODELS["tpe"])


class TwinSampler(BaseSampler):
    """Proposes for one trial; see `twin_recipe`."""

    def __init__(self, asked: Asked, advise: Advise) -> None:
        self._asked, self._advise = asked, advise
        self._params: Params = {}

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Empty, since the twin proposes whole points. Raises CannotTell and NothingLeft."""
        del trial
        shown = [self._asked.axes.decode(one.params) for one in study.get_trials(deepcopy=False)]
        advice = self._advise(self._asked.number, shown)
        if advice.kind == "done":
            raise NothingLeft(advice.reason)
        encoded = (self._asked.axes.encode(flags) for flags in advice.ranked if flags not in shown)
        params = next((params for params in encoded if params is not None), None)
        if params is None:
            raise CannotTell(advice.reason)
        self._params = params
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Nothing: see `sample_independent`."""
        del study, trial, search_space
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The twin's value. That of a number whose switch is off does not count: any will do."""
        del study, trial
        if param_name in self._params:
            return self._params[param_name]
        return param_distribution.to_external_repr(getattr(param_distribution, "low", 0))
