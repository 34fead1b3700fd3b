"""An answer as one JSON object."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sweep.predict.flag_map import FlagMap
from sweep.predict.values import LABEL, LEVEL, Answer, Capacity, Nearest
from sweep.twin import Interval


def as_json(answer: Answer) -> dict[str, Any]:
    """Everything an answer holds; what is not known or not finite is null. `simulated` is always true."""
    tokens = answer.kv_tokens
    return {
        "simulated": True,
        "label": LABEL,
        "study": answer.study,
        "folder": answer.folder,
        "running": answer.running,
        "flags": dict(answer.flags),
        "changed": list(answer.changed),
        "own_load": answer.own_load,
        "request_rates_per_s": list(answer.request_rates_per_s),
        "requests": answer.requests,
        "interval_level": LEVEL,
        "metrics": {name: _interval(interval) for name, interval in answer.metrics.items()},
        "near_saturation": answer.saturated,
        "nearest_measured": _nearest(answer.nearest),
        "learnt_from": {"trials": list(answer.basis.trials), "requests": answer.basis.requests},
        "kv_tokens": None
        if tokens is None
        else {"low": tokens.low, "expected": tokens.expected, "high": tokens.high, "launched": tokens.launched},
        "max_rate": None if answer.capacity is None else _capacity(answer.capacity),
        "cautions": list(answer.cautions),
        "notes": list(answer.notes),
    }


def map_as_json(found: FlagMap) -> dict[str, Any]:
    """A map; `scores` have a row for each of the first flag's values. `simulated` is always true."""
    return {
        "simulated": True,
        "label": LABEL,
        "study": found.study,
        "flags": list(found.names),
        "values": [list(values) for values in found.values],
        "scores": [[None if score is None else _number(score) for score in row] for row in found.scores],
        "measured": [
            {"trial": one.number, "at": list(one.at), "score": one.score, "other_flags": dict(one.changes)}
            for one in found.marks
        ],
        "settings": dict(found.settings),
        "objective": found.objective,
        "request_rates_per_s": list(found.request_rates_per_s),
        "learnt_from": {"trials": list(found.basis.trials), "requests": found.basis.requests},
        "distinct_schedules": found.distinct,
        "cautions": list(found.cautions),
    }


def _interval(interval: Interval) -> dict[str, float | None]:
    return {"low": _number(interval.low), "expected": _number(interval.expected), "high": _number(interval.high)}


def _nearest(nearest: Nearest) -> dict[str, Any]:
    return {
        "trial": nearest.number,
        "kind": str(nearest.kind),
        "simulated": False,
        "flags_that_differ": {name: {"its": was, "asked": asked} for name, (was, asked) in nearest.changes.items()},
        "metrics": _finite(nearest.metrics),
        "completed": nearest.completed,
        "request_rates_per_s": list(nearest.request_rates_per_s),
    }


def _capacity(found: Capacity) -> dict[str, Any]:
    return {
        "simulated": True,
        "slo": dict(found.slo),
        "expected_per_s": found.expected_per_s,
        "sure_per_s": found.sure_per_s,
        "binding": found.binding,
        "lowest_tried_per_s": found.lowest_per_s,
        "highest_tried_per_s": found.highest_per_s,
        "requests": found.requests,
    }


def _finite(values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else _number(value) for name, value in values.items()}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
