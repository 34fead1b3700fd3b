"""The side of a race that runs in the worker: it asks after each round, and looks at the engine within one.

A trial that is stopped ends by itself, as one that ran through: its server taken down, its row stored, its result
reported. Nothing that goes wrong with a decision stops or fails a trial.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

from sweep.desk import FAULTS, Desk
from sweep.metric_table import parse_metric
from sweep.racing import Incumbent, Round, live_verdict, pack
from sweep.runner import RoundProgress, RoundReport, TrialSetup
from sweep.trial import TrialSpec
from sweep.wire import ATTEMPT, COLUMNS, ROUND, Rival, read_verdict

# As often as in `scripts/bench_racing.py`, whose error rates hold for it.
LOOK_EVERY_S = 5.0


class Racer:
    """The hooks of `run_trial` for one trial and its rival.

    `report` hands a result to Ray Tune and returns once the scheduler has seen it.
    """

    def __init__(
        self,
        spec: TrialSpec,
        rival: Rival,
        setup: TrialSetup,
        report: Callable[[dict[str, Any]], None],
        *,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._setup, self._report = setup, report
        self._every_s, self._looked_s = look_every_s, -math.inf
        self._folder = setup.log_folder(spec.number)
        self._gaps = any(parse_metric(name).stem == "itl" for name in setup.objective.metrics_needed())
        self._desk = Desk.of(setup)
        self._incumbent: Incumbent | None = None
        with contextlib.suppress(*FAULTS):  # before the launch: reading takes a moment of the host
            self._incumbent = None if self._desk is None else self._desk.incumbent(spec, rival)

    def after_round(self, report: RoundReport) -> str | None:
        """Report the rounds so far, and hear whether to go on."""
        attempt, columns = report.rounds[-1].attempt, None
        with contextlib.suppress(*FAULTS):
            rounds = {
                one.round: Round.of(requests, one.request_rate_per_s)
                for one, requests in zip(report.rounds, report.requests, strict=True)
                if not one.disturbed
            }
            columns = pack(rounds, gaps=self._gaps)
        if columns is None:
            return None
        self._report({ATTEMPT: attempt, ROUND: report.round, COLUMNS: columns})
        verdict = read_verdict(self._folder, attempt, report.round)
        return verdict.reason if verdict is not None and verdict.stop else None

    def during_round(self, progress: RoundProgress) -> str | None:
        """Look at the engine's counters beside those of the rival, every few seconds."""
        now_s = time.monotonic()
        if self._desk is None or self._incumbent is None or now_s < self._looked_s + self._every_s:
            return None
        self._looked_s = now_s
        with contextlib.suppress(*FAULTS):
            seen = [sample for sample in progress.engine if sample.at_s >= progress.began_at_s]
            decision = live_verdict(
                sorted(seen, key=lambda sample: sample.at_s),
                self._incumbent,
                self._setup.objective,
                round_index=progress.round,
                started_at_s=progress.began_at_s,
                planned=self._desk.planned,
            )
            if decision.stop:
                return decision.reason
        return None
