"""TTFT, TPOT, ITL, E2EL and throughputs of a load, by the formulas of `vllm bench serve`.

On the requests of one result file these are that client's own numbers (0.32.0, `calculate_metrics` in
`vllm/benchmarks/serve.py`), with one difference: what is not defined is None here and 0.0 there. The table of formulas
is `sweep.metric_table`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from sweep.metric_table import LATENCIES, RATES, Metric, parse_metric, request_limits
from sweep.metrics.columns import Numbers, RequestColumns
from sweep.records import RequestRecord

# Ten requests beyond a percentile: with fewer, one slow request more or less moves it by its own spread.
_BEYOND = 10.0


def summarize(
    requests: Sequence[RequestRecord],
    duration_s: float,
    *,
    percentiles: Iterable[float],
    slo: Mapping[str, float],
    extra_names: Iterable[str] = (),
) -> dict[str, float | None]:
    """Every metric of the table for one load: rates, and mean, median, deviation and `percentiles` of each latency.

    `extra_names` are further names of the table, such as those of an objective. Latencies are in milliseconds, of
    completed requests only; a request of one token has no TPOT. A value is None where nothing defines it: no completed
    request, no request of two tokens, no SLO for `goodput_per_s`. Few samples are not held back; ask `enough_samples`.
    `slo` maps metric names (`p95_ttft_ms`, or `ttft`) to limits in milliseconds: a request is good when its own TTFT,
    TPOT (0 for one token) and E2EL keep the loosest limit given for each. Raises ConfigError for an unknown name.
    """
    names = [f"{stat}_{stem}_ms" for stem in LATENCIES for stat in ("mean", "median", "std")]
    names += [f"p{percentile_text(percentile)}_{stem}_ms" for stem in LATENCIES for percentile in percentiles]
    return summarize_columns(RequestColumns.of(requests), duration_s, (*names, *RATES, *extra_names), slo=slo)


def summarize_columns(
    columns: RequestColumns,
    duration_s: float | None,
    names: Iterable[str],
    *,
    slo: Mapping[str, float],
    at: str | None = None,
) -> dict[str, float | None]:
    """The metrics `names`, each once, of completed requests; see `summarize`. Without a duration there are no rates.

    `at`: the request rate they were all sent at, so that limits at other rates do not count.
    """
    result: dict[str, float | None] = {}
    rates = _rates(columns, duration_s, request_limits(slo, at))
    for name in dict.fromkeys(names):
        metric = parse_metric(name)
        result[name] = rates[name] if metric.stat == "rate" else _statistic(metric, columns.samples(metric.stem))
    return result


def samples_needed(percentile: float) -> int:
    """Requests from which on a percentile (0..100) is more than its slowest few: 10 / (1 - p). p95: 200, p99: 1000."""
    return math.ceil(round(_BEYOND * 100.0 / (100.0 - percentile), 6))


def enough_samples(percentile: float, n: int) -> bool:
    """Whether `n` samples carry that percentile (0..100), see `samples_needed`."""
    return n >= samples_needed(percentile)


def thin_percentiles(percentiles: Iterable[float], completed: int) -> tuple[str, ...]:
    """Those of `percentiles` (0..100) that so many completed requests do not carry, ascending, as `p95`."""
    return tuple(f"p{percentile_text(p)}" for p in sorted(set(percentiles)) if not enough_samples(p, completed))


def _statistic(metric: Metric, values: Numbers) -> float | None:
    if not len(values):
        return None
    if metric.percentile is not None:
        return float(np.percentile(values, metric.percentile))
    return float(np.mean(values) if metric.stat == "mean" else np.std(values))


def _rates(columns: RequestColumns, duration_s: float | None, limits: Mapping[str, float]) -> dict[str, float | None]:
    if duration_s is None or duration_s <= 0:
        return dict.fromkeys(RATES)
    output = float(np.nansum(columns.output_tokens))
    good = np.ones(columns.completed, dtype=bool)
    for stem, limit in limits.items():
        good &= np.nan_to_num(columns.of_request(stem), nan=0.0) <= limit
    return {
        "request_throughput_per_s": columns.completed / duration_s,
        "output_throughput_tokens_per_s": output / duration_s,
        "total_throughput_tokens_per_s": (output + float(np.nansum(columns.input_tokens))) / duration_s,
        "goodput_per_s": int(good.sum()) / duration_s if limits else None,
    }


def percentile_text(percentile: float) -> str:
    """99.0 as it stands in a metric's name, and as the client writes it: 99; 99.9 stays."""
    return str(int(percentile)) if percentile == int(percentile) else str(percentile)
