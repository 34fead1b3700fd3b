"""A study's record as an Optuna storage, for tools that read one, such as optuna-dashboard."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import DuplicatedStudyError, StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, ProgrammingError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from sweep.errors import UserError
from sweep.store import StoredTrial
from sweep.trial import SEARCHING, Flag, TrialStatus

_STATES = {TrialStatus.COMPLETE: TrialState.COMPLETE, TrialStatus.CENSORED: TrialState.PRUNED}
LEFT = "(vLLM)"
_AGAIN_S = 0.5
# A database that does not answer is given up.
_LIBPQ = {"connect_timeout": 10}
_LIBPQ_DRIVERS = ("psycopg", "psycopg2", "psycopg2cffi")


def write_storage(trials: Sequence[StoredTrial], scores: Mapping[int, float | None], target: str, name: str) -> int:
    """Write the trials of the search into a new journal file of Optuna, or a database by its address; returns how many.

    The value is the score, 1.0 for today's flags and lower is better. Trials stopped early are PRUNED, those without
    a verdict FAIL. Metrics, status, command and `stood_in` are user attributes. Raises UserError for a file, or a study
    in the database, that exists already, and for what cannot be written.
    """
    if "://" in target:
        return _write(trials, scores, open_database(target, target), target, name)
    path = Path(target)
    if path.exists():
        raise UserError(f"{path} exists already: remove it, or choose another file")
    return _write(trials, scores, JournalStorage(JournalFileBackend(str(path))), target, name)


def open_database(url: str, shown: str) -> RDBStorage:
    """An Optuna storage in a database, such as `postgresql+psycopg://user@host/name` or `sqlite:///file`.

    No connection outlasts what it is made for. Passwords are those of the environment (PGPASSWORD, ~/.pgpass). Raises
    UserError, which begins with `shown`, for an address that is none, or has a password in it, and for a database that
    does not answer.
    """
    try:
        parts = make_url(url)
        if parts.password is not None or "password" in parts.query:
            raise UserError(f"{shown}: put the password in the environment (PGPASSWORD) or ~/.pgpass, not in there")
        own = _LIBPQ if parts.get_backend_name() == "postgresql" and parts.get_driver_name() in _LIBPQ_DRIVERS else {}
        return _database(url, {"poolclass": NullPool, "connect_args": own})
    except ImportError:
        raise UserError(f"{shown}: no driver for that database; pip install 'psycopg[binary]' for PostgreSQL") from None
    except (SQLAlchemyError, StorageInternalError, RuntimeError, ValueError) as error:
        raise UserError(f"{shown}: that database cannot be used: {reason(error)}") from None


def _database(url: str, engine: dict[str, Any], tries: int = 5) -> RDBStorage:
    """Two drivers that make the tables of an empty database at once are in each other's way."""
    try:
        return RDBStorage(url, engine_kwargs=engine)
    except (ProgrammingError, IntegrityError, StorageInternalError):
        if tries == 1:
            raise
    time.sleep(_AGAIN_S)
    return _database(url, engine, tries - 1)


def reason(error: BaseException) -> str:
    """What a database says of an error, in one line; SQLAlchemy adds links and statements of its own."""
    origin = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
    lines = str(getattr(origin, "orig", None) or origin).splitlines()
    return lines[0][:300] if lines else type(error).__name__


def _write(
    trials: Sequence[StoredTrial],
    scores: Mapping[int, float | None],
    storage: BaseStorage,
    target: str,
    name: str,
) -> int:
    searched = [one for one in trials if one.kind in SEARCHING]
    spaces = {flag: _space([one.flags.get(flag) for one in searched]) for flag in _names(searched)}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(storage=storage, study_name=name, direction="minimize")
        for one in searched:
            failure = None if one.failure is None else one.failure.failure_class
            params = {flag: _value(one.flags.get(flag), spaces[flag]) for flag in spaces}
            made = frozen(one.number, one.status, scores.get(one.number), params, spaces, one.metrics, failure)
            made.set_user_attr("command", one.command)
            if one.stood_in is not None:
                made.set_user_attr("stood_in", one.stood_in)
            made.datetime_start = datetime.fromtimestamp(one.started_wall_s)
            made.datetime_complete = datetime.fromtimestamp(one.started_wall_s + one.total_s)
            study.add_trial(made)
    except DuplicatedStudyError:
        raise UserError(f"{target} has a study {name} already: delete it there, or choose another database") from None
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}") from None
    except (SQLAlchemyError, StorageInternalError) as error:
        raise UserError(f"cannot write {target}: {reason(error)}") from None
    return len(searched)


def frozen(
    number: int,
    status: TrialStatus,
    score: float | None,
    params: Mapping[str, Any],
    spaces: Mapping[str, BaseDistribution],
    metrics: Mapping[str, float | None] | None,
    failure: str | None,
) -> FrozenTrial:
    """A trial as Optuna has it. `spaces`: of each of `params`; `failure`: the class of one."""
    state = _STATES.get(status, TrialState.FAIL)
    if state is TrialState.COMPLETE and score is None:
        state = TrialState.FAIL
    attributes: dict[str, Any] = {
        "trial": number,
        "status": str(status),
        **({} if failure is None else {"failure": failure}),
        **{name: value for name, value in (metrics or {}).items() if value is not None},
    }
    return create_trial(
        state=state,
        value=score if state is not TrialState.FAIL else None,
        params=dict(params),
        distributions=dict(spaces),
        user_attrs=attributes,
    )


def _names(trials: Sequence[StoredTrial]) -> list[str]:
    return list(dict.fromkeys(flag for one in trials for flag in one.flags))


def _space(values: Sequence[Flag]) -> BaseDistribution:
    """A distribution that holds every value that was tried; numbers stay numbers where nothing was left to vLLM."""
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numbers) < len(values):
        return CategoricalDistribution(list(dict.fromkeys(LEFT if value is None else value for value in values)))
    if all(isinstance(value, int) for value in numbers):
        return IntDistribution(int(min(numbers)), int(max(numbers)))
    return FloatDistribution(min(numbers), max(numbers))


def _value(value: Flag, space: BaseDistribution) -> Any:
    return LEFT if value is None and isinstance(space, CategoricalDistribution) else value
