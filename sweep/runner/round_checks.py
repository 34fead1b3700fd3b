"""What spoils a round or makes it look other than it is, judged from its record."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from sweep.gpu import judge
from sweep.records import RoundRecord
from sweep.runner.telemetry import load_readings
from sweep.store import TelemetryRow

# An event loop that sends late reads late as well, so a lag is an error of the latencies: as large as the TTFT itself
# it leaves nothing of it. On 2 cores that client and server share p99 is 3 to 45 ms; below this no verdict.
_LEAST_LAG_LIMIT_MS = 100.0
_BUSY_PERCENT = 95.0
_UNEXPECTED_HITS = 0.2
_COLD = 1.5


def client_late(record: RoundRecord, max_lag_ms: float) -> str | None:
    """Why the load client is to be distrusted; None while it keeps its plan.

    The limit is `max_lag_ms`, or the median TTFT where that is less, but 100 ms at least.
    """
    usual_ms = math.inf if record.p50_ttft_ms is None else max(_LEAST_LAG_LIMIT_MS, record.p50_ttft_ms)
    limit_ms = min(max_lag_ms, usual_ms)
    if record.p99_lag_ms is None or record.p99_lag_ms <= limit_ms:
        return None
    of = "load.max_lag_ms" if limit_ms == max_lag_ms else "the median TTFT, 100 at least"
    return f"the load client sends up to {record.p99_lag_ms:.0f} ms late (p99; the limit is {limit_ms:.0f} ms: {of})"


def with_telemetry(
    one: RoundRecord, rows: Sequence[TelemetryRow], usual: Mapping[str, float] | None
) -> tuple[RoundRecord, str | None]:
    """`one` with what devices and host said while it ran, and a remark on a client that had too little CPU."""
    until_s = one.began_at_s + one.duration_s
    seen = [row for row in rows if row.attempt == one.attempt and one.began_at_s <= row.at_s <= until_s]
    cpu = [row.client_cpu_percent for row in seen if row.client_cpu_percent is not None]
    found = judge(load_readings(seen, one.attempt), usual=usual)
    mean = float(np.mean(cpu)) if cpu else None
    filled = dataclasses.replace(one, client_cpu_percent=mean, disturbed=(*one.disturbed, *found.disturbances))
    if mean is None or sum(percent > _BUSY_PERCENT for percent in cpu) * 2 <= len(cpu):
        return filled, None
    return filled, f"the load client used {mean:.0f} % of its core in round {one.round + 1}: it may be the limit itself"


def unexpected_hits(rounds: Sequence[RoundRecord]) -> list[str]:
    """A remark when the prefix cache answers far more of later rounds than of the first; their prompts all differ."""
    if not rounds or rounds[0].prefix_hit_share is None:
        return []
    first = rounds[0].prefix_hit_share
    far = [r for r in rounds[1:] if r.prefix_hit_share is not None and r.prefix_hit_share > first + _UNEXPECTED_HITS]
    if not far:
        return []
    figures = ", ".join(f"{one.prefix_hit_share:.0%} in round {one.round + 1}" for one in far)
    reset = "" if far[0].prefix_cache_reset else "; the server does not let it be emptied"
    return [f"prefix-cache hits rise from {first:.0%} in round 1 to {figures}: later rounds look too fast{reset}"]


def cold_start(rounds: Sequence[RoundRecord]) -> list[str]:
    """A remark when the first round is served far more slowly than those after it at the same rate.

    By the median TPOT, since TTFT is mostly what the arrivals make of it.
    """
    if not rounds or (cold_ms := rounds[0].p50_tpot_ms) is None:
        return []
    rate = rounds[0].request_rate_per_s
    later_ms = [one.p50_tpot_ms for one in rounds[1:] if one.request_rate_per_s == rate and one.p50_tpot_ms]
    times = cold_ms / float(np.median(later_ms)) if later_ms else 0.0
    if times <= _COLD:
        return []
    return [f"round 1 has {times:.1f} times the TPOT of later ones; if many trials say so, raise warmup_prompts"]
