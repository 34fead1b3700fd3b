"""A stored trial's metrics, computed anew from its requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweep.metric_table import parse_metric
from sweep.metrics import summarize_columns
from sweep.objective import Objective
from sweep.store import StoredTrial, read_request_columns


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
    return tuple(
        Measured(
            summarize_columns(columns, trial.load_s, objective.metrics_needed(), slo=objective.slo),
            columns.completed,
            columns.failed,
        )
        for objective in objectives
    )
