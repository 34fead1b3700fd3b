"""From a study's record and the questions of a person to a `Report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweep.config import ObjectiveSection
from sweep.confirm import Confirmed, recommended
from sweep.errors import HostError
from sweep.front import make_front
from sweep.gate import tally
from sweep.known import known_trials
from sweep.measured import Measured, load_rates, measure
from sweep.metric_table import parse_metric
from sweep.metrics import samples_needed
from sweep.objective import Aggregate, Objective
from sweep.pareto import check_front
from sweep.recommend import Recommendation, Verdict, not_for_production
from sweep.reference import drift_notes
from sweep.report.confirmation import confirmation_of, failed_soaks
from sweep.report.equal import equal_flags, nearest
from sweep.report.not_launched import not_launched
from sweep.report.ranking import best_of, rank
from sweep.report.source import Source
from sweep.report.values import RankedTrial, Report, ThinMetric
from sweep.stages import contending
from sweep.trial import SEARCHING, Finished, TrialKind


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

    def objective(self, own: ObjectiveSection | None, rates: Sequence[float | None] = ()) -> Objective:
        """The objective to rank by, of a load at these request rates. Raises ConfigError for what none can be."""
        own = own or ObjectiveSection()
        asked = self.preset is not None or self.weights is not None
        return Objective.of(
            self.preset if asked else own.preset,
            self.weights or {} if asked else own.weights,
            own.slo if self.slo is None else self.slo,
            self.aggregate or own.aggregate,
            own.front if self.front is None else self.front,
            rates=rates,
        )


@dataclass(frozen=True, slots=True)
class _Standing:
    """The record by one objective; `own`: the study's."""

    own: bool
    measured: Mapping[int, Measured]
    known: Mapping[int, Finished]
    trials: tuple[RankedTrial, ...]
    search: Recommendation
    confirmed: Confirmed | None

    @property
    def recommendation(self) -> Recommendation:
        """The confirmation's where the best of the search was launched again, and by the study's own objective where
        it has a winner, as the study itself ends; otherwise the search's own."""
        confirmed = self.confirmed
        if confirmed is None:
            return self.search
        best = next(iter(contending(self.known)), None)
        spoken = best is None or confirmed.speaks_for(best.flags)
        if spoken or self.search.verdict is Verdict.KEEP or (self.own and confirmed.recommended is not None):
            return recommended(confirmed)
        return self.search


def make_report(source: Source, wishes: Wishes = Wishes(), *, confirm_names: tuple[str, ...] = ()) -> Report:
    """The report of a record as it is now.

    Every metric comes from the stored requests, so percentiles that were never stored and limits that no trial knew are
    as good as others. `confirm_names` are metrics that the confirmation gives intervals for, beside the objective's.
    Raises UserError for wishes that cannot be computed.
    """
    rates = load_rates(source.folder, source.trials) or source.rates
    objective = wishes.objective(source.objective, rates)
    if wishes.front is not None:
        check_front(wishes.front)
    own = Wishes().objective(source.objective, rates)
    asked = (objective,) if _alike(objective, own) or source.objective is None else (objective, own)
    notes = list(source.notes)
    standing, *others = _standings(source, asked, own, notes, confirm_names)
    notes += drift_notes(standing.known)
    stood_in = next((one.stood_in for one in source.trials if one.stood_in is not None), None)

    def said(found: Recommendation) -> Recommendation:
        return found if stood_in is None else not_for_production(found, stood_in)

    launched = standing.recommendation
    recommendation = nearest(source.folder, standing.known, launched)
    command = None  # of flags nearer to today's, which were not launched as they stand
    if recommendation is launched:
        command = next((one.command for one in source.trials if one.number == launched.number), None)
    return Report(
        study=source.study,
        folder=str(source.folder),
        running=source.running,
        asked=source.asked,
        objective=objective,
        trials=standing.trials,
        recommendation=said(recommendation),
        search_winner=said(standing.search),
        confirmed=standing.confirmed,
        own_winner=said(others[0].recommendation) if others else None,
        thin=_thin(standing, objective.metrics_needed()),
        front=make_front(standing.known.values(), objective.front) if objective.front else None,
        notes=tuple(dict.fromkeys(notes)),
        gate=tally(source.passed, standing.known),
        command=command if stood_in is None else None,
        known=standing.known,
        stood_in=stood_in,
        equal=equal_flags(source.folder, standing.known),
        not_launched=not_launched(source.passed, standing.known),
        gpu_hours=source.gpu_hours,
        wall_s=_wall_s(source),
    )


def _alike(one: Objective, other: Objective) -> bool:
    """Whether two objectives rank alike."""
    return (one.weights, one.slo, one.aggregate) == (other.weights, other.slo, other.aggregate)


def _wall_s(source: Source) -> float | None:
    """From the start of the first trial to the end of the last."""
    if not source.trials:
        return None
    ends = (one.started_wall_s + one.total_s for one in source.trials)
    return max(ends) - min(one.started_wall_s for one in source.trials)


def _standings(
    source: Source, objectives: Sequence[Objective], own: Objective, notes: list[str], confirm_names: tuple[str, ...]
) -> list[_Standing]:
    """The record by each objective, every trial of the search read once; what cannot be read becomes a note."""
    measured: list[dict[int, Measured]] = [{} for _ in objectives]
    for trial in source.trials:
        if trial.kind not in (*SEARCHING, TrialKind.DRIFT, TrialKind.NODE, TrialKind.NEIGHBOUR):
            continue
        try:
            found = measure(source.folder, trial, objectives)
        except HostError as error:
            notes.append(f"trial {trial.number} has no place: {error}")
            continue
        for one, of_trial in zip(measured, found or (), strict=False):
            one[trial.number] = of_trial
    standings = []
    for objective, of_search in zip(objectives, measured, strict=True):
        metrics = {
            one.number: of_search[one.number].metrics if one.number in of_search else None
            for one in source.trials
            if one.kind in (*SEARCHING, TrialKind.DRIFT, TrialKind.NODE, TrialKind.NEIGHBOUR)
        }
        known = known_trials(source.trials, objective, metrics)
        trials = rank(source.trials, of_search, known, objective, failed_soaks(known))
        confirmed = None
        try:
            confirmed = confirmation_of(source.folder, known, objective, source.confirm, source.seed, confirm_names)
        except HostError as error:
            notes.append(f"the confirmation is left out: {error}")
        standings.append(_Standing(_alike(objective, own), of_search, known, trials, best_of(trials, known), confirmed))
    return standings


def _thin(standing: _Standing, names: Sequence[str]) -> tuple[ThinMetric, ...]:
    found = []
    for name in names:
        percentile = parse_metric(name).percentile
        few = {
            trial.number: standing.measured[trial.number].completed_for(name)
            for trial in standing.trials
            if name in trial.thin
        }
        if few and percentile is not None:
            found.append(ThinMetric(name, samples_needed(percentile), min(few.values()), tuple(sorted(few))))
    return tuple(found)
