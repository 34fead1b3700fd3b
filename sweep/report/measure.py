"""A stored trial's metrics, computed anew from its requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweep.metric_table import parse_metric
from sweep.metrics import summarize_columns
from sweep.objective import Objective
from sweep.store import StoredTrial, read_request_columns, read_rounds


@dataclass(frozen=True, slots=True)
class Measured:
    """The metrics an objective needs, and how many requests of the trial completed and failed."""

    metrics: Mapping[str, float | None]
    completed: int
    failed: int


def measure(folder: Path, trial: StoredTrial, objectives: Sequence[Objective]) -> tuple[Measured, ...] | None:
    """What each objective needs of a measured trial, its requests read once; None of any other.

    An objective's SLOs define its goodput. Raises HostError when the requests cannot be read.
    """
    if trial.metrics is None:
        return None
    stems = {parse_metric(name).stem for objective in objectives for name in objective.metrics_needed()}
    columns = read_request_columns(folder, trial.number, gaps="itl" in stems)
    if not columns.completed + columns.failed:
        return _imported(folder, trial, objectives)
    return tuple(
        Measured(
            summarize_columns(columns, trial.load_s, objective.metrics_needed(), slo=objective.slo),
            columns.completed,
            columns.failed,
        )
        for objective in objectives
    )


def _imported(folder: Path, trial: StoredTrial, objectives: Sequence[Objective]) -> tuple[Measured, ...]:
    """A measured trial without requests came from elsewhere: its metrics are those that were stored, others None."""
    rounds = read_rounds(folder, trial.number)
    completed, failed = sum(one.completed for one in rounds), sum(one.failed for one in rounds)
    stored = trial.metrics or {}
    return tuple(
        Measured({name: stored.get(name) for name in objective.metrics_needed()}, completed, failed)
        for objective in objectives
    )
