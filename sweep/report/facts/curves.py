"""The distribution of each latency of one trial, as few numbers as a plot needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sweep.metric_table import LATENCIES
from sweep.metrics import RequestColumns

# The same shares for every curve, close together where the slow requests are.
SHARES = (
    0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9,
    0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995, 0.999, 1.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Curve:
    """One latency: `SHARES[i]` of `count` values are at most `values_ms[i]`, interpolated as percentiles are."""

    count: int
    values_ms: tuple[float, ...]


def curves_of(columns: RequestColumns) -> Mapping[str, Curve]:
    """The curve of every latency (`ttft`, `tpot`, `itl`, `e2el`) that the completed requests define."""
    found = {}
    for stem in LATENCIES:
        values = np.sort(columns.samples(stem))
        if len(values):
            # Linear between neighbours, as np.percentile; sorted once, since there may be a million gaps.
            places = np.array(SHARES) * (len(values) - 1)
            found[stem] = Curve(len(values), tuple(np.interp(places, np.arange(len(values)), values).tolist()))
    return found
