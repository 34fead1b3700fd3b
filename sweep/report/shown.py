"""Which metrics a page shows of a trial, and which of them a confirmation gives intervals for."""

from __future__ import annotations

from sweep.metric_table import LATENCIES, RATES
from sweep.objective import Objective
from sweep.report.source import Source

_STATISTICS = ("p50", "p95", "p99")


def page_metrics(objective: Objective) -> tuple[str, ...]:
    """Every metric a page shows: p50, p95 and p99 of each latency, the rates, and what the objective needs."""
    latencies = [f"{stat}_{stem}_ms" for stem in LATENCIES for stat in _STATISTICS]
    rates = [name for name in RATES if name != "goodput_per_s" or objective.slo]
    names = dict.fromkeys((*latencies, *rates, *objective.metrics_needed(), *objective.front))
    return tuple(name for name in names if "@" not in name)  # at one of several request rates: not of all requests


def confirm_metrics(source: Source) -> tuple[str, ...]:
    """Those that a page gives intervals from server to server for, beside the objective's own."""
    slo = {} if source.objective is None else source.objective.slo
    latencies = [f"{stat}_{stem}_ms" for stem in LATENCIES for stat in _STATISTICS]
    return (*latencies, *(name for name in RATES if name != "goodput_per_s" or slo))
