"""The highest request rate that keeps limits on latencies: how much a setting carries.

A rate counts only while answers keep up with requests: above that a latency says how long the load was, and a limit on
TPOT alone would hold at any rate. As in the calibration of a study (`sweep.knee`), n requests at rate r keep up when
they are answered within (n / r + p95 E2EL of a calm load) / 0.9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sweep.errors import UserError
from sweep.metric_table import parse_metric
from sweep.metrics import samples_needed
from sweep.predict.values import LEVEL, Capacity
from sweep.twin import Calibration, Costs, Engine, Load, Simulation, predict, simulate
from sweep.twinning.load import SentRound, at_rate, in_one

THROUGHPUT = "throughput"

_FOLLOWS = 0.9
# As the intervals of a prediction near saturation, which take in a device a quarter slower.
_SLOWER = 1.25
# From where the study's load is, so many doublings either way are looked at. A rate is then found this exactly; one
# that hangs on the ends of intervals, each of which takes a second, less so.
_DOUBLINGS, _EXACT, _EXACT_SURE = 8, 1.02, 1.05
# Requests to simulate at least, and output tokens at most (what all rounds have, if that is more): ten seconds in all.
_REQUESTS, _TOKENS = 300, 80_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper limits in ms by the name of the table of metrics; `ranks` are the percentiles they are on."""

    slo: Mapping[str, float]
    names: Mapping[str, str]  # as the twin calls each: median_ttft_ms is p50_ttft_ms
    ranks: tuple[float, ...]


def limits_of(slo: Mapping[str, float]) -> Limits:
    """Limits that can be held against simulated figures.

    Raises UserError for a metric that is no percentile of a latency, and for a limit that is not above zero.
    """
    names, ranks = {}, []
    for name, limit in slo.items():
        metric = parse_metric(name)
        if metric.at is not None:
            raise UserError(f"--slo: {name} is of one rate alone; write {metric.base}")
        if metric.percentile is None:
            raise UserError(f"--slo: {name} is no percentile of a latency, such as p95_ttft_ms")
        if not (math.isfinite(limit) and limit > 0):
            raise UserError(f"--slo: the limit on {name} must be above zero")
        names[name] = f"p{metric.percentile:g}_{metric.stem}_ms"
        ranks.append(metric.percentile)
    return Limits(dict(slo), names, tuple(dict.fromkeys(ranks)))


def can_hold(name: str) -> bool:
    """Whether a limit on this metric can be held against simulated figures."""
    metric = parse_metric(name)
    return metric.percentile is not None and metric.at is None


def capacity(
    calibration: Calibration,
    engines: Sequence[Engine],
    rounds: Sequence[SentRound],
    limits: Limits,
    *,
    start_per_s: float,
    max_concurrency: int | None,
    burstiness: float,
    seed: int,
) -> Capacity:
    """Bisects for the highest rate within `limits`; `engines` are the expected one and others it may turn out to be.

    Raises TwinError for a load that cannot run.
    """
    needed = max(_REQUESTS, *(samples_needed(rank) for rank in limits.ranks))
    probe = _Probe(calibration, engines, rounds, limits, needed, max_concurrency, burstiness, seed)
    lowest, highest = start_per_s / 2**_DOUBLINGS, start_per_s * 2**_DOUBLINGS
    expected = _highest(lambda rate: probe.breaks(rate) is None, start_per_s, lowest, highest, _EXACT)
    sure = None if expected is None else _highest(probe.surely, expected, lowest, expected, _EXACT_SURE)
    binding = None
    if expected is not None and expected < highest:
        binding = probe.breaks(expected * _EXACT) or probe.breaks(expected * _EXACT**2)
    return Capacity(
        slo=limits.slo,
        expected_per_s=_rounded_down(expected),
        sure_per_s=_rounded_down(sure),
        binding=binding,
        lowest_per_s=lowest,
        highest_per_s=highest,
        requests=len(probe.load(start_per_s)),
    )


class _Probe:
    """One setting at any rate."""

    def __init__(
        self,
        calibration: Calibration,
        engines: Sequence[Engine],
        rounds: Sequence[SentRound],
        limits: Limits,
        requests: int,
        max_concurrency: int | None,
        burstiness: float,
        seed: int,
    ) -> None:
        self._calibration, self._engines, self._rounds, self._limits = calibration, engines, rounds, limits
        self._requests, self._max_concurrency = requests, max_concurrency
        self._burstiness, self._seed = burstiness, seed
        self._calm: dict[Costs, float] = {}

    def load(self, rate: float) -> Load:
        rounds = at_rate(self._rounds, rate, burstiness=self._burstiness, seed=self._seed)
        return in_one(rounds, requests=self._requests, tokens=_TOKENS)

    def breaks(self, rate: float) -> str | None:
        """What the expected run at this rate does not keep: a metric of the limits, or THROUGHPUT."""
        run = self._run(rate, self._calibration.costs, self._engines[0])
        for name, limit in self._limits.slo.items():
            metric = parse_metric(name)
            values = getattr(run, f"{metric.stem}_s")
            values = values[np.isfinite(values)]
            if len(values) and float(np.percentile(values, metric.percentile or 50.0)) * 1000.0 > limit:
                return name
        return None if self._follows(rate, run, self._calibration.costs) else THROUGHPUT

    def surely(self, rate: float) -> bool:
        """Whether the upper ends of all intervals keep the limits, and a slower device keeps up."""
        slower = self._calibration.costs.times(_SLOWER)
        for engine in self._engines:
            if not self._follows(rate, self._run(rate, slower, engine), slower):
                return False
            found = predict(
                self._calibration,
                self.load(rate),
                engine,
                max_concurrency=self._max_concurrency,
                percentiles=self._limits.ranks,
                level=LEVEL,
            )
            for name, limit in self._limits.slo.items():
                interval = found.metrics.get(self._limits.names[name])
                if interval is not None and interval.high > limit:
                    return False
        return True

    def _run(self, rate: float, costs: Costs, engine: Engine) -> Simulation:
        looks = self._calibration.engine(engine)
        return simulate(self.load(rate), looks, costs, max_concurrency=self._max_concurrency)

    def _follows(self, rate: float, run: Simulation, costs: Costs) -> bool:
        if costs not in self._calm:
            calm = self._run(1e-6, costs, self._engines[0])
            self._calm[costs] = float(np.percentile(calm.e2el_s, 95))
        return len(run.load) / rate + self._calm[costs] >= _FOLLOWS * run.duration_s


def _highest(keeps: Callable[[float], bool], start: float, lowest: float, highest: float, exact: float) -> float | None:
    """The highest rate that keeps, within a factor `exact`, between two bounds; None where `lowest` does not.

    Taken for granted: what keeps at a rate keeps at every lower one.
    """
    good, bad = None, None
    rate = min(max(start, lowest), highest)
    while good is None or bad is None:
        if keeps(rate):
            good = rate
            if rate >= highest:
                return good
            rate = min(rate * 2.0, highest) if bad is None else rate
        else:
            bad = rate
            if rate <= lowest:
                return None
            rate = max(rate / 2.0, lowest) if good is None else rate
    while bad / good > exact:
        rate = math.sqrt(good * bad)
        good, bad = (rate, bad) if keeps(rate) else (good, rate)
    return good


def _rounded_down(rate: float | None) -> float | None:
    """To three digits, and downwards: no rate is claimed that was not found to keep."""
    if rate is None:
        return None
    unit = 10.0 ** (math.floor(math.log10(rate)) - 2)
    # A little is added: 7.25 is not to become 7.24 for the way it is stored.
    return float(f"{math.floor(rate / unit + 1e-9) * unit:.3g}")
