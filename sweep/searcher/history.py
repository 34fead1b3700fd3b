"""The trials that one proposal of Optuna's rests on."""

from __future__ import annotations

import copy
import math
from collections.abc import Container, Mapping, Sequence

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState


class History(InMemoryStorage):
    """Shows a study the trials it is given, in their order, and none of the study's own.

    Optuna's trials cannot be removed or inserted, only added. Here each proposal gets a study of its own over the
    shared history, so that rejected proposals leave no trace and late results take their place by number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trials: list[FrozenTrial] = []

    def show(self, trial: FrozenTrial) -> None:
        """Adds a trial, numbered by its place from 1 on: 0 is the one that is asked for."""
        numbered = copy.copy(trial)
        numbered.number = numbered._trial_id = len(self.trials) + 1
        self.trials.append(numbered)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        del study_id
        trials = [trial for trial in self.trials if states is None or trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials


def whole(trial: FrozenTrial, distributions: Mapping[str, BaseDistribution], worst: Sequence[float]) -> FrozenTrial:
    """The trial with every parameter, in one order, and with finite values: some samplers see no others.

    A number beside a null is the middle of its range; what was never measured is as bad as the `worst` that was.
    """
    values = None
    if trial.state.is_finished():
        values = [one if math.isfinite(one) else bad for one, bad in zip(trial.values, worst, strict=True)]
    return FrozenTrial(
        number=trial.number,
        trial_id=trial._trial_id,
        state=trial.state,
        value=None,
        values=values,
        datetime_start=trial.datetime_start,
        datetime_complete=trial.datetime_complete,
        params={name: trial.params.get(name, _middle(one)) for name, one in distributions.items()},
        distributions=dict(distributions),
        user_attrs={},
        system_attrs=trial.system_attrs,
        intermediate_values={},
    )


def _middle(one: BaseDistribution) -> int | float:
    if isinstance(one, IntDistribution):
        return round(math.sqrt(one.low * one.high)) if one.log else (one.low + one.high) // 2
    if isinstance(one, FloatDistribution):
        return math.sqrt(one.low * one.high) if one.log else (one.low + one.high) / 2
    assert isinstance(one, CategoricalDistribution)  # never absent: only numbers stand beside a null
    choice = one.choices[0]
    assert isinstance(choice, int)
    return choice
