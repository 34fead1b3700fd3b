"""What the recommended flags cost and bring: every metric, today's flags beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweep.confirm import Confirmed
from sweep.errors import HostError
from sweep.metric_table import parse_metric
from sweep.metrics import RequestColumns, enough_samples
from sweep.objective import Objective
from sweep.recommend import Recommendation
from sweep.report.facts.sheets import Sheet
from sweep.store import read_request_columns
from sweep.verdict import Interval, percentile_interval

_BASELINE = 0


@dataclass(frozen=True, slots=True)
class MetricChange:
    """One metric of the baseline and of the flags recommended, in its unit.

    Intervals are None where nothing gives one. `ratio` is theirs / the baseline's. `limit` is the SLO's, None without
    one; `thin`: too few requests stand behind it.
    """

    name: str
    unit: str
    lower_is_better: bool
    baseline: float
    baseline_interval: Interval | None
    winner: float
    winner_interval: Interval | None
    ratio: float
    ratio_interval: Interval | None
    limit: float | None
    thin: bool

    @property
    def keeps(self) -> bool | None:
        """Whether the recommended flags keep the SLO; None without one."""
        if self.limit is None:
            return None
        return self.winner <= self.limit if self.lower_is_better else self.winner >= self.limit

    @property
    def better(self) -> bool | None:
        """Whether it changed for the better beyond its interval; None where that cannot be told."""
        interval = self.ratio_interval
        if interval is None or interval.low <= 1 <= interval.high:
            return None
        return (interval.high < 1) is self.lower_is_better


@dataclass(frozen=True, slots=True)
class Costs:
    """`of` is the trial whose flags they are. `confirmed`: measured by the launches of the confirmation, so that the
    intervals hold from server to server; otherwise by one launch each, and an interval says how well these requests
    know their percentile.
    """

    of: int
    confirmed: bool
    level: float
    changes: tuple[MetricChange, ...]


def confirmed_costs(confirmed: Confirmed, objective: Objective, names: Sequence[str]) -> Costs | None:
    """Those of `names` that every launch has, of the configuration that the verdict shows; None before it shows one."""
    verdict = confirmed.verdict
    shown = verdict.winner if verdict.winner is not None else None if verdict.leader is None else verdict.leader.key
    if shown is None:
        return None
    lines = {line.name: line for line in verdict.metrics}
    changes = tuple(
        _change(
            name, objective, line.baseline.value, line.leader.value, line.baseline, line.leader, line.ratio, thin=False
        )
        for name in names
        if (line := lines.get(name)) is not None
    )
    return Costs(shown, True, verdict.level, changes)


def search_costs(
    folder: Path,
    recommendation: Recommendation,
    sheets: Mapping[int, Sheet],
    objective: Objective,
    names: Sequence[str],
) -> Costs | None:
    """The same from the search's one launch of each; None without a trial to compare with the baseline."""
    number = recommendation.number
    if number in (None, _BASELINE) or number not in sheets or _BASELINE not in sheets:
        return None
    base, own = sheets[_BASELINE].metrics, sheets[number].metrics
    try:
        columns = (read_request_columns(folder, _BASELINE), read_request_columns(folder, number))
    except HostError:
        return None
    changes = []
    for name in names:
        before, after = base.get(name), own.get(name)
        if before is None or after is None or before <= 0:
            continue
        intervals = [_interval(name, of_trial) for of_trial in columns]
        percentile = parse_metric(name).percentile
        fewest = min(of_trial.completed for of_trial in columns)
        thin = percentile is not None and not enough_samples(percentile, fewest)
        changes.append(_change(name, objective, before, after, intervals[0], intervals[1], None, thin=thin))
    return Costs(number, False, 0.95, tuple(changes))


def _interval(name: str, columns: RequestColumns) -> Interval | None:
    metric = parse_metric(name)
    # Gaps of one request are alike, so the pooled ones say too little of how sure their percentile is.
    if metric.percentile is None or metric.stem == "itl" or metric.at is not None:
        return None
    return percentile_interval(columns.samples(metric.stem), metric.percentile)


def _change(
    name: str,
    objective: Objective,
    before: float,
    after: float,
    before_interval: Interval | None,
    after_interval: Interval | None,
    ratio: Interval | None,
    *,
    thin: bool,
) -> MetricChange:
    metric = parse_metric(name)
    return MetricChange(
        name=name,
        unit=metric.unit,
        lower_is_better=metric.lower_is_better,
        baseline=before,
        baseline_interval=before_interval,
        winner=after,
        winner_interval=after_interval,
        ratio=after / before if ratio is None else ratio.value,
        ratio_interval=ratio,
        limit=objective.limits.get(name),
        thin=thin,
    )
