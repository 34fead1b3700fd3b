"""The Pareto front of a search: the trials to choose from when one number is not enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sweep.metric_table import parse_metric
from sweep.pareto import front_of
from sweep.trial import SEARCHING, Finished, Flags, TrialKind, TrialStatus


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A trial on the front; `values` in the order and units of the front's metrics."""

    number: int
    kind: TrialKind
    flags: Flags
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Front:
    """The Pareto front of two or three metrics over the trials that keep every SLO, by one measurement each.

    `points` by their first metric, the best first. `dominated`: for each of these another trial is better somewhere and
    worse nowhere. `left_out`: measured trials that lack a metric, break an SLO or were disturbed, with the reason.
    """

    metrics: tuple[str, ...]
    points: tuple[FrontPoint, ...]
    dominated: tuple[int, ...]
    left_out: Mapping[int, str]


def make_front(trials: Iterable[Finished], metrics: Sequence[str]) -> Front:
    """The front of `metrics` over the trials of the search that completed undisturbed and keep every SLO."""
    points: dict[int, FrontPoint] = {}
    left_out: dict[int, str] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        if trial.status is not TrialStatus.COMPLETE or trial.kind not in SEARCHING:
            continue
        values = {name: (trial.metrics or {}).get(name) for name in metrics}
        if (why := _why_not(trial, values)) is not None:
            left_out[trial.number] = why
        else:
            known = tuple(value for value in values.values() if value is not None)
            points[trial.number] = FrontPoint(trial.number, trial.kind, trial.flags, known)
    kept = front_of({number: point.values for number, point in points.items()}, metrics)
    sign = 1.0 if parse_metric(metrics[0]).lower_is_better else -1.0
    return Front(
        metrics=tuple(metrics),
        points=tuple(sorted((points[number] for number in kept), key=lambda one: (sign * one.values[0], one.number))),
        dominated=tuple(number for number in points if number not in kept),
        left_out=left_out,
    )


def _why_not(trial: Finished, values: Mapping[str, float | None]) -> str | None:
    missing = [name for name, value in values.items() if value is None]
    if missing:
        return f"{', '.join(missing)} is not defined"
    broken = [name for name, excess in trial.violations.items() if excess > 0]
    if broken:
        return f"breaks the SLO on {', '.join(broken)}"
    return "disturbed" if trial.disturbed and trial.kind is not TrialKind.BASELINE else None
