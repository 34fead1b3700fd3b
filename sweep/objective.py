"""The one number that is minimised: how long people wait, relative to today's flags.

A `ratio` is measured / baseline for a latency and baseline / measured for a throughput. They make one value:

- `mean`: `sum(|weight| * ratio) / sum(|weight|)`, the default.
- `geometric`: `exp(sum(|weight| * ln(ratio)) / sum(|weight|))`: half of one wait makes up for twice another.
- `worst`: the largest ratio, whatever its weight: better means better in every metric named.

Where the rounds of a load take turns at several request rates every metric is a metric at each rate, compared with the
baseline's at that rate: its weight is shared evenly among the rates, and its SLO must be kept at every one. `NAME@RATE`
names one rate alone; its weight adds to that of NAME, its SLO stands in place of it.

So the baseline scores exactly 1.0 and lower is better, always: 0.9 reads "waits are a tenth shorter". In the study file
the weight of a latency is above zero and the weight of a throughput below zero (it is wanted large); any other sign is
refused as the slip it is. SLOs are no part of the value: they are constraints, see `recommend.rank_key`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from sweep.errors import ConfigError
from sweep.metric_table import Metric, check_rate, metric_at, parse_metric, rate_text, request_limits
from sweep.pareto import check_front
from sweep.trial import Score

Aggregate = Literal["mean", "geometric", "worst"]

# TTFT is taken at p95: its p99 differs by 17 % between runs of one server, its p95 by 5 %. ITL pools every token of
# a round, thousands of samples, so that its p99 is steady (3 %).
PRESETS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "responsive": {"p95_ttft_ms": 0.6, "p50_ttft_ms": 0.4},
        "fluent": {"p95_tpot_ms": 0.6, "p50_tpot_ms": 0.4},
        "steady": {"p99_itl_ms": 0.7, "std_itl_ms": 0.3},
        "complete": {"p95_e2el_ms": 0.6, "p50_e2el_ms": 0.4},
        "balanced": {
            "p95_ttft_ms": 0.3,
            "p95_tpot_ms": 0.25,
            "p99_itl_ms": 0.15,
            "p95_e2el_ms": 0.2,
            "output_throughput_tokens_per_s": -0.1,
        },
    }
)

# A throughput of zero is a measurement (no request kept its SLO), but a division by it is not a number to average.
_WORST_RATIO = 1000.0
NO_GOODPUT = "goodput_per_s needs an SLO on TTFT, TPOT or E2EL: it counts the requests that keep it"


def weights_of(preset: str) -> dict[str, float]:
    """The weights a preset stands for. Raises ConfigError naming the presets there are."""
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r}; there are {', '.join(PRESETS)}")
    return dict(PRESETS[preset])


@dataclass(frozen=True, slots=True)
class Objective:
    """Weights and SLOs, checked. `slo`: upper limits of latencies, lower limits of throughputs.

    `front` names the two or three metrics a search looks for a front of, instead of the one value; none by default.
    `rates` are the request rates of a load that has several; `terms` and `limits` are weights and SLOs as they count,
    at each of them. Raises ConfigError for an unknown metric or aggregate, a weight of the wrong sign, a limit that is
    not above zero, no weights, goodput without an SLO that says which requests are good, and what `check_rate` does.
    """

    weights: Mapping[str, float]
    slo: Mapping[str, float]
    aggregate: Aggregate = "mean"
    front: tuple[str, ...] = ()
    rates: tuple[float | None, ...] = ()
    terms: Mapping[str, float] = field(init=False, repr=False)
    limits: Mapping[str, float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.aggregate not in get_args(Aggregate):
            raise ConfigError(f"unknown aggregate {self.aggregate!r}; there are {', '.join(get_args(Aggregate))}")
        if self.front:
            check_front(self.front)
            object.__setattr__(self, "front", tuple(parse_metric(name).name for name in self.front))
        if not self.weights:
            raise ConfigError("no weights: name at least one metric or take a preset")
        for name, weight in self.weights.items():
            lower = parse_metric(name).lower_is_better
            if not math.isfinite(weight) or weight == 0 or (weight > 0) is not lower:
                wanted = (
                    "above zero: a latency is wanted small" if lower else "below zero: a throughput is wanted large"
                )
                raise ConfigError(f"the weight of {name} is {weight:g}, but must be {wanted}")
        for name, limit in self.slo.items():
            parse_metric(name)
            if not 0 < limit < math.inf:
                raise ConfigError(f"the SLO of {name} is {limit:g}, but a limit must be above zero")
        for place in (self.weights, self.slo, self.front):
            for name in place:
                check_rate(name, self.rates, front=place is self.front)
        terms: dict[str, float] = {}
        for name, weight in self.weights.items():
            for one in self._at_rates(name):
                terms[one] = terms.get(one, 0.0) + weight / len(self._at_rates(name))
        plain_first = sorted(self.slo, key=lambda name: parse_metric(name).at is not None)
        object.__setattr__(self, "terms", terms)
        object.__setattr__(
            self, "limits", {one: self.slo[name] for name in plain_first for one in self._at_rates(name)}
        )
        for metric in map(parse_metric, self.metrics_needed()):
            if metric.base == "goodput_per_s" and not request_limits(self.limits, metric.at):
                raise ConfigError(NO_GOODPUT)

    def _at_rates(self, name: str) -> tuple[str, ...]:
        """The metrics that a name stands for."""
        metric = parse_metric(name)
        if metric.at is not None or len(self.rates) < 2:
            return (metric.name,)
        return tuple(metric_at(metric.base, rate) for rate in self.rates)

    @classmethod
    def of(
        cls,
        preset: str | None,
        weights: Mapping[str, float],
        slo: Mapping[str, float],
        aggregate: Aggregate = "mean",
        front: tuple[str, ...] = (),
        rates: Sequence[float | None] = (),
    ) -> Objective:
        """The objective of a study file: `weights`, or those of `preset`, or of `balanced` where neither is given.

        `rates` are all request rates of its load.
        """
        given = dict(weights) if weights else weights_of(preset or "balanced")
        return cls(given, dict(slo), aggregate, front, tuple(rates) if len(rates) > 1 else ())

    def describe(self) -> str:
        """One line that may be pasted into a study file: `weights: {p95_ttft_ms: 0.4, ...}`, and what else is set."""
        parts = {"weights": self.weights, "slo": self.slo} if self.slo else {"weights": self.weights}
        words = [
            f"{key}: {{{', '.join(f'{name}: {number:g}' for name, number in part.items())}}}"
            for key, part in parts.items()
        ]
        words += [f"aggregate: {self.aggregate}"] if self.aggregate != "mean" else []
        words += [f"front: [{', '.join(self.front)}]"] if self.front else []
        return ", ".join(words)

    def metrics_needed(self) -> tuple[str, ...]:
        """Names of every metric that weights, SLOs and front use, each once, in the order of the study file and, with
        several request rates, each at each rate."""
        return tuple(dict.fromkeys((*self.terms, *self.limits, *self.front)))

    def percentiles_needed(self) -> tuple[float, ...]:
        """The percentiles among them (0..100, ascending); a median is the 50th."""
        found = {parse_metric(name).percentile for name in self.metrics_needed()}
        return tuple(sorted(percentile for percentile in found if percentile is not None))

    def score(self, metrics: Mapping[str, float | None], baseline_metrics: Mapping[str, float | None]) -> Score:
        """The score of measured `metrics` (units as in their names) against those of the baseline.

        `value` is None, never 0, when a metric of the weights or of the SLOs is missing, not finite or, for a
        latency, zero, and when the baseline's is. Each violation is measured / limit - 1, for the lower limit of a
        throughput limit / measured - 1; infinite where the metric is missing, since nothing shows the SLO was kept.
        `front` holds the ratios of the front's metrics, None without a front or where one of them is missing. With
        several request rates ratios and violations are by `NAME@RATE`.
        """
        ratios = _ratios(self.terms, metrics, baseline_metrics)
        violations = {
            name: _violation(parse_metric(name), metrics.get(name), limit) for name, limit in self.limits.items()
        }
        front = _ratios(self.front, metrics, baseline_metrics)
        return Score(
            self._value(self.terms, self.limits, ratios, metrics),
            ratios,
            violations,
            tuple(front.values()) if front and len(front) == len(self.front) else None,
        )

    def shares(self) -> dict[float | None, float]:
        """How much of all weight the metrics of each request rate have; those with none are left out."""
        if not self.rates:
            return {None: 1.0}
        total = sum(abs(weight) for weight in self.terms.values())
        found = {
            rate: sum(abs(w) for name, w in self.terms.items() if parse_metric(name).at == rate_text(rate)) / total
            for rate in self.rates
        }
        return {rate: share for rate, share in found.items() if share > 0}

    def value_at(
        self,
        metrics: Mapping[str, float | None],
        baseline_metrics: Mapping[str, float | None],
        rates: Collection[float | None],
    ) -> float | None:
        """The value over some of the load's request rates alone, such as that of one round; None as in `score`, and
        where nothing has a weight there. Of a load with one rate that is the value of `score`."""
        if not self.rates:
            return self.score(metrics, baseline_metrics).value
        places = {rate_text(rate) for rate in rates}
        terms = {name: weight for name, weight in self.terms.items() if parse_metric(name).at in places}
        limits = [name for name in self.limits if parse_metric(name).at in places]
        return self._value(terms, limits, _ratios(terms, metrics, baseline_metrics), metrics)

    def _value(
        self,
        terms: Mapping[str, float],
        limits: Collection[str],
        ratios: Mapping[str, float],
        metrics: Mapping[str, float | None],
    ) -> float | None:
        measured = all(_usable(parse_metric(name), metrics.get(name)) is not None for name in limits)
        if not measured or not terms or len(ratios) < len(terms):
            return None
        if self.aggregate == "worst":
            return max(ratios.values())
        total = sum(abs(weight) for weight in terms.values())
        if self.aggregate == "geometric":
            # A spread of zero would make the whole product zero, whatever else was measured.
            logs = {name: math.log(max(ratio, 1 / _WORST_RATIO)) for name, ratio in ratios.items()}
            return math.exp(sum(abs(weight) * logs[name] for name, weight in terms.items()) / total)
        return sum(abs(weight) * ratios[name] for name, weight in terms.items()) / total


def _usable(metric: Metric, number: float | None) -> float | None:
    """The number if it can be a measurement: a spread or a rate may be zero, a latency may not."""
    if number is None or not math.isfinite(number) or number < 0:
        return None
    may_be_zero = metric.stat == "std" or not metric.lower_is_better
    return number if number > 0 or may_be_zero else None


def _ratios(
    names: Iterable[str], metrics: Mapping[str, float | None], baseline_metrics: Mapping[str, float | None]
) -> dict[str, float]:
    """Those that can be computed."""
    found = ((name, _ratio(parse_metric(name), metrics.get(name), baseline_metrics.get(name))) for name in names)
    return {name: ratio for name, ratio in found if ratio is not None}


def _ratio(metric: Metric, number: float | None, baseline: float | None) -> float | None:
    measured, before = _usable(metric, number), _usable(metric, baseline)
    if measured is None or not before:
        return None
    if metric.lower_is_better:
        return measured / before
    return min(before / measured, _WORST_RATIO) if measured else _WORST_RATIO


def _violation(metric: Metric, number: float | None, limit: float) -> float:
    measured = _usable(metric, number)
    if measured is None:
        return math.inf
    if metric.lower_is_better:
        return measured / limit - 1
    return limit / measured - 1 if measured else math.inf
