"""Metrics of a load of several rounds: of all together, and of those at each request rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sweep.metric_table import LATENCIES, RATES, metric_at, parse_metric, rate_text
from sweep.metrics.columns import RequestColumns
from sweep.metrics.latency import percentile_text, summarize_columns


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One round: its completed requests, its duration (None: not known) and its request rate, None for all at once."""

    columns: RequestColumns
    duration_s: float | None
    rate: float | None = None


def metric_names(
    percentiles: Iterable[float], rates: Sequence[float | None] = (), extra: Iterable[str] = ()
) -> tuple[str, ...]:
    """Every metric of the table with these percentiles, with several `rates` of each of them, too, then `extra`."""
    stats = ("mean", "median", "std", *(f"p{percentile_text(percentile)}" for percentile in percentiles))
    names = [*(f"{stat}_{stem}_ms" for stem in LATENCIES for stat in stats), *RATES]
    apart = [metric_at(name, rate) for rate in rates for name in names] if len(rates) > 1 else []
    return tuple(dict.fromkeys((*names, *apart, *extra)))


def summarize_parts(
    parts: Sequence[Part], names: Iterable[str], *, slo: Mapping[str, float]
) -> dict[str, float | None]:
    """The metrics `names` of a load: `NAME@RATE` of the rounds at that rate, NAME of all rounds, their requests pooled
    and throughputs over their durations together. None where nothing defines one, a rate without a round included.

    `slo` as in `summarize`; a limit on `NAME@RATE` counts for the requests at that rate.
    """
    wanted = tuple(dict.fromkeys(names))
    by_rate: dict[str | None, list[str]] = {}
    for name in wanted:
        by_rate.setdefault(parse_metric(name).at, []).append(name)
    found: dict[str, float | None] = {}
    for at, of_rate in by_rate.items():
        chosen = at_rate(parts, at)
        durations_s = [part.duration_s for part in chosen if part.duration_s is not None]
        duration_s = math.fsum(durations_s) if len(durations_s) == len(chosen) else None
        columns = RequestColumns.pooled([part.columns for part in chosen])
        bases = [parse_metric(name).base for name in of_rate]
        values = summarize_columns(columns, duration_s, bases, slo=slo, at=at)
        found.update((name, values[base]) for name, base in zip(of_rate, bases, strict=True))
    return {name: found[name] for name in wanted}


def at_rate(parts: Sequence[Part], at: str | None) -> list[Part]:
    """The rounds at one rate as `rate_text` writes it; None: all of them."""
    return [part for part in parts if at is None or rate_text(part.rate) == at]


def fewest_completed(parts: Sequence[Part]) -> int:
    """How many requests completed, at the request rate at which it was the fewest."""
    counts = {rate: sum(p.columns.completed for p in parts if p.rate == rate) for rate in {p.rate for p in parts}}
    return min(counts.values(), default=0)
