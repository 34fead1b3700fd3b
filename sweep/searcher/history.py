"""The trials that one proposal of Optuna's rests on."""

from __future__ import annotations

import copy
from collections.abc import Container

from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState


class History(InMemoryStorage):
    """Shows a study the trials it is given, in their order, and none of the study's own.

    Optuna's trials cannot be removed or inserted, only added. Here each proposal gets a study of its own over the
    shared history, so that rejected proposals leave no trace and late results take their place by number.
    """

    def __init__(self, trials: list[FrozenTrial]) -> None:
        super().__init__()
        self.trials = trials

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        del study_id
        trials = [trial for trial in self.trials if states is None or trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials
