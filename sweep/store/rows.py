"""A trial's result as the rows of the six tables."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

from sweep.metric_table import parse_metric
from sweep.metrics import thin_percentiles
from sweep.records import EngineSample, Event, RequestRecord, RoundRecord
from sweep.store.schema import Schema, TelemetryRow, column_name
from sweep.trial import Flag, Flags, TrialResult

# Rows leave this module straight into Arrow: a dict here is the wire format, not a value that travels.
Row = dict[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PERCENTILE = re.compile(r"p[\d.]+_(ttft|tpot|itl|e2el)_ms")


def trial_row(result: TrialResult, schema: Schema, engine_summary: Mapping[str, float | None]) -> Row:
    """The one row of `trials`. Raises ValueError for a flag, metric, SLO or figure without a column in the schema."""
    metrics = result.metrics or {}
    violations = result.score.violations if result.score else {}
    _refuse_unknown("flag", result.spec.flags, schema.flags)
    _refuse_unknown("metric", metrics, schema.metrics)
    _refuse_unknown("SLO", violations, schema.slos)
    _refuse_unknown("engine figure", engine_summary, schema.engine_summary)
    row: Row = {
        "number": result.spec.number,
        "kind": str(result.spec.kind),
        "status": str(result.status),
        "score": result.score.value if result.score else None,
        "round_scores": list(result.round_scores),
        "feasible": result.score.feasible if result.score else None,
        "stopped_because": result.stopped_because,
        "stood_in": result.stood_in,
        "block": result.spec.block,
        "node": result.spec.node,
        "attempts": result.attempts,
        "started": _time(result.started_wall_s),
        "startup_s": result.startup_s,
        "load_s": result.load_s,
        "total_s": result.total_s,
        "command": result.command,
        "thin_percentiles": _thin(metrics, _completed(result)),
        "remarks": list(result.remarks),
        "disturbances": list(result.disturbances),
        "flag_types": flag_types(result.spec.flags),
    }
    if result.failure is not None:
        failure = result.failure
        row |= {
            "failure_class": failure.failure_class,
            "failure_phase": failure.phase,
            "failure_line": failure.line,
            "advice": failure.advice,
            "retryable": failure.retryable,
            "informative_for_search": failure.informative_for_search,
            "policy": failure.policy,
            "exit_code": failure.exit_code,
        }
    row |= flag_columns(result.spec.flags, schema)
    row |= {column_name(name): value for name, value in metrics.items()}
    row |= {f"violation_{column_name(name)}": value for name, value in violations.items()}
    row |= {f"engine_{name}": value for name, value in _plain(result.engine_config).items()}
    row |= {f"engine_{column_name(name)}": value for name, value in engine_summary.items()}
    return row


def flag_columns(flags: Flags, schema: Schema) -> Row:
    """Flags in the columns of a table. Raises ValueError for one without a column."""
    _refuse_unknown("flag", flags, schema.flags)
    return {f"flag_{column_name(name)}": _flag(name, value, schema.flags[name]) for name, value in flags.items()}


def flag_types(flags: Flags) -> list[Row]:
    """The kind of each flag's value, which its column alone does not tell."""
    return [{"name": name, "type": "null" if value is None else type(value).__name__} for name, value in flags.items()]


def request_rows(trial: int, requests: Iterable[RequestRecord]) -> list[Row]:
    """One row a request. TPOT is (E2EL - TTFT) / (output tokens - 1), null below two tokens."""
    rows = []
    for request in requests:
        row = {"trial": trial, **_plain(request), "lag_ms": request.lag_ms, "tpot_ms": _tpot_ms(request)}
        # A request without a first token has no gaps, which is not the same as none between its tokens.
        row["itl_ms"] = list(request.itl_ms) if request.ttft_ms is not None or request.itl_ms else None
        rows.append(row)
    return rows


def round_rows(trial: int, rounds: Iterable[RoundRecord]) -> list[Row]:
    """One row a round."""
    rows = []
    for one in rounds:
        row = {"trial": trial, **_plain(one), "disturbed": list(one.disturbed)}
        rows.append(row | {"thin_percentiles": _thin([name for name in row if name.endswith("_ms")], one.completed)})
    return rows


def engine_rows(trial: int, samples: Iterable[EngineSample]) -> list[Row]:
    """One row a reading of the engine's counters."""
    return [{"trial": trial, **_plain(sample)} for sample in samples]


def event_rows(trial: int, events: Iterable[Event]) -> list[Row]:
    """One row an event, with its wall time as a timestamp."""
    rows = []
    for event in events:
        row = {"trial": trial, **_plain(event)}
        row["at"] = _time(row.pop("wall_s"))
        rows.append(row)
    return rows


def telemetry_rows(trial: int, telemetry: Sequence[TelemetryRow]) -> list[Row]:
    """One row a look at a device or the host."""
    rows = [{"trial": trial, **_plain(look)} for look in telemetry]
    for row in rows:
        if row["throttle_reasons"] is not None:
            row["throttle_reasons"] = list(row["throttle_reasons"])
    return rows


def cleaned(value: Any, redact: Callable[[str], str]) -> Any:
    """`value` with every string in it redacted and NaN, which is no measurement, made null."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, list):
        return [cleaned(item, redact) for item in value]
    if isinstance(value, dict):
        return {key: cleaned(item, redact) for key, item in value.items()}
    return value


def _plain(record: Any) -> Row:
    return {item.name: getattr(record, item.name) for item in fields(record)}


def _completed(result: TrialResult) -> int:
    """Requests that completed, at the request rate at which it was the fewest: each has percentiles of its own."""
    by_rate: dict[float | None, int] = {}
    for one in result.rounds:
        by_rate[one.request_rate_per_s] = by_rate.get(one.request_rate_per_s, 0) + one.completed
    if len(by_rate) > 1:
        return min(by_rate.values())
    return sum(request.error is None for request in result.requests)


def _thin(names: Iterable[str], completed: int) -> list[str]:
    """The percentiles among the metrics `names` that so many requests do not carry."""
    latencies = (name for name in names if _PERCENTILE.match(name))
    found = (parse_metric(name).percentile for name in latencies)
    return list(thin_percentiles([p for p in found if p is not None], completed))


def _time(wall_s: float) -> datetime:
    return _EPOCH + timedelta(seconds=wall_s)


def _tpot_ms(request: RequestRecord) -> float | None:
    tokens = request.output_tokens
    if request.e2el_ms is None or request.ttft_ms is None or tokens is None or tokens < 2:
        return None
    return (request.e2el_ms - request.ttft_ms) / (tokens - 1)


def _flag(name: str, value: Flag, kind: type) -> Flag:
    """The value in its column's type. Raises ValueError where that would change it."""
    if value is None or type(value) is kind:
        return value
    if kind is str:
        return str(value)
    if kind is float and type(value) is int:
        return float(value)
    raise ValueError(f"flag {name}: {value!r} does not fit a column of {kind.__name__}")


def _refuse_unknown(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    if extra := sorted(set(given) - set(known)):
        raise ValueError(f"{what} {extra[0]} has no column in the schema of this study")
