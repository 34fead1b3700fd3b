"""Run the load client, watch it and the server, and end it in time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sweep.errors import LoadFailed
from sweep.loadgen.command import STARTUP_ALLOWANCE_S, LoadJob, client_argv, sends_test_request
from sweep.loadgen.consistency import check_consistency
from sweep.loadgen.kept import CLIENT_ENV, KeptClient, KeptRun
from sweep.loadgen.progress import ProgressBar, RequestClock
from sweep.loadgen.result_file import read_result
from sweep.process import SupervisedProcess
from sweep.records import RequestRecord
from sweep.workload import Round

_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """A load that can be believed.

    `duration_s` is the client's own, the one throughputs refer to. `summary` holds the client's figures under the names
    of `metric_table`, None for what it left undefined; they are for comparison, `metrics.summarize` makes ours.
    `took_s` is the wall-clock time of the whole client, `began_s` the monotonic time at which it was seen to begin to
    send. `remarks` are lines for a person.
    """

    requests: tuple[RequestRecord, ...]
    duration_s: float
    summary: Mapping[str, float | None]
    took_s: float
    began_s: float
    remarks: tuple[str, ...] = ()


def time_limit_s(
    plan: Round,
    *,
    request_timeout_s: float,
    max_concurrency: int | None,
    startup_allowance_s: float = STARTUP_ALLOWANCE_S,
) -> float:
    """The longest a load may run: start-up allowance + last planned send + timeout of a request x waves.

    A wave is what may be in flight at once: all requests, or `max_concurrency` of them.
    """
    waves = 1 if max_concurrency is None else math.ceil(len(plan.prompts) / max_concurrency)
    return startup_allowance_s + plan.last_send_s + request_timeout_s * waves


def run(
    job: LoadJob,
    *,
    still_alive: Callable[[], bool],
    kept: KeptClient | None = None,
    on_begin: Callable[[], None] | None = None,
    on_tick: Callable[[], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> LoadOutcome:
    """Send the planned load and return what it measured, after the checks of `read_result`.

    `still_alive` says whether the server lives; it and `on_tick` are called four times a second, `on_begin` once, when
    the client's start-up is over, `on_progress` with the requests finished and planned whenever that changes. What
    `on_tick` raises ends the load. `kept`, as long as it is usable, spares the client its imports. The client never
    outlives this call. Raises LoadFailed with a reason of REASONS, FlagError for flags it cannot be given, HostError
    when the command cannot be executed.
    """
    argv = client_argv(job)
    job.folder.mkdir(parents=True, exist_ok=True)
    job.result_path.unlink(missing_ok=True)
    bar = ProgressBar(job.log_path, len(job.plan.prompts))
    began = time.monotonic()
    process = _start(argv, job, kept)
    begun: list[float] = []

    def note_begin() -> None:
        begun.append(time.monotonic())
        if on_begin is not None:
            on_begin()

    try:
        code = _watch(job, process, bar, still_alive, note_begin, on_tick, on_progress)
    finally:
        process.stop()
    if not still_alive():
        raise _server_died(code)
    if code != 0:
        raise LoadFailed("client_exit", f"the load client ended with exit code {code}", exit_code=code)
    ended = time.monotonic()
    took_s = ended - began
    requests, duration_s, summary = read_result(job)
    check_consistency(job, requests, duration_s, summary, took_s)
    remarks: tuple[str, ...] = ()
    if sends_test_request(job.help):
        remarks = ("this load client sends its first prompt once before the load: that request may find it cached",)
    # A bar that is switched off shows no beginning: then no later than this.
    return LoadOutcome(requests, duration_s, summary, took_s, begun[0] if begun else ended - duration_s, remarks)


def _start(argv: tuple[str, ...], job: LoadJob, kept: KeptClient | None) -> SupervisedProcess | KeptRun:
    if kept is not None and kept.usable:
        return kept.begin(argv)
    return SupervisedProcess.start(
        argv,
        env={**CLIENT_ENV, **job.env},
        log_path=job.log_path,
        record_path=job.record_path,
        stop_timeout_s=job.stop_timeout_s,
    )


def _watch(
    job: LoadJob,
    process: SupervisedProcess | KeptRun,
    bar: ProgressBar,
    still_alive: Callable[[], bool],
    on_begin: Callable[[], None],
    on_tick: Callable[[], None] | None,
    on_progress: Callable[[int, int], None] | None,
) -> int:
    """The client's exit code, or LoadFailed as soon as it is clear that it will come to nothing."""
    total = len(job.plan.prompts)
    limit_s = time_limit_s(
        job.plan,
        request_timeout_s=job.request_timeout_s,
        max_concurrency=job.max_concurrency,
        startup_allowance_s=job.startup_allowance_s,
    )
    began = time.monotonic()
    # A user may switch the bar off; then the limit on the whole load is all there is.
    watched = not job.flags.get("disable-tqdm")
    clock: RequestClock | None = None
    while (code := process.wait(_POLL_S)) is None:
        now = time.monotonic()
        if not still_alive():
            raise _server_died(None)
        if bar.update() and bar.done is not None and on_progress is not None:
            on_progress(bar.done, total)
        if clock is None and bar.begun:
            on_begin()
            clock = RequestClock(
                job.plan,
                began_at=now,
                max_concurrency=job.max_concurrency,
                limit_s=job.request_timeout_s + _slack_s(job.request_timeout_s),
            )
        done = bar.done or 0
        if clock is None and now - began > job.startup_allowance_s:
            raise LoadFailed("timeout_load", f"the load client sent nothing within {now - began:.0f} s of its start")
        if watched and clock is not None and (reason := clock.overdue(now, done)) is not None:
            raise LoadFailed(
                reason, f"a request is unfinished after {job.request_timeout_s:g} s; {done} of {total} are finished"
            )
        if now - began > limit_s:
            raise LoadFailed(
                "timeout_load", f"the load is not over after {limit_s:.0f} s; {done} of {total} requests are finished"
            )
        if on_tick is not None:
            on_tick()
    if bar.update() and bar.done is not None and on_progress is not None:
        on_progress(bar.done, total)
    return code


def _slack_s(request_timeout_s: float) -> float:
    """The bar is seen every quarter second, and late when the client stalls: no verdict on a knife's edge."""
    return min(5.0, 0.2 + request_timeout_s / 2.0)


def _server_died(code: int | None) -> LoadFailed:
    return LoadFailed("server_died", "the server ended during the load", exit_code=code)
