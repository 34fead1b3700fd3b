"""TTFT, TPOT, ITL, E2EL and throughputs of a round, by the formulas of `vllm bench serve`.

On the requests of one result file these are that client's own numbers (0.32.0, `calculate_metrics` in
`vllm/benchmarks/serve.py`), with one difference: what is not defined is None here and 0.0 there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from sweep.metric_table import LATENCIES, RATES, Metric, parse_metric
from sweep.records import RequestRecord

# Ten requests beyond a percentile: with fewer, one slow request more or less moves it by its own spread.
_BEYOND = 10.0
# The limits `vllm bench serve --goodput` knows; it has none on ITL, which is not one number of a request.
_GOODPUT_STEMS = ("ttft", "tpot", "e2el")


def summarize(
    requests: Sequence[RequestRecord],
    duration_s: float,
    *,
    percentiles: Iterable[float],
    slo: Mapping[str, float],
    extra_names: Iterable[str] = (),
) -> dict[str, float | None]:
    """Every metric of the table for one round: rates, and mean, median, deviation and `percentiles` of each latency.

    `extra_names` are further names of the table, such as those of an objective. Latencies are in milliseconds, of
    completed requests only; a request of one token has no TPOT. A value is None where nothing defines it: no completed
    request, no request of two tokens, no SLO for `goodput_per_s`. Few samples are not held back; ask `enough_samples`.
    `slo` maps metric names (`p95_ttft_ms`, or `ttft`) to limits in milliseconds: a request is good when its own TTFT,
    TPOT (0 for one token) and E2EL keep the loosest limit given for each. Raises ConfigError for an unknown name.
    """
    done = [request for request in requests if request.error is None and request.ttft_ms is not None]
    samples = {stem: _samples(done, stem) for stem in LATENCIES}
    names = [f"{stat}_{stem}_ms" for stem in LATENCIES for stat in ("mean", "median", "std")]
    names += [f"p{_digits(percentile)}_{stem}_ms" for stem in LATENCIES for percentile in percentiles]
    rates = _rates(done, duration_s, _request_limits(slo))
    result: dict[str, float | None] = {}
    for name in dict.fromkeys((*names, *RATES, *extra_names)):
        metric = parse_metric(name)
        result[name] = rates[name] if metric.stat == "rate" else _statistic(metric, samples[metric.stem])
    return result


def samples_needed(percentile: float) -> int:
    """Requests from which on a percentile (0..100) is more than its slowest few: 10 / (1 - p). p95: 200, p99: 1000."""
    return math.ceil(round(_BEYOND * 100.0 / (100.0 - percentile), 6))


def enough_samples(percentile: float, n: int) -> bool:
    """Whether `n` samples carry that percentile (0..100), see `samples_needed`."""
    return n >= samples_needed(percentile)


def _samples(done: Sequence[RequestRecord], stem: str) -> list[float]:
    if stem == "itl":
        return [gap for request in done for gap in request.itl_ms]
    value = _OF_REQUEST[stem]
    return [number for request in done if (number := value(request)) is not None]


def _tpot_ms(request: RequestRecord) -> float | None:
    tokens = request.output_tokens
    if tokens is None or tokens < 2 or request.ttft_ms is None or request.e2el_ms is None:
        return None
    return (request.e2el_ms - request.ttft_ms) / (tokens - 1)


_OF_REQUEST: Mapping[str, Callable[[RequestRecord], float | None]] = {
    "ttft": lambda request: request.ttft_ms,
    "tpot": _tpot_ms,
    "e2el": lambda request: request.e2el_ms,
}


def _statistic(metric: Metric, values: list[float]) -> float | None:
    if not values:
        return None
    if metric.percentile is not None:
        return float(np.percentile(values, metric.percentile))
    return float(np.mean(values) if metric.stat == "mean" else np.std(values))


def _rates(done: Sequence[RequestRecord], duration_s: float, limits: Mapping[str, float]) -> dict[str, float | None]:
    if duration_s <= 0:
        return dict.fromkeys(RATES)
    output = sum(request.output_tokens or 0 for request in done)
    total = output + sum(request.input_tokens or 0 for request in done)
    good = sum(_is_good(request, limits) for request in done)
    return {
        "request_throughput_per_s": len(done) / duration_s,
        "output_throughput_tokens_per_s": output / duration_s,
        "total_throughput_tokens_per_s": total / duration_s,
        "goodput_per_s": good / duration_s if limits else None,
    }


def _is_good(request: RequestRecord, limits: Mapping[str, float]) -> bool:
    return all((_OF_REQUEST[stem](request) or 0.0) <= limit for stem, limit in limits.items())


def _request_limits(slo: Mapping[str, float]) -> dict[str, float]:
    limits: dict[str, float] = {}
    for name, limit in slo.items():
        metric = None if name in _GOODPUT_STEMS else parse_metric(name)
        stem = name if metric is None else metric.stem
        if stem in _GOODPUT_STEMS and (metric is None or metric.stat != "std"):
            limits[stem] = max(limit, limits.get(stem, limit))
    return limits


def _digits(percentile: float) -> str:
    """99.0 as the client writes it: 99; 99.9 stays."""
    return str(int(percentile)) if percentile == int(percentile) else str(percentile)
