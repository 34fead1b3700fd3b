"""The Pareto front of a report's trials."""

from __future__ import annotations

from collections.abc import Sequence

from sweep.metric_table import parse_metric
from sweep.pareto import front_of
from sweep.report.values import Front, FrontPoint, RankedTrial
from sweep.trial import TrialKind, TrialStatus


def make_front(trials: Sequence[RankedTrial], metrics: Sequence[str]) -> Front:
    """The front of `metrics` over the trials that completed undisturbed and keep every SLO."""
    points: dict[int, tuple[float, ...]] = {}
    left_out: dict[int, str] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        if trial.status is not TrialStatus.COMPLETE:
            continue
        values = tuple(value for name in metrics if (value := trial.metrics.get(name)) is not None)
        if (why := _why_not(trial, metrics)) is not None:
            left_out[trial.number] = why
        else:
            points[trial.number] = values
    kept = front_of(points, metrics)
    by_number = {trial.number: trial for trial in trials}
    sign = 1.0 if parse_metric(metrics[0]).lower_is_better else -1.0
    return Front(
        metrics=tuple(metrics),
        points=tuple(
            FrontPoint(number, by_number[number].kind, by_number[number].flags, points[number])
            for number in sorted(kept, key=lambda number: (sign * points[number][0], number))
        ),
        dominated=tuple(number for number in points if number not in kept),
        left_out=left_out,
    )


def _why_not(trial: RankedTrial, metrics: Sequence[str]) -> str | None:
    missing = [name for name in metrics if trial.metrics.get(name) is None]
    if missing:
        return f"{', '.join(missing)} is not defined"
    broken = broken_slos(trial)
    if broken:
        return f"breaks the SLO on {', '.join(broken)}"
    if trial.disturbances and trial.kind is not TrialKind.BASELINE:
        return f"disturbed: {'; '.join(trial.disturbances)}"
    return None


def broken_slos(trial: RankedTrial) -> tuple[str, ...]:
    """The SLOs a trial does not keep."""
    violations = {} if trial.score is None else trial.score.violations
    return tuple(name for name, excess in violations.items() if excess > 0)
