"""The load of a trial, round by round on one server: what each measured, and whether to go on after it."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from sweep.errors import LoadFailed, ServerDied, SweepError
from sweep.gpu import judge
from sweep.journal import Journal
from sweep.knee import find_knee, next_rung
from sweep.loadgen import KeptClient, LoadJob, LoadOutcome
from sweep.loadgen import run as run_load
from sweep.metrics import summarize, summarize_engine
from sweep.records import EngineSample, RequestRecord, RoundRecord
from sweep.runner.engine_watch import EngineWatch
from sweep.runner.reports import Hooks, Measured, RoundProgress, RoundReport
from sweep.runner.setup import TrialSetup
from sweep.runner.telemetry import load_readings
from sweep.server import VllmServer
from sweep.store import TelemetryRow
from sweep.trial import Phase, TrialKind, TrialSpec

_ASK_EVERY_S = 1.0
# An event loop that sends late reads late as well, so a lag is an error of the latencies: as large as the TTFT itself
# it leaves nothing of it. On 2 cores that client and server share p99 is 3 to 45 ms; below this no verdict.
_LEAST_LAG_LIMIT_MS = 100.0
_BUSY_PERCENT = 95.0
_UNEXPECTED_HITS = 0.2
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


def client_late(record: RoundRecord, max_lag_ms: float) -> str | None:
    """Why the load client is to be distrusted; None while it keeps its plan.

    The limit is `max_lag_ms`, or the median TTFT where that is less, but 100 ms at least.
    """
    usual_ms = math.inf if record.p50_ttft_ms is None else max(_LEAST_LAG_LIMIT_MS, record.p50_ttft_ms)
    limit_ms = min(max_lag_ms, usual_ms)
    if record.p99_lag_ms is None or record.p99_lag_ms <= limit_ms:
        return None
    of = "load.max_lag_ms" if limit_ms == max_lag_ms else "the median TTFT, 100 at least"
    return f"the load client sends up to {record.p99_lag_ms:.0f} ms late (p99; the limit is {limit_ms:.0f} ms: {of})"


def with_telemetry(
    one: RoundRecord, rows: Sequence[TelemetryRow], usual: Mapping[str, float] | None
) -> tuple[RoundRecord, str | None]:
    """`one` with what devices and host said while it ran, and a remark on a client that had too little CPU."""
    until_s = one.began_at_s + one.duration_s
    seen = [row for row in rows if row.attempt == one.attempt and one.began_at_s <= row.at_s <= until_s]
    cpu = [row.client_cpu_percent for row in seen if row.client_cpu_percent is not None]
    found = judge(load_readings(seen, one.attempt), usual=usual)
    mean = float(np.mean(cpu)) if cpu else None
    filled = dataclasses.replace(one, client_cpu_percent=mean, disturbed=(*one.disturbed, *found.disturbances))
    if mean is None or sum(percent > _BUSY_PERCENT for percent in cpu) * 2 <= len(cpu):
        return filled, None
    return filled, f"the load client used {mean:.0f} % of its core in round {one.round + 1}: it may be the limit itself"


def unexpected_hits(rounds: Sequence[RoundRecord]) -> list[str]:
    """A remark when the prefix cache answers far more of later rounds than of the first; their prompts all differ."""
    if not rounds or rounds[0].prefix_hit_share is None:
        return []
    first = rounds[0].prefix_hit_share
    far = [r for r in rounds[1:] if r.prefix_hit_share is not None and r.prefix_hit_share > first + _UNEXPECTED_HITS]
    if not far:
        return []
    figures = ", ".join(f"{one.prefix_hit_share:.0%} in round {one.round + 1}" for one in far)
    reset = "" if far[0].prefix_cache_reset else "; the server does not let it be emptied"
    return [f"prefix-cache hits rise from {first:.0%} in round 1 to {figures}: later rounds look too fast{reset}"]
