"""The one table of metrics: names, units, direction, formula. Names keep the stems of `vllm bench serve`.

A latency metric is `STAT_STEM_ms`: STAT is `mean`, `median`, `std` or a percentile such as `p95` or `p99.9`;
STEM is one of the rows below. A percentile is numpy's linear interpolation, as in the load client. Failed requests
have no latency and count only against the success rate.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from sweep.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Latency:
    """One latency of a request (or, for ITL, of a token)."""

    stem: str
    title: str
    formula: str


@dataclass(frozen=True, slots=True)
class Rate:
    """One throughput of a whole round; higher is better."""

    name: str
    unit: str
    formula: str


LATENCIES = {
    row.stem: row
    for row in (
        Latency("ttft", "time to first token", "first token received - request sent; completed requests"),
        Latency(
            "tpot",
            "time per output token",
            "(E2EL - TTFT) / (output tokens - 1); requests of 2 tokens and more",
        ),
        Latency("itl", "inter-token latency", "gap between two received chunks; all gaps of all requests pooled"),
        Latency("e2el", "end-to-end latency", "last token received - request sent = TTFT + sum of the ITLs"),
    )
}

RATES = {
    row.name: row
    for row in (
        Rate("request_throughput_per_s", "requests/s", "completed requests / duration of the round"),
        Rate("output_throughput_tokens_per_s", "tokens/s", "output tokens of completed requests / duration"),
        Rate(
            "total_throughput_tokens_per_s",
            "tokens/s",
            "input and output tokens of completed requests / duration",
        ),
        Rate("goodput_per_s", "requests/s", "completed requests that keep every per-request SLO / duration"),
    )
}

_STAT = re.compile(r"^(mean|median|std|p(?:\d{1,2}(?:\.\d+)?))_(ttft|tpot|itl|e2el)_ms$")


@dataclass(frozen=True, slots=True)
class Metric:
    """A parsed metric name. `percentile` is 0..100 for percentiles and the median, otherwise None."""

    name: str
    stem: str
    stat: str
    percentile: float | None
    unit: str
    lower_is_better: bool


def parse_metric(name: str) -> Metric:
    """The metric of that name. Raises ConfigError naming the nearest valid one."""
    if name in RATES:
        return Metric(name, name, "rate", None, RATES[name].unit, lower_is_better=False)
    match = _STAT.match(name)
    if match is None:
        nearest = difflib.get_close_matches(name, _examples(), n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else "; metrics look like p95_ttft_ms"
        raise ConfigError(f"unknown metric {name!r}{hint}")
    stat, stem = match.groups()
    if stat.startswith("p") and float(stat[1:]) == 0:
        raise ConfigError(f"{name!r}: a percentile lies above 0 and below 100")
    percentile = 50.0 if stat == "median" else float(stat[1:]) if stat.startswith("p") else None
    return Metric(name, stem, stat, percentile, "ms", lower_is_better=True)


def _examples() -> list[str]:
    stats = ("mean", "median", "std", "p50", "p90", "p95", "p99")
    return [*RATES, *(f"{stat}_{stem}_ms" for stem in LATENCIES for stat in stats)]
