"""Trials that end without a verdict because their worker is gone: it died each time, or the time was out."""

from __future__ import annotations

import dataclasses
import time

from sweep.errors import HostNotReady
from sweep.journal import read_events
from sweep.process import end_leftovers
from sweep.records import EngineConfig
from sweep.runner import TrialOutcome
from sweep.study_folder import StudyFolder
from sweep.trainable import Worker, how_to_go_on
from sweep.trial import CUT, Failure, Finished, TrialResult, TrialSpec, TrialStatus


def store_lost(spec: TrialSpec, worker: Worker, cause: Finished | None = None) -> Finished:
    """The row of a trial whose workers died every time, or whose nodes failed it (`cause`): no verdict on its flags."""
    if cause is not None:
        line, advice = cause.failure_line or "", cause.advice or ""
        return _store(spec, worker, line, advice, policy=cause.policy or "retry", failure_class=cause.failure_class)
    advice = "look for the kernel's out-of-memory killer and Ray's own logs"
    return _store(spec, worker, "the Ray worker of this trial died each time", advice, policy="retry")


def store_cut(spec: TrialSpec, worker: Worker) -> Finished:
    """The row of a trial that the end of the study's time cut: nothing is decided, the next start measures it again."""
    line = "cut at the end of the study's time: not decided"
    return _store(spec, worker, line, "type the same command again, with more time", policy=CUT)


def wait_for_servers(folder: StudyFolder, within_s: float = 25.0) -> None:
    """After the workers are gone their supervisors end what they started; records vanish as they finish."""
    until = time.monotonic() + within_s
    while any(folder.processes.glob("*.json")) and time.monotonic() < until:
        time.sleep(0.1)
    end_leftovers(folder.processes, even_owned=True)


def _store(
    spec: TrialSpec, worker: Worker, line: str, advice: str, *, policy: str, failure_class: str | None = None
) -> Finished:
    logs = worker.setup.log_folder(spec.number)
    for log in logs.glob("*.log"):  # its worker would have done it
        worker.redactor().file(log)
    events = read_events(logs)
    failure = Failure(
        failure_class=failure_class or "other",
        phase=events[-1].phase if policy == CUT and events else "host",
        line=line,
        advice=advice,
        retryable=True,
        informative_for_search=False,
        policy=policy,
    )
    attempts = max((event.attempt for event in events), default=1)
    # Earlier attempts may be of another night.
    began_wall_s = min((event.wall_s for event in events if event.attempt == attempts), default=time.time())
    result = TrialResult(
        spec=spec,
        status=TrialStatus.FAILED,
        metrics=None,
        score=None,
        failure=failure,
        requests=(),
        engine=(),
        engine_config=EngineConfig(),
        events=events,
        command=worker.setup.command_line(spec.flags),
        attempts=attempts,
        started_wall_s=began_wall_s,
        startup_s=None,
        load_s=None,
        total_s=max(0.0, time.time() - began_wall_s),
    )
    finished = TrialOutcome(result, {}, ()).finished()
    try:
        worker.store().append(result, engine_summary={})
    except HostNotReady as error:
        return dataclasses.replace(finished, failure_line=str(error), advice=how_to_go_on(error), policy="stop_now")
    return finished
