"""A whole study in this process: the same plan, searcher, races and engine as on Ray Tune, one trial after the other.

For thousands of studies, where Ray would take most of the time. Nothing is stored and nothing is confirmed: both are
the folder's. What a trial needs of those of lower number is handed over instead.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from sweep.desk import Desk
from sweep.plan import StudyPlan
from sweep.planned import make_plan
from sweep.prepare import Prepared
from sweep.racing import Round, split
from sweep.records import RequestRecord, RoundRecord
from sweep.replay import Replay
from sweep.runner import RoundReport, TrialOutcome
from sweep.store import StoredTrial
from sweep.trial import Finished, TrialSpec
from sweep.twinning import Ledger


@dataclass(slots=True)
class Alone:
    """The study of `prepared`, which replays a recording; `budget_s`: its time, counted as the recorded launches took.

    `outcomes` are its trials by number in the order they ran, `stop_reason` why it ended.
    """

    prepared: Prepared
    budget_s: float = math.inf
    outcomes: dict[int, TrialOutcome] = field(default_factory=dict)
    stop_reason: str | None = None
    _rounds: dict[int, tuple[Round, ...]] = field(default_factory=dict)

    @property
    def spent_s(self) -> float:
        """Virtual seconds of all its trials."""
        return math.fsum(one.result.total_s for one in self.outcomes.values())

    @property
    def finished(self) -> tuple[Finished, ...]:
        """The trials as the plan heard of them."""
        return tuple(outcome.finished() for outcome in self.outcomes.values())

    def run(self) -> None:
        """The whole study. Raises ValueError for one that replays nothing."""
        replay = self.prepared.stand_in
        if not isinstance(replay, Replay):
            raise ValueError("only a replay runs without Ray and servers")
        setup = dataclasses.replace(self.prepared.setup, confirmation=())
        prepared = dataclasses.replace(self.prepared, setup=setup)
        ledger = Ledger(setup.folder, prepared.fingerprint, self._stored, self._measured)
        plan = make_plan(prepared, time_left_s=lambda: self.budget_s, ledger=ledger)
        desk = Desk.of(setup, racing=prepared.config.study.racing)
        if desk is not None:
            desk.read = self._read
        while (spec := _next(plan)) is not None:
            before = [one.result.spec.flags for number, one in self.outcomes.items() if number < spec.number]
            judge = None if desk is None else _judge(desk, plan, spec)
            outcome = replay.replay(spec, setup, before, after_round=judge)
            self.outcomes[spec.number] = outcome
            plan.hear(outcome.finished())
        self.stop_reason = plan.stop_reason

    def _stored(self) -> tuple[StoredTrial, ...]:
        return tuple(_stored_trial(one) for one in self.outcomes.values())

    def _measured(self, number: int) -> tuple[tuple[RequestRecord, ...], tuple[RoundRecord, ...]]:
        result = self.outcomes[number].result
        return result.requests, result.rounds

    def _read(self, number: int) -> tuple[Round, ...]:
        if number not in self._rounds:
            self._rounds[number] = split(self.outcomes[number].result.requests)
        return self._rounds[number]


def _stored_trial(outcome: TrialOutcome) -> StoredTrial:
    """A trial as it would be read back from a store."""
    result = outcome.result
    score = result.score
    return StoredTrial(
        number=result.spec.number,
        kind=result.spec.kind,
        flags=result.spec.flags,
        status=result.status,
        metrics=result.metrics,
        score=None if score is None else score.value,
        feasible=None if score is None else score.feasible,
        violations={} if score is None else dict(score.violations),
        failure=result.failure,
        attempts=result.attempts,
        command=result.command,
        started_wall_s=result.started_wall_s,
        startup_s=result.startup_s,
        load_s=result.load_s,
        total_s=result.total_s,
        remarks=result.remarks,
        disturbances=result.disturbances,
        engine_config=result.engine_config,
        engine_summary=outcome.engine_summary,
        round_scores=result.round_scores,
    )


def _judge(desk: Desk, plan: StudyPlan, spec: TrialSpec) -> Callable[[RoundReport], str | None] | None:
    """What the worker, the scheduler and Ray between them come to."""
    rival = desk.rival(spec, plan.finished)
    if rival is None:
        return None

    def after_round(report: RoundReport) -> str | None:
        parts = zip(report.rounds, report.requests, strict=True)
        rounds = {one.round: Round.of(requests) for one, requests in parts if not one.disturbed}
        decision = desk.judge(spec, rival, rounds)
        return decision.reason if decision.stop else None

    return after_round


def _next(plan: StudyPlan) -> TrialSpec | None:
    try:
        spec = plan.next()
    except StopIteration:
        return None
    if spec is None:  # the plan ends by saying so twice
        return _next(plan) if plan.stop_reason is None else None
    return spec
