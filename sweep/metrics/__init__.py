"""Requests and engine counters in, numbers out. Names, units and formulas: `sweep.metric_table`."""

from __future__ import annotations

from sweep.metrics.columns import RequestColumns
from sweep.metrics.engine import (
    engine_config_from_log,
    parse_engine_config,
    parse_engine_sample,
    summarize_engine,
)
from sweep.metrics.in_flight import with_client_view
from sweep.metrics.latency import enough_samples, samples_needed, summarize, summarize_columns, thin_percentiles
from sweep.metrics.parts import Part, fewest_completed, metric_names, summarize_parts
from sweep.records import EngineSummary

__all__ = [
    "EngineSummary",
    "Part",
    "RequestColumns",
    "engine_config_from_log",
    "enough_samples",
    "fewest_completed",
    "metric_names",
    "parse_engine_config",
    "parse_engine_sample",
    "samples_needed",
    "summarize",
    "summarize_columns",
    "summarize_engine",
    "summarize_parts",
    "thin_percentiles",
    "with_client_view",
]
