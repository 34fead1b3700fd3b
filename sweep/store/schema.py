"""The columns of the tables. One study has one `Schema`, so all its files have the same columns and types.

Names carry their units, lists and timestamps are typed as such, null is "not known". A column that stands for
something with a name of its own (a flag, a metric) keeps that name in the field's metadata, since `max-num-seqs` and
`p99.9_ttft_ms` make poor column names.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from sweep.metric_table import parse_metric
from sweep.records import EngineConfig
from sweep.trial import Flag

# 2: a trial is several rounds, with a table of their own; prompts are split into those of the search and those kept.
SCHEMA_VERSION = 2
# Written in this order: the row in `trials` is the mark that the trial is stored, so it comes last.
TABLES = ("requests", "rounds", "engine", "telemetry", "events", "trials")
# What was passed over on the way to a trial: no part of the trial, and added without a new version, since it may be
# absent.
PASSED_OVER = "passed_over"
ENGINE_SUMMARY = (
    "preemptions",
    "prefix_hit_share",
    "peak_running",
    "peak_waiting",
    "peak_kv_usage_share",
    "mean_queue_time_ms",
    "largest_step_tokens",
    "peak_in_flight",
    "peak_in_flight_tokens",
    "longest_prompt_tokens",
    "load_tokens",
)

_INT, _FLOAT, _BOOL, _TEXT = pa.int64(), pa.float64(), pa.bool_(), pa.string()
_TIME = pa.timestamp("us", tz="UTC")
_FLAG_TYPES = pa.list_(pa.struct([("name", _TEXT), ("type", _TEXT)]))
_OF_PYTHON = {bool: _BOOL, int: _INT, float: _FLOAT, str: _TEXT}
_OF_ANNOTATION = {"int | None": _INT, "float | None": _FLOAT, "bool | None": _BOOL, "str | None": _TEXT}


@dataclass(frozen=True, slots=True)
class TelemetryRow:
    """One look at one device or, with `device` None, at the host. `at_s`: seconds since the trial's attempt began.

    `client_cpu_percent` is of one core; `ram_free_gib` is what could be handed out without swapping. None: not known.
    """

    at_s: float
    phase: str
    attempt: int | None = None
    device: int | None = None
    mig_device: int | None = None
    memory_used_gib: float | None = None
    utilization_percent: float | None = None
    memory_utilization_percent: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    host_cpu_percent: float | None = None
    client_cpu_percent: float | None = None
    ram_free_gib: float | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """What one study stores beside what all studies do.

    `flags` gives each searched flag's type (bool, int, float or str, see `flag_type`; any may be null), `metrics` and
    `slos` are names of the metric table, `engine_summary` names the figures handed to `Store.append`.
    Raises ValueError for an unknown type or two names that make one column.
    """

    flags: Mapping[str, type]
    metrics: tuple[str, ...]
    slos: tuple[str, ...] = ()
    engine_summary: tuple[str, ...] = ENGINE_SUMMARY

    def __post_init__(self) -> None:
        object.__setattr__(self, "flags", dict(self.flags))
        for name, kind in self.flags.items():
            if kind not in _OF_PYTHON:
                raise ValueError(f"flag {name}: no column type for {kind!r}")
        columns = [column.name for column in _trial_fields(self)]
        if twice := sorted({name for name in columns if columns.count(name) > 1}):
            raise ValueError(f"two names make one column: {', '.join(twice)}")


def flag_type(values: Iterable[Flag]) -> type:
    """The column type that holds all `values` of a flag: float for whole and other numbers, str for a mixture."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return float
    return kinds.pop() if len(kinds) == 1 else str


def column_name(name: str) -> str:
    """A name as the end of a column: lower case, `@` made `_at_`, all else but letters, digits and `_` made `_`."""
    return re.sub(r"[^a-z0-9_]", "_", name.lower().replace("@", "_at_"))


def table_schemas(schema: Schema) -> Mapping[str, pa.Schema]:
    """The Arrow schema of each table."""
    return {"trials": pa.schema(_trial_fields(schema)), **{name: pa.schema(rows) for name, rows in _FIXED.items()}}


def _field(name: str, kind: pa.DataType, role: str = "", of: str = "", unit: str = "") -> pa.Field:
    notes = {key: text for key, text in (("role", role), ("name", of), ("unit", unit)) if text}
    return pa.field(name, kind, metadata=notes or None)


def passed_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of `passed_over`."""
    return pa.schema([*_PASSED_HEAD, *_flag_fields(schema), _field("flag_types", _FLAG_TYPES)])


def _flag_fields(schema: Schema) -> list[pa.Field]:
    return [_field(f"flag_{column_name(name)}", _OF_PYTHON[kind], "flag", name) for name, kind in schema.flags.items()]


def _trial_fields(schema: Schema) -> list[pa.Field]:
    flags = _flag_fields(schema)
    metrics = [_field(column_name(name), _FLOAT, "metric", name, parse_metric(name).unit) for name in schema.metrics]
    violations = [_field(f"violation_{column_name(name)}", _FLOAT, "violation", name) for name in schema.slos]
    config = [
        _field(f"engine_{item.name}", _OF_ANNOTATION[str(item.type)], "engine_config", item.name)
        for item in dataclasses.fields(EngineConfig)
    ]
    summary = [_field(f"engine_{column_name(name)}", _FLOAT, "engine_summary", name) for name in schema.engine_summary]
    return [*_TRIAL_HEAD, *flags, *metrics, *violations, *config, *summary, *_TRIAL_TAIL]


_TRIAL_HEAD = (
    _field("number", _INT),
    _field("kind", _TEXT),
    _field("status", _TEXT),
    _field("score", _FLOAT),
    _field("round_scores", pa.list_(_FLOAT)),
    _field("feasible", _BOOL),
    _field("stopped_because", _TEXT),
    _field("stood_in", _TEXT),
    _field("block", _INT),
    _field("node", _TEXT),
    _field("attempts", _INT),
    _field("started", _TIME),
    _field("startup_s", _FLOAT, unit="s"),
    _field("load_s", _FLOAT, unit="s"),
    _field("total_s", _FLOAT, unit="s"),
    _field("failure_class", _TEXT),
    _field("failure_phase", _TEXT),
    _field("failure_line", _TEXT),
    _field("advice", _TEXT),
    _field("retryable", _BOOL),
    _field("informative_for_search", _BOOL),
    _field("policy", _TEXT),
    _field("exit_code", _INT),
)
_PASSED_HEAD = (
    _field("trial", _INT),
    _field("place", _INT),
    _field("launched", _BOOL),
    _field("rule", _TEXT),
    _field("reason", _TEXT),
    _field("confidence", _FLOAT, unit="share"),
    _field("same_as", _INT),
)
# `flag_types` tells 8 from 8.0 and "8" where one column holds all three, and a null flag from one not in the space.
_TRIAL_TAIL = (
    _field("command", _TEXT),
    _field("thin_percentiles", pa.list_(_TEXT)),
    _field("remarks", pa.list_(_TEXT)),
    _field("disturbances", pa.list_(_TEXT)),
    _field("flag_types", _FLAG_TYPES),
)

_FIXED: Mapping[str, tuple[pa.Field, ...]] = {
    "requests": (
        _field("trial", _INT),
        _field("round", _INT),
        _field("index", _INT),
        _field("prompt_id", _TEXT),
        _field("scheduled_s", _FLOAT, unit="s"),
        _field("start_s", _FLOAT, unit="s"),
        _field("lag_ms", _FLOAT, unit="ms"),
        _field("input_tokens", _INT, unit="tokens"),
        _field("output_tokens", _INT, unit="tokens"),
        _field("asked_output_tokens", _INT, unit="tokens"),
        _field("ttft_ms", _FLOAT, unit="ms"),
        _field("itl_ms", pa.list_(_FLOAT), unit="ms"),
        _field("tpot_ms", _FLOAT, unit="ms"),
        _field("e2el_ms", _FLOAT, unit="ms"),
        _field("error", _TEXT),
    ),
    "rounds": (
        _field("trial", _INT),
        _field("attempt", _INT),
        _field("round", _INT),
        _field("began_at_s", _FLOAT, unit="s"),
        _field("duration_s", _FLOAT, unit="s"),
        _field("took_s", _FLOAT, unit="s"),
        _field("request_rate_per_s", _FLOAT, unit="requests/s"),
        _field("prompts", _INT, unit="requests"),
        _field("completed", _INT, unit="requests"),
        _field("failed", _INT, unit="requests"),
        _field("output_tokens", _INT, unit="tokens"),
        _field("p50_ttft_ms", _FLOAT, unit="ms"),
        _field("p95_ttft_ms", _FLOAT, unit="ms"),
        _field("p50_tpot_ms", _FLOAT, unit="ms"),
        _field("p95_tpot_ms", _FLOAT, unit="ms"),
        _field("p50_e2el_ms", _FLOAT, unit="ms"),
        _field("p95_e2el_ms", _FLOAT, unit="ms"),
        _field("thin_percentiles", pa.list_(_TEXT)),
        _field("prefix_cache_reset", _BOOL),
        _field("prefix_hit_share", _FLOAT, unit="share"),
        _field("preemptions", _FLOAT),
        _field("peak_running", _FLOAT, unit="requests"),
        _field("peak_waiting", _FLOAT, unit="requests"),
        _field("peak_kv_usage_share", _FLOAT, unit="share"),
        _field("mean_queue_time_ms", _FLOAT, unit="ms"),
        _field("client_cpu_percent", _FLOAT, unit="%"),
        _field("p99_lag_ms", _FLOAT, unit="ms"),
        _field("max_lag_ms", _FLOAT, unit="ms"),
        _field("disturbed", pa.list_(_TEXT)),
    ),
    "engine": (
        _field("trial", _INT),
        _field("at_s", _FLOAT, unit="s"),
        _field("phase", _TEXT),
        _field("running", _FLOAT, unit="requests"),
        _field("waiting", _FLOAT, unit="requests"),
        _field("kv_usage_share", _FLOAT, unit="share"),
        _field("preemptions", _FLOAT),
        _field("prefix_hits_tokens", _FLOAT, unit="tokens"),
        _field("prefix_queries_tokens", _FLOAT, unit="tokens"),
        _field("prompt_tokens", _FLOAT, unit="tokens"),
        _field("generation_tokens", _FLOAT, unit="tokens"),
        _field("requests_finished", _FLOAT, unit="requests"),
        _field("queue_time_sum_s", _FLOAT, unit="s"),
        _field("queue_time_count", _FLOAT),
    ),
    "events": (
        _field("trial", _INT),
        _field("attempt", _INT),
        _field("at_s", _FLOAT, unit="s"),
        _field("at", _TIME),
        _field("kind", _TEXT),
        _field("phase", _TEXT),
        _field("detail", _TEXT),
        _field("failure_class", _TEXT),
        _field("line", _TEXT),
        _field("exit_code", _INT),
        _field("retryable", _BOOL),
        _field("advice", _TEXT),
    ),
    "telemetry": (
        _field("trial", _INT),
        _field("attempt", _INT),
        _field("at_s", _FLOAT, unit="s"),
        _field("phase", _TEXT),
        _field("device", _INT),
        _field("mig_device", _INT),
        _field("memory_used_gib", _FLOAT, unit="GiB"),
        _field("utilization_percent", _FLOAT, unit="%"),
        _field("memory_utilization_percent", _FLOAT, unit="%"),
        _field("sm_clock_mhz", _FLOAT, unit="MHz"),
        _field("memory_clock_mhz", _FLOAT, unit="MHz"),
        _field("power_w", _FLOAT, unit="W"),
        _field("power_limit_w", _FLOAT, unit="W"),
        _field("temperature_c", _FLOAT, unit="°C"),
        _field("throttle_reasons", pa.list_(_TEXT)),
        _field("host_cpu_percent", _FLOAT, unit="%"),
        _field("client_cpu_percent", _FLOAT, unit="%"),
        _field("ram_free_gib", _FLOAT, unit="GiB"),
    ),
}
