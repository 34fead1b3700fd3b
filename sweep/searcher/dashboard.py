"""A study's record as an Optuna storage, for tools that read one, such as optuna-dashboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweep.errors import UserError
from sweep.store import StoredTrial
from sweep.trial import SEARCHING, Flag, TrialStatus

_STATES = {TrialStatus.COMPLETE: TrialState.COMPLETE, TrialStatus.CENSORED: TrialState.PRUNED}
_LEFT = "(vLLM)"


def write_storage(trials: Sequence[StoredTrial], scores: Mapping[int, float | None], path: Path, name: str) -> int:
    """Write the trials of the search into a new journal file of Optuna; returns how many.

    The value is the score, 1.0 for today's flags and lower is better. Trials stopped early are PRUNED, those without
    a verdict FAIL. Metrics, status and command are user attributes. Raises UserError for a file that exists already, or
    cannot be written.
    """
    if path.exists():
        raise UserError(f"{path} exists already: remove it, or choose another file")
    searched = [one for one in trials if one.kind in SEARCHING]
    spaces = {flag: _space([one.flags.get(flag) for one in searched]) for flag in _names(searched)}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path))), study_name=name, direction="minimize"
        )
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    for one in searched:
        study.add_trial(_frozen(one, scores.get(one.number), spaces))
    return len(searched)


def _frozen(one: StoredTrial, score: float | None, spaces: Mapping[str, BaseDistribution]) -> FrozenTrial:
    state = _STATES.get(one.status, TrialState.FAIL)
    if state is TrialState.COMPLETE and score is None:
        state = TrialState.FAIL
    attributes: dict[str, Any] = {
        "trial": one.number,
        "status": str(one.status),
        "command": one.command,
        **({"failure": one.failure.failure_class} if one.failure is not None else {}),
        **{name: value for name, value in (one.metrics or {}).items() if value is not None},
    }
    made = create_trial(
        state=state,
        value=score if state is not TrialState.FAIL else None,
        params={flag: _value(one.flags.get(flag), spaces[flag]) for flag in spaces},
        distributions=dict(spaces),
        user_attrs=attributes,
    )
    made.datetime_start = datetime.fromtimestamp(one.started_wall_s)
    made.datetime_complete = datetime.fromtimestamp(one.started_wall_s + one.total_s)
    return made


def _names(trials: Sequence[StoredTrial]) -> list[str]:
    return list(dict.fromkeys(flag for one in trials for flag in one.flags))


def _space(values: Sequence[Flag]) -> BaseDistribution:
    """A distribution that holds every value that was tried; numbers stay numbers where nothing was left to vLLM."""
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numbers) < len(values):
        return CategoricalDistribution(list(dict.fromkeys(_LEFT if value is None else value for value in values)))
    if all(isinstance(value, int) for value in numbers):
        return IntDistribution(int(min(numbers)), int(max(numbers)))
    return FloatDistribution(min(numbers), max(numbers))


def _value(value: Flag, space: BaseDistribution) -> Any:
    return _LEFT if value is None and isinstance(space, CategoricalDistribution) else value
