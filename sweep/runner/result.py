"""From what a trial measured to its result: metrics, score, status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sweep.metric_table import parse_metric
from sweep.metrics import Part, fewest_completed, metric_names, summarize_parts, thin_percentiles
from sweep.records import EngineConfig, EngineSample, Event
from sweep.runner.reports import Measured
from sweep.runner.setup import TrialSetup
from sweep.trial import SEARCHING, Failure, Score, TrialKind, TrialResult, TrialSpec, TrialStatus


def measured_result(
    spec: TrialSpec,
    setup: TrialSetup,
    load: Measured | None,
    *,
    failure: Failure | None,
    infeasible: bool,
    engine_config: EngineConfig,
    events: tuple[Event, ...],
    command: str,
    attempts: int,
    started_wall_s: float,
    startup_s: float | None,
    total_s: float,
    engine: tuple[EngineSample, ...] = (),
    remarks: tuple[str, ...] = (),
    disturbances: tuple[str, ...] = (),
    stood_in: str | None = None,
) -> TrialResult:
    """The result of a trial whose load is `load`, or that failed of `failure`: exactly one of both is None.

    `infeasible`: whether these flags cannot work. For the rest see `TrialResult`.
    """
    metrics: dict[str, float | None] | None = None
    score: Score | None = None
    round_scores: tuple[float | None, ...] = ()
    if load is not None:
        metrics = _summary(setup, load.parts)
        baseline = _baseline(spec, metrics)
        score = setup.objective.score(metrics, baseline)
        round_scores = tuple(
            setup.objective.value_at(_summary(setup, [part]), baseline, {part.rate}) for part in load.parts
        )
    stopped = None if load is None else load.stopped_because
    status = TrialStatus.COMPLETE if stopped is None else TrialStatus.CENSORED
    if failure is not None:
        status = TrialStatus.INFEASIBLE if infeasible else TrialStatus.FAILED
    return TrialResult(
        spec=spec,
        status=status,
        metrics=metrics,
        score=score,
        failure=failure,
        requests=load.pooled if load is not None else (),
        engine=engine,
        engine_config=engine_config,
        events=events,
        command=command,
        attempts=attempts,
        started_wall_s=started_wall_s,
        startup_s=startup_s,
        load_s=load.duration_s if load is not None else None,
        total_s=total_s,
        remarks=remarks,
        disturbances=disturbances,
        rounds=load.rounds if load is not None else (),
        round_scores=round_scores,
        stopped_because=stopped,
        stood_in=stood_in,
    )


def thin_remarks(spec: TrialSpec, setup: TrialSetup, load: Measured | None) -> tuple[str, ...]:
    """What to say of the objective's percentiles that too few requests carry; nothing of a calibration."""
    if load is None or spec.kind is TrialKind.CALIBRATION:
        return ()
    completed = fewest_completed(load.parts)
    percentiles = {parse_metric(name).percentile for name in setup.objective.metrics_needed()}
    thin = thin_percentiles((p for p in percentiles if p is not None), completed)
    at = " at one request rate" if setup.objective.rates else ""
    rest = "rests" if len(thin) == 1 else "rest"
    return (f"{', '.join(thin)} {rest} on few: {completed} completed requests{at}",) if thin else ()


def _summary(setup: TrialSetup, parts: Sequence[Part]) -> dict[str, float | None]:
    objective = setup.objective
    names = metric_names(setup.percentiles, objective.rates, objective.metrics_needed())
    return summarize_parts(parts, names, slo=objective.limits)


def _baseline(spec: TrialSpec, own: Mapping[str, float | None]) -> Mapping[str, float | None]:
    """The baseline is scored against itself, so its score is 1.0; a launch after the search that has none to be
    compared with yet has no score."""
    if spec.baseline_metrics is not None and spec.kind is not TrialKind.BASELINE:
        return spec.baseline_metrics
    return own if spec.kind in SEARCHING else {}
