"""What a launch of the confirmation measured, request by request, and the figures that the verdict compares.

A launch is one fresh server of one configuration under its rounds of load. All rounds are pooled: a percentile is over
the requests of every round, a throughput over their durations together; `NAME@RATE` is over the rounds at that request
rate. Formulas are those of `sweep.metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sweep.metric_table import Metric, parse_metric, rate_text, request_limits
from sweep.metrics import enough_samples
from sweep.records import RequestRecord
from sweep.verdict.resampled import Ranks

Array = NDArray[np.float64]
_PER_REQUEST = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True, eq=False)
class RoundData:
    """One round of load. Arrays of length n have one entry a request, in the order of the round's plan.

    A failed request is NaN in every latency, and one of a single token in `tpot_ms`. `itl_ms` holds the gaps of all
    requests one after another, `itl_counts` (n) how many of them are whose. Rounds of the same `load` had the same
    prompts, arrivals and seeds, so their requests are comparable one by one. `rate` is the request rate, None for all
    at once.
    """

    load: int
    duration_s: float
    ttft_ms: Array
    tpot_ms: Array
    e2el_ms: Array
    input_tokens: Array
    output_tokens: Array
    itl_ms: Array
    itl_counts: NDArray[np.int64]
    rate: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """One fresh server. `key` is the configuration (its trial number), `order` the place among all launches of the
    confirmation, `block` the interleaving block: A B C D is block 0, D C B A is block 1.
    """

    key: int
    block: int
    order: int
    rounds: tuple[RoundData, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LaunchFigures:
    """A launch in few numbers. `metrics` as measured; None where nothing defines one.

    `resampled` (resamples x metrics) holds each metric, in the order of `metrics`, over requests drawn again: rounds
    first, requests within them second. Launches of the same loads draw the same requests, so their differences keep
    what the prompts have in common. NaN where a metric is not defined. `thin` names the percentiles that fewer requests
    stand behind than `samples_needed`.
    """

    key: int
    block: int
    order: int
    loads: tuple[int, ...]
    metrics: Mapping[str, float | None]
    resampled: Array
    thin: frozenset[str] = frozenset()


def from_requests(
    key: int,
    block: int,
    order: int,
    requests: Iterable[RequestRecord],
    *,
    durations_s: Mapping[int, float] | None = None,
    loads: Mapping[int, int] | None = None,
    rates: Mapping[int, float | None] | None = None,
) -> Launch:
    """A launch from stored requests. `durations_s`, `loads` and request `rates` go by round number.

    Without durations a round lasts from its first send to its last token. Without loads every block is taken to have
    loads of its own, the same for all of its launches, as `sweep.workload.confirmation_plans` makes them.
    """
    rounds: dict[int, list[RequestRecord]] = {}
    for request in requests:
        rounds.setdefault(request.round, []).append(request)
    data = []
    for number in sorted(rounds):
        records = sorted(rounds[number], key=lambda record: record.index)
        duration_s = _duration_s(records) if durations_s is None else durations_s[number]
        load = block * 1000 + number if loads is None else loads[number]
        data.append(_round_data(load, duration_s, records, (rates or {}).get(number)))
    return Launch(key, block, order, tuple(data))


def figures_of(
    launch: Launch, names: Sequence[str], *, slo: Mapping[str, float] | None = None, resamples: int = 200, seed: int = 0
) -> LaunchFigures:
    """The metrics `names` of a launch, measured and over requests drawn again (Davison & Hinkley 1997, section 3.8).

    `slo` are the limits behind `goodput_per_s`, as in `sweep.metrics.summarize`. Raises ConfigError for an unknown
    name.
    """
    metrics = [parse_metric(name) for name in dict.fromkeys(names)]
    loads = tuple(part.load for part in launch.rounds)
    rates = tuple(rate_text(part.rate) for part in launch.rounds)
    resampled = np.full((resamples, len(metrics)), np.nan)
    values: dict[str, float | None] = dict.fromkeys(metric.name for metric in metrics)
    thin: set[str] = set()
    sizes = tuple(len(part.ttft_ms) for part in launch.rounds)
    drawn = _draws(sizes, loads, rates, resamples, seed) if resamples else np.zeros((0, sum(sizes)), dtype=np.int32)
    for at in dict.fromkeys(metric.at for metric in metrics):
        chosen = [at in (None, rate) for rate in rates]
        sample = _pool([part for part, keep in zip(launch.rounds, chosen, strict=True) if keep], slo or {}, at)
        if sample is None:
            continue
        draws = _Drawn(sample, drawn[:, np.repeat(chosen, sizes)])
        once = _Drawn(sample, np.ones((1, draws.times.shape[1]), dtype=np.int32))
        completed = int(sample.amounts["request_throughput_per_s"].sum())
        for column, metric in enumerate(metrics):
            measured = float(_statistic(metric, once)[0]) if metric.at == at else math.nan
            if metric.at == at and metric.percentile is not None and not enough_samples(metric.percentile, completed):
                thin.add(metric.name)
            if math.isfinite(measured):
                values[metric.name] = measured
                if resamples:
                    resampled[:, column] = _statistic(metric, draws)
    return LaunchFigures(launch.key, launch.block, launch.order, loads, values, resampled, frozenset(thin))


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    """All requests of a launch. `owner` is whose each value is; `durations_s` has an entry a request: its round's
    duration over the round's size, so that the durations of drawn requests add up to that of the drawn rounds.
    """

    values: Mapping[str, Array]
    owners: Mapping[str, NDArray[np.int64]]
    amounts: Mapping[str, Array]
    durations_s: Array


def _pool(rounds: Sequence[RoundData], slo: Mapping[str, float], at: str | None) -> _Sample | None:
    if not any(np.isfinite(part.ttft_ms).any() for part in rounds):
        return None
    whole = {stem: np.concatenate([getattr(part, f"{stem}_ms") for part in rounds]) for stem in _PER_REQUEST}
    done = np.isfinite(whole["ttft"])
    values = {stem: numbers[np.isfinite(numbers)] for stem, numbers in whole.items()}
    owners = {stem: np.flatnonzero(np.isfinite(numbers)) for stem, numbers in whole.items()}
    values["itl"] = np.concatenate([part.itl_ms for part in rounds])
    owners["itl"] = np.repeat(np.arange(len(done)), np.concatenate([part.itl_counts for part in rounds]))
    output = np.where(done, np.nan_to_num(np.concatenate([part.output_tokens for part in rounds])), 0.0)
    asked = np.where(done, np.nan_to_num(np.concatenate([part.input_tokens for part in rounds])), 0.0)
    amounts = {
        "request_throughput_per_s": done.astype(float),
        "output_throughput_tokens_per_s": output,
        "total_throughput_tokens_per_s": output + asked,
    }
    if limits := request_limits(slo, at):
        good = done.copy()
        for stem, limit in limits.items():
            good &= np.nan_to_num(whole[stem]) <= limit
        amounts["goodput_per_s"] = good.astype(float)
    durations_s = np.concatenate([np.full(len(p.ttft_ms), p.duration_s / max(1, len(p.ttft_ms))) for p in rounds])
    return _Sample(values, owners, amounts, durations_s)


@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    """A sample with `times` (rows x requests: how often each request counts); each latency is put in order once."""

    sample: _Sample
    times: NDArray[np.int32]
    _ranks: dict[str, Ranks] = field(default_factory=dict)

    def ranks(self, stem: str) -> Ranks:
        if stem not in self._ranks:
            self._ranks[stem] = Ranks.of(self.sample.values[stem], self.sample.owners[stem], self.times)
        return self._ranks[stem]


def _statistic(metric: Metric, drawn: _Drawn) -> Array:
    """The metric for each row of what is drawn; NaN where it is not defined."""
    sample, draws = drawn.sample, drawn.times
    if metric.stat == "rate":
        if metric.base not in sample.amounts:
            return np.full(len(draws), np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray((draws @ sample.amounts[metric.base]) / (draws @ sample.durations_s))
    values, owner = sample.values[metric.stem], sample.owners[metric.stem]
    if not len(values):
        return np.full(len(draws), np.nan)
    if metric.percentile is not None:
        return drawn.ranks(metric.stem).percentile(metric.percentile)
    requests = draws.shape[1]

    def sums(weights: Array) -> Array:
        return np.asarray(draws @ np.bincount(owner, weights, requests))

    total = draws @ np.bincount(owner, minlength=requests)
    with np.errstate(invalid="ignore", divide="ignore"):
        if metric.stat == "mean":
            return np.asarray(sums(values) / total)
        centred = values - values.mean()
        return np.asarray(np.sqrt(np.maximum(0, sums(centred**2) / total - (sums(centred) / total) ** 2)))


@lru_cache(maxsize=32)
def _draws(
    sizes: tuple[int, ...], loads: tuple[int, ...], rates: tuple[str, ...], resamples: int, seed: int
) -> NDArray[np.int32]:
    """How often each request is drawn (resamples x requests); a function of the loads alone, so shared by launches.
    Each request rate keeps its number of rounds."""
    rng = np.random.default_rng([seed, *(load % 2**32 for load in loads)])
    times = np.zeros((resamples, len(sizes)), dtype=np.int64)
    for rate in dict.fromkeys(rates):
        places = [place for place, one in enumerate(rates) if one == rate]
        times[:, places] = rng.multinomial(len(places), [1 / len(places)] * len(places), size=resamples)
    parts = [rng.multinomial(times[:, k] * size, [1 / size] * size) for k, size in enumerate(sizes) if size]
    return np.concatenate(parts, axis=1).astype(np.int32)


def _duration_s(records: Sequence[RequestRecord]) -> float:
    sent = [r.start_s for r in records if r.start_s is not None]
    ended = [r.start_s + r.e2el_ms / 1000 for r in records if r.start_s is not None and r.e2el_ms is not None]
    return max(ended) - min(sent) if ended else 0.0


def _round_data(load: int, duration_s: float, records: Sequence[RequestRecord], rate: float | None) -> RoundData:
    done = [record.error is None and record.ttft_ms is not None for record in records]
    ttft, e2el, output, asked = (
        np.array([np.nan if value is None else value for value in column], dtype=float)
        for column in zip(*((r.ttft_ms, r.e2el_ms, r.output_tokens, r.input_tokens) for r in records), strict=True)
    )
    failed = ~np.array(done)
    ttft[failed] = e2el[failed] = np.nan
    tpot = np.full(len(records), np.nan)
    several = np.nan_to_num(output) >= 2
    tpot[several] = (e2el[several] - ttft[several]) / (output[several] - 1)
    gaps = [record.itl_ms if good else () for record, good in zip(records, done, strict=True)]
    return RoundData(
        load=load,
        duration_s=duration_s,
        ttft_ms=ttft,
        tpot_ms=tpot,
        e2el_ms=e2el,
        input_tokens=asked,
        output_tokens=output,
        itl_ms=np.array([gap for part in gaps for gap in part], dtype=float),
        itl_counts=np.array([len(part) for part in gaps], dtype=np.int64),
        rate=rate,
    )
