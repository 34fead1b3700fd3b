"""Stored trials in the order that an objective gives them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from sweep.objective import Objective
from sweep.recommend import Recommendation, Verdict, rank_key, recommend
from sweep.report.measure import Measured
from sweep.report.values import RankedTrial
from sweep.store import StoredTrial
from sweep.trial import Finished, Score, TrialKind, TrialStatus


def rank(
    stored: Sequence[StoredTrial],
    measured: Mapping[int, Measured],
    objective: Objective,
    failed_soak: Collection[int] = (),
) -> tuple[RankedTrial, ...]:
    """Those with a place, best first, then the others by number. `failed_soak`: trials that can no longer win."""
    baseline = measured[0].metrics if 0 in measured else {}
    trials = []
    for one in stored:
        trial = _trial(one, measured.get(one.number), objective, baseline)
        if trial.why_no_place is None and one.number in failed_soak:
            trial = replace(trial, why_no_place="its flags did not survive their worst burst")
        trials.append(trial)
    placed = sorted(
        (trial for trial in trials if trial.why_no_place is None),
        key=lambda trial: (rank_key(_finished(trial)), trial.kind is not TrialKind.BASELINE, trial.number),
    )
    others = sorted((trial for trial in trials if trial.why_no_place is not None), key=lambda trial: trial.number)
    return (*(replace(trial, place=place) for place, trial in enumerate(placed, start=1)), *others)


def best_of(trials: Sequence[RankedTrial]) -> Recommendation:
    """What the search alone says."""
    baseline = next((trial for trial in trials if trial.kind is TrialKind.BASELINE), None)
    if (baseline is None or baseline.place is None) and any(trial.metrics for trial in trials):
        sentence = "The baseline could not be measured, and every score is a ratio to it."
        return Recommendation(Verdict.NO_BASELINE, None, None, None, None, sentence)
    ended = (trial for trial in trials if trial.place is not None or trial.status is not TrialStatus.COMPLETE)
    return recommend(_finished(trial) for trial in ended)


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
        why = stored.stopped_because if stored.failure is None else stored.failure.failure_class
        return f"{stored.status}: {why}" if why else str(stored.status)
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
