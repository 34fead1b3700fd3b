"""Numbers as a page writes them."""

from __future__ import annotations

from sweep.metric_table import parse_metric
from sweep.trial import Flag
from sweep.verdict import Interval

_STEMS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
_RATES = {
    "request_throughput_per_s": "requests/s",
    "output_throughput_tokens_per_s": "output tokens/s",
    "total_throughput_tokens_per_s": "all tokens/s",
    "goodput_per_s": "good requests/s",
}


def short(value: float) -> float:
    """With four digits that say something: pages are read, not computed with."""
    return float(f"{value:.4g}")


def number(value: float | None) -> str:
    """A figure with as many digits as say something; nothing for None."""
    if value is None:
        return "–"
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.3g}"


def with_limits(interval: Interval | None, digits: int = 3) -> str:
    """`0.88 (0.84 to 0.92)`."""
    if interval is None:
        return "–"
    return f"{interval.value:.{digits}g} ({interval.low:.{digits}g} to {interval.high:.{digits}g})"


def percent(share: float, digits: int = 0) -> str:
    """0.12 as 12 %."""
    return f"{100 * share:.{digits}f} %"


def change(ratio: float, digits: int = 1) -> str:
    """A ratio as the change that it is: 0.88 is -12 %."""
    return f"{100 * (ratio - 1):+.{digits}f} %".replace("-", "−")


def metric_words(name: str) -> str:
    """`p95 TTFT` for `p95_ttft_ms`; a throughput by its unit; `@4` as `at 4/s`."""
    base, _, rate = name.partition("@")
    metric = parse_metric(base)
    words = _RATES.get(base) or f"{metric.stat} {_STEMS[metric.stem]}"
    return f"{words} at {rate}/s" if rate else words


def metric_unit(name: str) -> str:
    """The unit in which a metric is shown; empty where its name says it."""
    base = name.partition("@")[0]
    return "" if base in _RATES else parse_metric(base).unit


def flag_word(value: Flag) -> str:
    """A flag's value."""
    return "(vLLM's default)" if value is None else str(value)


def duration(seconds: float) -> str:
    """`8 h 12 min`, `4 min 20 s`, `12 s`."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {left} s" if minutes else f"{left} s"


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 trial`, `3 trials`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
