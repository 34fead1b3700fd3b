"""From a study's record and the questions of a person to a `Report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sweep.config import ObjectiveSection
from sweep.errors import HostError
from sweep.metric_table import parse_metric
from sweep.metrics import enough_samples, samples_needed
from sweep.objective import Aggregate, Objective
from sweep.pareto import check_front
from sweep.recommend import Recommendation, rank_key, recommend
from sweep.report.front import make_front
from sweep.report.measure import Measured, measure
from sweep.report.source import Source
from sweep.report.values import RankedTrial, Report, ThinMetric
from sweep.store import StoredTrial
from sweep.trial import Finished, Score, TrialKind, TrialStatus


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a person asks otherwise than the study did; None leaves a part as the study has it.

    `weights` and `preset` exclude each other; `slo` replaces all limits, so an empty one drops them. `front` names the
    metrics of a front to show; default: the one that the study searched for, if any.
    """

    preset: str | None = None
    weights: Mapping[str, float] | None = None
    slo: Mapping[str, float] | None = None
    aggregate: Aggregate | None = None
    front: tuple[str, ...] | None = None

    def objective(self, own: ObjectiveSection | None) -> Objective:
        """The objective to rank by. Raises ConfigError for what no objective can be."""
        own = own or ObjectiveSection()
        asked = self.preset is not None or self.weights is not None
        return Objective.of(
            self.preset if asked else own.preset,
            self.weights or {} if asked else own.weights,
            own.slo if self.slo is None else self.slo,
            self.aggregate or own.aggregate,
            own.front if self.front is None else self.front,
        )


def make_report(source: Source, wishes: Wishes = Wishes()) -> Report:
    """The report of a record as it is now.

    Every metric comes from the stored requests, so percentiles that were never stored and limits that no trial knew are
    as good as others. Raises UserError for wishes that cannot be computed.
    """
    objective = wishes.objective(source.objective)
    if wishes.front is not None:
        check_front(wishes.front)
    own = Wishes().objective(source.objective)
    alike = (own.weights, own.slo, own.aggregate) == (objective.weights, objective.slo, objective.aggregate)
    rankings = (objective,) if alike or source.objective is None else (objective, own)
    measured, unreadable = _measure_all(source, rankings)
    trials, *others = [_ranked(source.trials, found, one) for found, one in zip(measured, rankings, strict=True)]
    return Report(
        study=source.study,
        folder=str(source.folder),
        running=source.running,
        asked=source.asked,
        objective=objective,
        trials=trials,
        recommendation=_recommend(trials),
        confirmed=False,
        own_winner=_recommend(others[0]) if others else None,
        thin=_thin(trials, objective.metrics_needed()),
        front=make_front(trials, objective.front) if objective.front else None,
        notes=(*source.notes, *unreadable),
    )


def _measure_all(source: Source, objectives: Sequence[Objective]) -> tuple[list[dict[int, Measured]], list[str]]:
    """What each objective needs, by trial number; and a line for each trial that cannot be read."""
    measured: list[dict[int, Measured]] = [{} for _ in objectives]
    unreadable = []
    for trial in source.trials:
        try:
            found = measure(source.folder, trial, objectives)
        except HostError as error:
            unreadable.append(f"trial {trial.number} has no place: {error}")
            continue
        for one, of_trial in zip(measured, found or (), strict=False):
            one[trial.number] = of_trial
    return measured, unreadable


def _ranked(
    stored: Sequence[StoredTrial], measured: Mapping[int, Measured], objective: Objective
) -> tuple[RankedTrial, ...]:
    baseline = measured[0].metrics if 0 in measured else {}
    trials = [_trial(one, measured.get(one.number), objective, baseline) for one in stored]
    placed = sorted(
        (trial for trial in trials if trial.why_no_place is None),
        key=lambda trial: (rank_key(_finished(trial)), trial.kind is not TrialKind.BASELINE, trial.number),
    )
    others = sorted((trial for trial in trials if trial.why_no_place is not None), key=lambda trial: trial.number)
    return (*(replace(trial, place=place) for place, trial in enumerate(placed, start=1)), *others)


def _trial(
    stored: StoredTrial, measured: Measured | None, objective: Objective, baseline: Mapping[str, float | None]
) -> RankedTrial:
    score = None if measured is None else objective.score(measured.metrics, baseline)
    return RankedTrial(
        number=stored.number,
        kind=stored.kind,
        status=stored.status,
        flags=stored.flags,
        place=None,
        why_no_place=_why_no_place(stored, measured, score),
        score=score,
        stored_score=stored.score,
        metrics={} if measured is None else measured.metrics,
        completed=None if measured is None else measured.completed,
        failed_requests=None if measured is None else measured.failed,
        disturbances=stored.disturbances,
        failure=stored.failure,
        command=stored.command,
    )


def _why_no_place(stored: StoredTrial, measured: Measured | None, score: Score | None) -> str | None:
    if stored.status is not TrialStatus.COMPLETE:
        return str(stored.status) if stored.failure is None else f"{stored.status}: {stored.failure.failure_class}"
    if measured is None or score is None:
        return "its requests cannot be read"
    if score.value is None:
        missing = [name for name, value in measured.metrics.items() if value is None]
        without = [name for name in missing if name not in score.ratios]
        return f"{', '.join(without)} is not defined" if without else "the baseline has nothing to compare with"
    if stored.disturbances and stored.kind is not TrialKind.BASELINE:
        return f"disturbed: {'; '.join(stored.disturbances)}"
    return None


def _finished(trial: RankedTrial) -> Finished:
    score = trial.score
    return Finished(
        number=trial.number,
        kind=trial.kind,
        flags=trial.flags,
        status=trial.status,
        score=None if score is None else score.value,
        violations={} if score is None else score.violations,
        metrics=trial.metrics,
        policy=None if trial.failure is None else trial.failure.policy,
        disturbed=bool(trial.disturbances),
    )


def _recommend(trials: Sequence[RankedTrial]) -> Recommendation:
    return recommend(_finished(trial) for trial in trials)


def _thin(trials: Sequence[RankedTrial], names: Sequence[str]) -> tuple[ThinMetric, ...]:
    found = []
    for name in names:
        percentile = parse_metric(name).percentile
        if percentile is None:
            continue
        few = {
            trial.number: trial.completed
            for trial in trials
            if trial.completed is not None and not enough_samples(percentile, trial.completed)
        }
        if few:
            found.append(ThinMetric(name, samples_needed(percentile), min(few.values()), tuple(sorted(few))))
    return tuple(found)
