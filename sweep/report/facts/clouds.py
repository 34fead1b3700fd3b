"""Trials where two metrics pull apart, with the Pareto front among them; and all of them on parallel axes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweep.front import make_front
from sweep.report.facts.history import State, state_of
from sweep.report.facts.sheets import Sheet
from sweep.trial import SEARCHING, Finished, Flag, TrialKind

# What pulls apart on an inference server: first token against the next ones, and one user against all.
PAIRS = (("p95_ttft_ms", "p95_tpot_ms"), ("p95_e2el_ms", "output_throughput_tokens_per_s"))
_TICKS = 5


@dataclass(frozen=True, slots=True)
class CloudPoint:
    """A measured trial in the plane of two metrics, in their units."""

    number: int
    kind: TrialKind
    state: State
    x: float
    y: float
    on_front: bool


@dataclass(frozen=True, slots=True)
class Cloud:
    """The measured trials of the search by two metrics; the front is over those that keep every SLO, undisturbed."""

    metrics: tuple[str, str]
    points: tuple[CloudPoint, ...]

    @property
    def front(self) -> tuple[CloudPoint, ...]:
        """The points on the front by their first metric."""
        return tuple(sorted((point for point in self.points if point.on_front), key=lambda point: point.x))


@dataclass(frozen=True, slots=True)
class Axis:
    """One of the parallel axes: `ticks` are (place, text), from 0 at the bottom to 1. `metric`: of a metric."""

    name: str
    ticks: tuple[tuple[float, str], ...]
    metric: bool


@dataclass(frozen=True, slots=True)
class Line:
    """A trial across the axes: its place on each, None where it has no value. `third`: 0 for the best third by score
    among those with one, to 2; None without a score.
    """

    number: int
    state: State
    places: tuple[float | None, ...]
    third: int | None


@dataclass(frozen=True, slots=True)
class Parallel:
    """All trials of the search on one axis a flag, then the metrics of the objective, then the score."""

    axes: tuple[Axis, ...]
    lines: tuple[Line, ...]


def clouds_of(
    known: Mapping[int, Finished], sheets: Mapping[int, Sheet], own_front: Sequence[str]
) -> tuple[Cloud, ...]:
    """A cloud for each of `PAIRS`, and for each pair of a front that the study searched for."""
    others = [(a, b) for place, a in enumerate(own_front) for b in own_front[place + 1 :]]
    pairs = [*PAIRS, *(pair for pair in others if pair not in PAIRS and pair[::-1] not in PAIRS)]
    return tuple(cloud for pair in pairs if (cloud := _cloud(pair, known, sheets)).points)


def _cloud(pair: tuple[str, str], known: Mapping[int, Finished], sheets: Mapping[int, Sheet]) -> Cloud:
    measured = [
        dataclasses.replace(one, metrics=sheets[number].metrics)
        for number, one in sorted(known.items())
        if one.kind in SEARCHING and number in sheets and sheets[number].metrics
    ]
    on_front = {point.number for point in make_front(measured, pair).points}
    points = []
    for one in measured:
        assert one.metrics is not None
        x, y = (one.metrics.get(name) for name in pair)
        if x is not None and y is not None:
            points.append(CloudPoint(one.number, one.kind, state_of(one), x, y, one.number in on_front))
    return Cloud(pair, tuple(points))


def parallel_of(known: Mapping[int, Finished], sheets: Mapping[int, Sheet], metrics: Sequence[str]) -> Parallel | None:
    """All trials of the search; None before there are two."""
    trials = [one for number, one in sorted(known.items()) if one.kind in SEARCHING and number in sheets]
    if len(trials) < 2:
        return None
    names = dict.fromkeys(name for one in trials for name in one.flags)
    scales = [_Scale.of(name, [one.flags.get(name) for one in trials if name in one.flags]) for name in names]
    readings = [[sheets[one.number].metrics.get(name) for one in trials] for name in metrics]
    more = [_Scale.of(name, values, metric=True) for name, values in zip(metrics, readings, strict=True)]
    score = _Scale.of("score", [one.score for one in trials], metric=True)
    ranked = sorted(one.score for one in trials if one.score is not None)
    lines = []
    for place, one in enumerate(trials):
        spots = [scale.place(one.flags.get(scale.name), given=scale.name in one.flags) for scale in scales]
        spots += [scale.place(values[place]) for scale, values in zip(more, readings, strict=True)]
        third = None if one.score is None else min(2, 3 * ranked.index(one.score) // len(ranked))
        lines.append(Line(one.number, state_of(one), (*spots, score.place(one.score)), third))
    axes = [Axis(scale.name, scale.ticks, metric=False) for scale in scales]
    axes += [Axis(scale.name, scale.ticks, metric=True) for scale in more]
    axes.append(Axis(score.name, score.ticks, metric=False))
    return Parallel(tuple(axes), tuple(lines))


@dataclass(frozen=True, slots=True)
class _Scale:
    """From values to places: numbers in proportion (by their logarithm where they span decades), others by rank."""

    name: str
    words: tuple[Flag, ...] | None
    low: float
    high: float
    log: bool
    metric: bool
    with_null: bool

    @classmethod
    def of(cls, name: str, values: Sequence[Flag], *, metric: bool = False) -> _Scale:
        numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        numbers = [value for value in numbers if math.isfinite(value)]
        nulls = not metric and None in values
        if metric or len(numbers) == len(values) - sum(value is None for value in values):
            low, high = (min(numbers), max(numbers)) if numbers else (0.0, 0.0)
            return cls(name, None, low, high, low > 0 and high / low >= 16, metric, nulls)
        words = sorted({f"{value}": value for value in values if value is not None}.items())
        return cls(name, tuple(value for _, value in words), 0.0, float(max(len(words) - 1, 0)), False, metric, nulls)

    def place(self, value: Flag, *, given: bool = True) -> float | None:
        if value is None:
            return 0.0 if self.with_null and given else None
        if self.words is not None:
            return self._spread(float([str(word) for word in self.words].index(str(value))))
        assert isinstance(value, int | float)
        return self._spread(float(value)) if math.isfinite(value) else None

    @property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        null = ((0.0, "(vLLM's default)"),) if self.with_null else ()
        if self.words is not None:
            return (*null, *((self._spread(float(place)), str(word)) for place, word in enumerate(self.words)))
        shares = [place / (_TICKS - 1) for place in range(_TICKS)] if self.high > self.low else [0.0]
        values = [
            self.low * (self.high / self.low) ** share if self.log else self.low + share * (self.high - self.low)
            for share in shares
        ]
        return (*null, *((self._spread(value), _tick(value)) for value in values))

    def _spread(self, value: float) -> float:
        """Above the place of null, where there is one."""
        bottom = 0.12 if self.with_null else 0.0
        if self.high <= self.low:
            return (1 + bottom) / 2
        low, high, own = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return bottom + (1 - bottom) * (own - low) / (high - low)


def _tick(value: float) -> str:
    """With the digits that tell it from its neighbours, and no power of ten."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
