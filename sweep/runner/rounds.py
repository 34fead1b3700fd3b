"""The load of a trial, round by round on one server: what each measured, and whether to go on after it."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from sweep.errors import LoadFailed, ServerDied, SweepError
from sweep.journal import Journal
from sweep.knee import find_knee, next_rung
from sweep.loadgen import KeptClient, LoadJob, LoadOutcome
from sweep.loadgen import run as run_load
from sweep.metrics import summarize, summarize_engine
from sweep.records import EngineSample, RequestRecord, RoundRecord
from sweep.runner.engine_watch import EngineWatch
from sweep.runner.reports import Hooks, Measured, RoundProgress, RoundReport
from sweep.runner.round_checks import client_late
from sweep.runner.setup import TrialSetup
from sweep.server import VllmServer
from sweep.trial import Phase, TrialKind, TrialSpec

_ASK_EVERY_S = 1.0
_OF_A_ROUND = frozenset(item.name for item in fields(RoundRecord))


class CutShort(SweepError):
    """A hook stopped a round."""


@dataclass(slots=True)
class RoundsRunner:
    """Sends every round of a trial's load to its ready server.

    `job` makes the client's job of a round from its number and the share of its requests that must succeed. `kept`
    spares the client its imports in every round.
    """

    spec: TrialSpec
    setup: TrialSetup
    journal: Journal
    server: VllmServer
    watch: EngineWatch
    job: Callable[[int, float], LoadJob]
    hooks: Hooks
    kept: KeptClient | None = None
    remarks: list[str] = field(default_factory=list)
    _requests: list[tuple[RequestRecord, ...]] = field(default_factory=list)
    _rounds: list[RoundRecord] = field(default_factory=list)
    _can_reset: bool = True

    def run(self) -> Measured:
        """The whole load; of a calibration as many rates as it needs. Raises what `loadgen.run` does, and ServerDied;
        what was measured is then lost, but for a calibration that has a knee by then: it ends there.
        """
        plan = self.setup.plan_for(self.spec)
        self.journal.enter(Phase.LOAD, total=None if self._calibrates else plan.num_prompts)
        why: str | None = None
        while (number := self._next_round()) is not None:
            try:
                self._run_one(number)
            except CutShort as cut:
                why = str(cut)
            except (LoadFailed, ServerDied) as error:
                if not (self._calibrates and find_knee(self._rounds)):
                    raise
                rate = plan.rounds[number].request_rate
                self.remarks.append(f"the calibration ended at {rate:.3g} requests/s: {error}")
                break
            else:
                why = self._ask_after(number, len(plan.rounds))
            if why is not None:
                self.journal.note("stopped early", f"{len(self._rounds)} of {len(plan.rounds)} rounds: {why}")
                break
        return Measured(tuple(self._requests), tuple(self._rounds), why)

    @property
    def _calibrates(self) -> bool:
        return self.spec.kind is TrialKind.CALIBRATION

    def _next_round(self) -> int | None:
        plan = self.setup.plan_for(self.spec)
        if self._calibrates:
            return next_rung(plan.rates, self._rounds)
        return len(self._rounds) if len(self._rounds) < len(plan.rounds) else None

    def _run_one(self, number: int) -> None:
        reset = self._reset()
        first = self.watch.look()
        outcome = self._send(number)
        self._believe()
        last = self.watch.look()
        samples = between(self.watch.samples, first, last)
        for remark in outcome.remarks:
            if remark not in self.remarks:
                self.remarks.append(remark)
        record = self._record(number, outcome, samples, reset)
        self._requests.append(outcome.requests)
        self._rounds.append(record)
        self._tell_so_far()
        rate = "all at once" if record.request_rate_per_s is None else f"at {record.request_rate_per_s:.3g} requests/s"
        name = rate if self._calibrates else f"round {number + 1}"
        detail = f"{name}: {record.completed} of {record.prompts} requests in {record.duration_s:.1f} s"
        self.journal.note("round", "; ".join((detail, *record.disturbed)))

    def _tell_so_far(self) -> None:
        """The live view's figures of all rounds that ended; of a calibration, whose rates differ, of its last one."""
        rounds = self._requests[-1:] if self._calibrates else self._requests
        every = [request for part in rounds for request in part]
        figures = summarize(every, 1.0, percentiles=(95,), slo={})  # no rate is taken of it
        self.journal.measured(figures["p95_ttft_ms"], figures["p95_tpot_ms"])

    def _send(self, number: int) -> LoadOutcome:
        before = sum(one.prompts for one in self._rounds)
        plan = self.setup.plan_for(self.spec)
        done, began_s, asked_s = 0, math.inf, -math.inf

        def begin() -> None:
            nonlocal began_s
            began_s = time.monotonic()

        def progress(count: int, _total: int) -> None:
            nonlocal done
            done = count
            self.journal.advance(before + count)

        def tick() -> None:
            nonlocal asked_s
            now_s = time.monotonic()
            if self.hooks.during_round is None or now_s < max(began_s, asked_s + _ASK_EVERY_S):
                return
            asked_s = now_s
            total = len(plan.rounds[number].prompts)
            began_at_s = self.journal.elapsed_s(began_s)
            so_far = (tuple(self._requests), self.watch.samples)
            why = self.hooks.during_round(
                RoundProgress(self.spec.number, number, len(plan.rounds), began_at_s, done, total, *so_far)
            )
            if why is not None:
                raise CutShort(why)

        return run_load(
            self.job(number, self._share_needed(number)),
            still_alive=lambda: self.server.exit_code() is None,
            kept=self.kept,
            on_begin=begin,
            on_tick=tick,
            on_progress=progress,
        )

    def _share_needed(self, number: int) -> float:
        """The least share of this round with which the trial as a whole may still keep `min_success_share`; for a
        calibration, whose rounds are compared with each other, this share itself."""
        if self._calibrates:
            return self.setup.min_success_share
        plan = self.setup.plan_for(self.spec)
        may_fail = plan.num_prompts - math.ceil(round(self.setup.min_success_share * plan.num_prompts, 6))
        left = max(0, may_fail - sum(one.failed for one in self._rounds))
        prompts = len(plan.rounds[number].prompts)
        return max(0.0, (prompts - left) / prompts)

    def _reset(self) -> bool:
        """Empty the prefix cache, as long as the server lets us. Whether it is empty now."""
        if not self._can_reset:
            return False
        refused = self.server.reset_prefix_cache()
        if refused is None:
            return True
        self._can_reset = False
        self.journal.note("prefix cache", f"not emptied between rounds, whose prompts all differ: {refused}")
        return False

    def _believe(self) -> None:
        """A round went well only if the server that served it still does."""
        if (code := self.server.exit_code()) is not None:
            raise ServerDied(code, ready=True)
        if not self.server.healthy():
            raise LoadFailed("server_died", "the server does not answer /health after the load")

    def _record(self, number: int, outcome: LoadOutcome, samples: Sequence[EngineSample], reset: bool) -> RoundRecord:
        plan = self.setup.plan_for(self.spec).rounds[number]
        done = [request for request in outcome.requests if request.error is None]
        figures = summarize(outcome.requests, outcome.duration_s, percentiles=(50, 95), slo={})
        shown = [f"p{p}_{stem}_ms" for p in (50, 95) for stem in ("ttft", "tpot", "e2el")]
        engine = {name: value for name, value in asdict(summarize_engine(samples)).items() if name in _OF_A_ROUND}
        facts: dict[str, Any] = {**engine, **{name: figures[name] for name in shown}}
        lags_ms = [lag_ms for request in outcome.requests if (lag_ms := request.lag_ms) is not None]
        record = RoundRecord(
            attempt=self.journal.attempt,
            round=number,
            began_at_s=self.journal.elapsed_s(outcome.began_s),
            duration_s=outcome.duration_s,
            took_s=outcome.took_s,
            request_rate_per_s=plan.request_rate,
            prompts=len(outcome.requests),
            completed=len(done),
            failed=len(outcome.requests) - len(done),
            output_tokens=sum(request.output_tokens or 0 for request in done),
            prefix_cache_reset=reset,
            p99_lag_ms=float(np.percentile(lags_ms, 99)) if lags_ms else None,
            max_lag_ms=max(lags_ms, default=None),
            **facts,
        )
        # With a limit on concurrency a request waits for a slot, and all at once has no plan to be late by.
        planned = plan.request_rate is not None and self.setup.max_concurrency is None
        late = client_late(record, self.setup.max_lag_ms) if planned else None
        return record if late is None else dataclasses.replace(record, disturbed=(late,))

    def _ask_after(self, number: int, planned: int) -> str | None:
        if self.hooks.after_round is None or number + 1 == planned:
            return None
        return self.hooks.after_round(
            RoundReport(
                number=self.spec.number,
                round=number,
                planned=planned,
                requests=tuple(self._requests),
                rounds=tuple(self._rounds),
                engine=self.watch.samples,
                elapsed_s=self.journal.elapsed_s(),
            )
        )


def between(
    samples: Sequence[EngineSample], first: EngineSample | None, last: EngineSample | None
) -> tuple[EngineSample, ...]:
    """The samples from `first` to `last` in order of time; one that could not be had is no limit."""
    since = -math.inf if first is None else first.at_s
    until = math.inf if last is None else last.at_s
    return tuple(sorted((one for one in samples if since <= one.at_s <= until), key=lambda one: one.at_s))
