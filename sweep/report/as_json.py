"""A report as one JSON object."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from sweep.confirm import Confirmed
from sweep.equivalence import Findings
from sweep.front import Front
from sweep.recommend import Recommendation
from sweep.report.values import RankedTrial, Report
from sweep.verdict import Interval


def as_json(report: Report) -> dict[str, Any]:
    """Everything a report holds; what is not known or not finite is null."""
    return {
        "study": report.study,
        "folder": report.folder,
        "running": report.running,
        "stored": len(report.trials),
        "asked": report.asked,
        **_recommendation(report.recommendation),
        "command": report.command,
        "stood_in": report.stood_in,
        "objective": {
            "weights": dict(report.objective.weights),
            "slo": dict(report.objective.slo),
            "aggregate": report.objective.aggregate,
            "front": list(report.objective.front),
            "request_rates_per_s": list(report.objective.rates),
        },
        "search_winner": _recommendation(report.search_winner),
        "confirmation": None if report.confirmed is None else _confirmation(report.confirmed),
        "own_winner": None if report.own_winner is None else _recommendation(report.own_winner),
        "thin": [
            {"metric": thin.metric, "needed": thin.needed, "completed": thin.completed, "trials": list(thin.trials)}
            for thin in report.thin
        ],
        "front": None if report.front is None else _front(report.front),
        "trials": [_trial(trial) for trial in report.trials],
        "changed": {one.name: {"today": one.today, "then": one.then} for one in report.changed},
        "gate": report.gate.as_json(),
        "refused": [dataclasses.asdict(one) for one in report.not_launched.refused],
        "checked_refusals": [dataclasses.asdict(one) for one in report.not_launched.checked],
        "same": [dataclasses.asdict(one) for one in report.not_launched.same],
        "drift": [dataclasses.asdict(one) for one in report.drift],
        "gpu_hours": report.gpu_hours,
        "wall_s": report.wall_s,
        "notes": list(report.notes),
        **_equal(report.equal),
    }


def _equal(equal: Findings) -> dict[str, Any]:
    """Flags that made no difference: in words, and with their evidence."""
    return {
        "inert": list(equal.sentences),
        "inert_flags": [dataclasses.asdict(one) for one in equal.flags],
        "stands_for": {str(first): list(members) for first, members in equal.stands_for.items()},
        "checks": [
            {
                "trial": one.number,
                "same_as": one.first,
                "flags": list(one.names),
                "ratio": None if one.log_ratio is None else math.exp(one.log_ratio),
            }
            for one in equal.checks
        ],
    }


def _recommendation(found: Recommendation) -> dict[str, Any]:
    low = found.gain_low_share
    return {
        "verdict": str(found.verdict),
        "trial": found.number,
        "flags": None if found.flags is None else dict(found.flags),
        "score": found.score,
        "gain_share": found.gain_share,
        "gain_interval_share": None if low is None else [low, found.gain_high_share],
        "confirmed": found.confirmed,
        "sentence": found.sentence,
    }


def _confirmation(confirmed: Confirmed) -> dict[str, Any]:
    verdict = confirmed.verdict
    return {
        "recommended": confirmed.recommended,
        "soaked": confirmed.soaked,
        "note": confirmed.note,
        "outcome": str(verdict.outcome),
        "winner": verdict.winner,
        "level": verdict.level,
        "baseline_launches": verdict.launches,
        "sentence": verdict.sentence,
        "effects": [
            {
                "trial": effect.key,
                "launches": effect.launches,
                "score": _interval(effect.score),
                "gain_share": _interval(effect.gain),
                "feasible": effect.feasible,
                "clear": effect.clear,
            }
            for effect in verdict.effects
        ],
        "metrics": [
            {
                "metric": line.name,
                "baseline": _interval(line.baseline),
                "leader": _interval(line.leader),
                "ratio": _interval(line.ratio),
                "thin": line.thin,
            }
            for line in verdict.metrics
        ],
        "shrinkage": [dataclasses.asdict(one) | {"luck": one.luck} for one in verdict.shrinkage],
        "in_place_of": {str(key): number for key, number in confirmed.in_place_of.items()},
    }


def _interval(interval: Interval) -> dict[str, float | None]:
    return {"value": _finite(interval.value), "low": _finite(interval.low), "high": _finite(interval.high)}


def _front(front: Front) -> dict[str, Any]:
    return {
        "metrics": list(front.metrics),
        "points": [
            {
                "trial": point.number,
                "kind": str(point.kind),
                "flags": dict(point.flags),
                "values": dict(zip(front.metrics, point.values, strict=True)),
            }
            for point in front.points
        ],
        "dominated": list(front.dominated),
        "left_out": {str(number): why for number, why in front.left_out.items()},
    }


def _trial(trial: RankedTrial) -> dict[str, Any]:
    score, failure = trial.score, trial.failure
    return {
        "trial": trial.number,
        "kind": str(trial.kind),
        "status": str(trial.status),
        "place": trial.place,
        "why_no_place": trial.why_no_place,
        "flags": dict(trial.flags),
        "score": None if score is None else score.value,
        "feasible": None if score is None else score.feasible,
        "ratios": {} if score is None else dict(score.ratios),
        "violations": {} if score is None else {name: _finite(excess) for name, excess in score.violations.items()},
        "reference": trial.reference,
        "stored_score": trial.stored_score,
        "metrics": dict(trial.metrics),
        "intervals": {name: [one.low, one.high] for name, one in trial.intervals.items()},
        "thin": sorted(trial.thin),
        "completed": trial.completed,
        "failed_requests": trial.failed_requests,
        "disturbances": list(trial.disturbances),
        "failure_class": None if failure is None else failure.failure_class,
        "failure_line": None if failure is None else failure.line,
        "advice": None if failure is None else failure.advice,
        "command": trial.command,
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
