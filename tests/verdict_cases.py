"""Launches with figures given outright, for the tests of the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sweep.objective import Objective
from sweep.verdict import LaunchFigures

TTFT = Objective({"p95_ttft_ms": 1.0}, {})


def launch(key: int, block: int, metrics: Mapping[str, float | None], loads: Sequence[int] = ()) -> LaunchFigures:
    """One launch whose redrawn requests say nothing."""
    values = [np.nan if value is None else value for value in metrics.values()]
    return LaunchFigures(key, block, 0, tuple(loads) or (block,), dict(metrics), np.tile(np.array(values), (10, 1)))


def launches(rows: Mapping[int, Sequence[float]], name: str = "p95_ttft_ms") -> list[LaunchFigures]:
    """A configuration a row, a block a column."""
    return [launch(key, block, {name: value}) for key, row in rows.items() for block, value in enumerate(row)]
