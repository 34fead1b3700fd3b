"""Trials of a running study in a database, for dashboards. Written to, never read: the Parquet record is the study."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import SQLAlchemyError

from sweep.errors import UserError
from sweep.search_space import Range, SearchSpace
from sweep.searcher.dashboard import LEFT, frozen, open_database, reason
from sweep.trial import SEARCHING, Finished, Flag, Flags

_FLUSH_S = 10.0


class Mirror:
    """Made by `open`. A context manager, at whose end what is still to be written is waited for, a little.

    A thread of its own writes, so that no study waits for a database; what goes wrong is a line of `troubles`.
    """

    def __init__(self, study: optuna.Study, space: SearchSpace, baseline: Flags) -> None:
        self._study, self._space, self._baseline = study, space, baseline
        self._there = {trial.user_attrs.get("trial") for trial in study.get_trials(deepcopy=False)}
        self._todo: queue.SimpleQueue[tuple[Finished, datetime] | None] = queue.SimpleQueue()
        self._troubles: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._failed = 0
        self._thread = threading.Thread(target=self._write_all, name="mirror", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, url: str, name: str, space: SearchSpace, baseline: Flags) -> Self:
        """The study `name` of the database at `url`, made where it is missing. Raises UserError."""
        key = "study.optuna_storage"
        storage = open_database(url, key)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            study = optuna.create_study(storage=storage, study_name=name, direction="minimize", load_if_exists=True)
            return cls(study, space, baseline)
        except (SQLAlchemyError, StorageInternalError) as error:
            raise UserError(f"{key}: that database cannot be used: {reason(error)}") from None

    def add(self, trials: Iterable[Finished]) -> None:
        """Have these there as well, those of the search; each once. Returns at once."""
        now = datetime.now()
        for one in trials:
            if one.kind in SEARCHING and one.number not in self._there:
                self._there.add(one.number)
                self._todo.put((one, now))

    def troubles(self) -> tuple[str, ...]:
        """What went wrong since this was asked last."""
        found = []
        while not self._troubles.empty():
            found.append(self._troubles.get())
        return tuple(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._todo.put(None)
        self._thread.join(_FLUSH_S)
        if self._thread.is_alive():
            self._troubles.put("warning: study.optuna_storage: that database is slow, the last trials are not there")

    def _write_all(self) -> None:
        while (item := self._todo.get()) is not None:
            one, ended = item
            try:
                self._write(one, ended)
            except (SQLAlchemyError, StorageInternalError, KeyError, ValueError, OSError) as error:
                # A KeyError is Optuna's for a study that was deleted there, a ValueError that for one of another space.
                self._failed += 1
                if self._failed == 1:  # once is enough: a database that is gone is gone for every trial
                    self._troubles.put(
                        f"warning: study.optuna_storage: trial {one.number} could not be written there, which is no "
                        f"obstacle: {reason(error)}"
                    )

    def _write(self, one: Finished, ended: datetime) -> None:
        params, spaces = self._params(one.flags)
        made = frozen(one.number, one.status, one.score, params, spaces, one.metrics, one.failure_class)
        made.datetime_complete = ended
        made.datetime_start = ended - timedelta(seconds=one.total_s or 0.0)
        self._study.add_trial(made)

    def _params(self, flags: Flags) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
        """Optuna wants one kind a parameter for all trials: a number that is left to vLLM is none of its parameters."""
        params: dict[str, Any] = {}
        spaces: dict[str, BaseDistribution] = {}
        for one in self._space.parameters:
            value = flags.get(one.name)
            if isinstance(one, Range):
                if isinstance(value, bool) or not isinstance(value, (int, float)):
                    continue
                low, high = min(float(one.low), value), max(float(one.high), value)
                whole = one.integer
                spaces[one.name] = IntDistribution(int(low), int(high)) if whole else FloatDistribution(low, high)
                params[one.name] = int(value) if whole else float(value)
            else:
                choices = _choices([*one.options, self._baseline.get(one.name)])
                shown = LEFT if value is None else value
                if shown in choices:
                    spaces[one.name], params[one.name] = CategoricalDistribution(choices), shown
        return params, spaces


def _choices(values: Iterable[Flag]) -> list[Any]:
    return list(dict.fromkeys(LEFT if value is None else value for value in values))
