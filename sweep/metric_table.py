"""The one table of metrics: names, units, direction, formula, fields, and what failed or one-token requests count.

Names keep the stems of `vllm bench serve`. A latency metric is `STAT_STEM_ms`: STAT is one of STATISTICS (`mean`,
`median`, `std`, or a percentile such as `p95` or `p99.9`), STEM one of LATENCIES. README shows these rows.

Where the rounds of a load take turns at several request rates, `NAME@RATE` (`p95_ttft_ms@4`, `@inf` for all at once) is
a metric of the rounds at that rate, and NAME alone one of all rounds together.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweep.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Latency:
    """One latency of a request (or, for ITL, of a token). `columns` are those of the table `requests`.

    `of_request`: it is one number of a request, so that an SLO on it says whether a request is good.
    """

    stem: str
    title: str
    formula: str
    columns: tuple[str, ...]
    failed: str
    one_token: str
    of_request: bool = True


@dataclass(frozen=True, slots=True)
class Rate:
    """One throughput of a whole load; higher is better. `columns` are those of `requests`, beside the duration."""

    name: str
    unit: str
    formula: str
    columns: tuple[str, ...]
    failed: str
    one_token: str


# Why a failed request has no latency: the load client writes 0 for it, and a zero would win every comparison.
_LEFT_OUT = "left out"

LATENCIES = {
    row.stem: row
    for row in (
        Latency(
            "ttft",
            "time to first token",
            "first token received - request sent",
            ("ttft_ms",),
            failed=_LEFT_OUT,
            one_token="count",
        ),
        Latency(
            "tpot",
            "time per output token",
            "(E2EL - TTFT) / (output tokens - 1)",
            ("e2el_ms", "ttft_ms", "output_tokens"),
            failed=_LEFT_OUT,
            one_token="have none: left out",
        ),
        Latency(
            "itl",
            "inter-token latency",
            "gap between two received chunks; all gaps of all requests pooled",
            ("itl_ms",),
            failed=_LEFT_OUT,
            one_token="have no gap: left out",
            of_request=False,
        ),
        Latency(
            "e2el",
            "end-to-end latency",
            "last token received - request sent = TTFT + sum of the ITLs",
            ("e2el_ms",),
            failed=_LEFT_OUT,
            one_token="count, with their TTFT",
        ),
    )
}

RATES = {
    row.name: row
    for row in (
        Rate(
            "request_throughput_per_s",
            "requests/s",
            "completed requests / duration",
            ("error",),
            failed="not counted",
            one_token="count",
        ),
        Rate(
            "output_throughput_tokens_per_s",
            "tokens/s",
            "output tokens of completed requests / duration",
            ("output_tokens",),
            failed="their tokens are not counted",
            one_token="count 1 token",
        ),
        Rate(
            "total_throughput_tokens_per_s",
            "tokens/s",
            "input and output tokens of completed requests / duration",
            ("input_tokens", "output_tokens"),
            failed="their tokens are not counted",
            one_token="count, input and 1 token",
        ),
        Rate(
            "goodput_per_s",
            "requests/s",
            "completed requests whose own TTFT, TPOT and E2EL each keep the loosest SLO given on it / duration",
            ("ttft_ms", "e2el_ms", "output_tokens"),
            failed="not good",
            one_token="good where TTFT and E2EL are: their TPOT is taken for 0",
        ),
    )
}

# How one number is made of many: prefix of the metric's name -> formula.
STATISTICS = {
    "mean": "arithmetic mean",
    "median": "50th percentile",
    "std": "standard deviation of the whole, divided by n (not n - 1)",
    "p95": "percentile, any number from 1 to below 100 such as p99.9: linear interpolation between the two nearest "
    "of the n values in order, at place 1 + (n - 1) * 0.95",
}

_STAT = re.compile(r"^(mean|median|std|p(?:\d{1,2}(?:\.\d+)?))_(ttft|tpot|itl|e2el)_ms$")
_AT = "@"


@dataclass(frozen=True, slots=True)
class Metric:
    """A parsed metric name. `percentile` is 0..100 for percentiles and the median, otherwise None.

    `base` is the name without its rate, `at` that rate as `rate_text` writes it, None for a metric of all rounds.
    """

    name: str
    base: str
    stem: str
    stat: str
    percentile: float | None
    unit: str
    lower_is_better: bool
    at: str | None = None

    @property
    def limits_requests(self) -> bool:
        """Whether an SLO on it tells a good request from another, see `goodput_per_s`."""
        return self.stem in LATENCIES and LATENCIES[self.stem].of_request and self.stat != "std"


@functools.lru_cache(maxsize=4096)
def parse_metric(name: str) -> Metric:
    """The metric of that name. Raises ConfigError naming the nearest valid one."""
    base, sign, rate = name.partition(_AT)
    at = _rate_of(name, rate) if sign else None
    full = base if at is None else f"{base}{_AT}{at}"
    if base in RATES:
        return Metric(full, base, base, "rate", None, RATES[base].unit, lower_is_better=False, at=at)
    match = _STAT.match(base)
    if match is None:
        nearest = difflib.get_close_matches(base, _examples(), n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else "; metrics look like p95_ttft_ms"
        raise ConfigError(f"unknown metric {name!r}{hint}")
    stat, stem = match.groups()
    if stat.startswith("p") and (below := float(stat[1:])) < 1:
        meant = f"; did you mean 'p{below * 100:g}_{stem}_ms'?" if below else ""
        raise ConfigError(f"{name!r}: a percentile lies at 1 or above and below 100{meant}")
    percentile = 50.0 if stat == "median" else float(stat[1:]) if stat.startswith("p") else None
    return Metric(full, base, stem, stat, percentile, "ms", lower_is_better=True, at=at)


def rate_text(rate: float | None) -> str:
    """A request rate as it stands in a metric's name: `4`, `0.5`, `inf` for all at once (None)."""
    if rate is None:
        return "inf"
    return f"{rate:g}" if float(f"{rate:g}") == rate else repr(rate)


def metric_at(name: str, rate: float | None) -> str:
    """The name of that metric of the rounds at one request rate."""
    return f"{name}{_AT}{rate_text(rate)}"


def _rate_of(name: str, text: str) -> str:
    try:
        rate = float(text) if text.isascii() else math.nan
    except ValueError:
        rate = math.nan
    if not rate > 0:
        raise ConfigError(f"{name!r}: after @ stands a request rate above 0, or inf for all at once")
    return rate_text(None if math.isinf(rate) else rate)


def check_rate(name: str, rates: Sequence[float | None], *, front: bool = False) -> None:
    """Whether a metric's name goes with the request rates of a load. Raises ConfigError.

    A front is of values in their units, which several rates have no common one of.
    """
    metric = parse_metric(name)
    known = [rate_text(rate) for rate in rates] if len(rates) > 1 else []
    if metric.at is None:
        if known and front:
            each = " or ".join(f"{metric.base}@{rate}" for rate in known)
            raise ConfigError(f"{name}: a front of a load at several request rates names one of them: {each}")
    elif not known:
        raise ConfigError(f"{name}: the load has one request rate; write {metric.base}")
    elif metric.at not in known:
        raise ConfigError(f"{name}: the load has no round at that rate, only at {', '.join(known)}")


def request_limits(slo: Mapping[str, float], at: str | None = None) -> dict[str, float]:
    """The limits on a single request (stem -> ms) that SLOs stand for: the loosest of each of TTFT, TPOT and E2EL.

    `slo` may name metrics (`p95_ttft_ms`) or stems (`ttft`). `at`: for requests sent at that rate, so that limits at
    others do not count. Empty where none is on a latency of a request: then `goodput_per_s` is not defined. Raises
    ConfigError for an unknown name.
    """
    limits: dict[str, float] = {}
    for name, limit in slo.items():
        if name in LATENCIES:
            stem = name if LATENCIES[name].of_request else None
        else:
            metric = parse_metric(name)
            counts = metric.limits_requests and (at is None or metric.at in (None, at))
            stem = metric.stem if counts else None
        if stem is not None:
            limits[stem] = max(limit, limits.get(stem, limit))
    return limits


def _examples() -> list[str]:
    stats = ("mean", "median", "std", "p50", "p90", "p95", "p99")
    return [*RATES, *(f"{stat}_{stem}_ms" for stem in LATENCIES for stat in stats)]
