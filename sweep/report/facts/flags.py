"""The objective against each searched flag: every trial, what a value does on average, and where values fail."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from sweep.report.facts.history import State, state_of
from sweep.trial import SEARCHING, Finished, Flag, TrialKind, TrialStatus
from sweep.verdict import Interval
from sweep.verdict.quantiles import t_quantile

# A flag with more numbers than this is shown in so many groups of about as many trials each.
_MOST_LEVELS, _GROUPS = 12, 8
_LEVEL = 0.95
# Two give an interval as wide as the plot.
_FEWEST = 3


@dataclass(frozen=True, slots=True)
class FlagPoint:
    """One trial of the search: the flag's value (None: left to vLLM) and its score, None where it has none."""

    number: int
    value: Flag
    score: float | None
    state: State


@dataclass(frozen=True, slots=True)
class FlagLevel:
    """One value, or the numbers from `low` to `high`. `mean` is over the `measured` trials with its 95 % interval.

    The other flags vary within a level, too: the interval says how sure the mean is, not that this flag alone makes
    it. None with fewer than three trials. `failed` counts those that could not be measured because of their flags.
    """

    low: Flag
    high: Flag
    measured: int
    failed: int
    mean: Interval | None


@dataclass(frozen=True, slots=True)
class FailedRegion:
    """Neighbouring values of which every trial failed because of its flags: `trials` of them."""

    low: Flag
    high: Flag
    trials: int


@dataclass(frozen=True, slots=True)
class FlagFacts:
    """One flag. `numeric`: every value is a number, and `levels` ascend; `points` are by number of the trial."""

    name: str
    numeric: bool
    points: tuple[FlagPoint, ...]
    levels: tuple[FlagLevel, ...]
    failed_regions: tuple[FailedRegion, ...]


def flag_facts(known: Mapping[int, Finished]) -> tuple[FlagFacts, ...]:
    """The facts of every flag that two trials of the search have different values of."""
    trials = [one for number, one in sorted(known.items()) if one.kind in SEARCHING]
    names = dict.fromkeys(name for one in trials for name in one.flags)
    found = (_facts(name, [one for one in trials if name in one.flags]) for name in names)
    return tuple(one for one in found if len({_key(point.value) for point in one.points}) > 1)


def _facts(name: str, trials: Sequence[Finished]) -> FlagFacts:
    points = tuple(FlagPoint(one.number, one.flags[name], one.score, state_of(one)) for one in trials)
    unfit = {one.number for one in trials if one.status is TrialStatus.INFEASIBLE and one.kind is TrialKind.SEARCH}
    numeric = all(_is_number(point.value) for point in points)
    ordered = sorted({_key(point.value): point.value for point in points}.items(), key=lambda item: item[0])
    values = [value for _, value in ordered]
    groups = [[value] for value in values]
    if numeric and len(values) > _MOST_LEVELS:
        groups = _grouped(values, points)
    return FlagFacts(
        name=name,
        numeric=numeric,
        points=points,
        levels=tuple(_level(group, points, unfit) for group in groups),
        failed_regions=_failed_regions(values, points, unfit),
    )


def _level(values: Sequence[Flag], points: Sequence[FlagPoint], unfit: set[int]) -> FlagLevel:
    keys = {_key(value) for value in values}
    own = [point for point in points if _key(point.value) in keys]
    scores = [p.score for p in own if p.score is not None and p.state in (State.KEPT, State.BREAKS)]
    failed = sum(point.number in unfit for point in own)
    return FlagLevel(values[0], values[-1], len(scores), failed, _mean(scores))


def _mean(scores: Sequence[float]) -> Interval | None:
    if len(scores) < _FEWEST:
        return None
    mean = fmean(scores)
    reach = t_quantile((1 - _LEVEL) / 2, len(scores) - 1) * stdev(scores) / math.sqrt(len(scores))
    return Interval(mean, mean - reach, mean + reach)


def _grouped(values: Sequence[Flag], points: Sequence[FlagPoint]) -> list[list[Flag]]:
    """Neighbouring values together, so that each group has about as many trials."""
    count = {_key(value): sum(_key(point.value) == _key(value) for point in points) for value in values}
    wanted = len(points) / _GROUPS
    groups: list[list[Flag]] = [[]]
    inside = 0
    for value in values:
        if groups[-1] and inside >= wanted and len(groups) < _GROUPS:
            groups.append([])
            inside = 0
        groups[-1].append(value)
        inside += count[_key(value)]
    return groups


def _failed_regions(values: Sequence[Flag], points: Sequence[FlagPoint], unfit: set[int]) -> tuple[FailedRegion, ...]:
    regions: list[FailedRegion] = []
    open_region = False
    for value in values:
        own = [point for point in points if _key(point.value) == _key(value)]
        every = all(point.number in unfit for point in own)
        if every and open_region:
            regions[-1] = FailedRegion(regions[-1].low, value, regions[-1].trials + len(own))
        elif every:
            regions.append(FailedRegion(value, value, len(own)))
        open_region = every
    return tuple(regions)


def _is_number(value: Flag) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _key(value: Flag) -> tuple[int, float, str]:
    """Sorts numbers first, ascending, then words, then what is left to vLLM; equal for equal values alone."""
    if value is None:
        return (2, 0.0, "")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (0, float(value), "")
    return (1, 0.0, f"{type(value).__name__}:{value}")
