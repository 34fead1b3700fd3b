"""What the recommended flags cost and bring: every metric, today's flags beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweep.confirm import Confirmed
from sweep.errors import HostError
from sweep.measured import measure
from sweep.metric_table import parse_metric
from sweep.objective import Objective
from sweep.recommend import Recommendation
from sweep.store import StoredTrial
from sweep.verdict import Interval

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
            name,
            objective,
            line.baseline.value,
            line.leader.value,
            line.baseline,
            line.leader,
            line.ratio,
            thin=line.thin,
        )
        for name in names
        if (line := lines.get(name)) is not None
    )
    return Costs(shown, True, verdict.level, changes)


def search_costs(
    folder: Path,
    recommendation: Recommendation,
    trials: Iterable[StoredTrial],
    objective: Objective,
    names: Sequence[str],
) -> Costs | None:
    """The same from the search's one launch of each; None without a trial to compare with the baseline."""
    number, known = recommendation.number, {one.number: one for one in trials}
    if number in (None, _BASELINE) or number not in known or _BASELINE not in known:
        return None
    try:
        every = [measure(folder, known[place], [objective], names) for place in (_BASELINE, number)]
    except HostError:
        return None
    if every[0] is None or every[1] is None:
        return None
    base, own = every[0][0], every[1][0]
    changes = []
    for name in names:
        before, after = base.metrics.get(name), own.metrics.get(name)
        if before is None or after is None or before <= 0:
            continue
        intervals, thin = (base.intervals.get(name), own.intervals.get(name)), name in base.thin | own.thin
        changes.append(_change(name, objective, before, after, *intervals, None, thin=thin))
    return Costs(number, False, 0.95, tuple(changes))


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
