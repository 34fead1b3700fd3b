"""A worker whose children were killed, as Ray does seconds before it ends the worker itself."""

from __future__ import annotations

import dataclasses
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fake_study
import pytest
from hits import aim, lasting

from sweep import supervisor
from sweep.config import load
from sweep.gpu import Gpus
from sweep.journal import read_events
from sweep.prepare import prepare
from sweep.redact import Redactor
from sweep.runner import run_trial
from sweep.trial import TrialKind, TrialSpec, TrialStatus

WAIT_S = 0.4


@pytest.mark.parametrize("retries", [0, pytest.param(1, marks=pytest.mark.night)])
def test_nothing_follows_before_the_worker_itself_had_time_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retries: int
) -> None:
    """With a retry left the next attempt waits; without one the failure does, and is not reported meanwhile."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fake = {**lasting("load"), "seed": 1}
    path = fake_study.write(tmp_path / "study.yaml", fake_study.study(tmp_path, fake=fake, load={"num_prompts": 2}))
    results = tmp_path / "results" / "night"
    with Gpus() as gpus, ThreadPoolExecutor(1) as beside:
        setup = dataclasses.replace(prepare(load(path), path, results, gpus).setup, max_retries=retries)
        spec = TrialSpec(0, TrialKind.BASELINE, {"max-num-seqs": 64})

        def run() -> TrialStatus:
            return run_trial(spec, setup, redactor=Redactor({}), gpus=gpus, own_end_s=WAIT_S).result.status

        trial = beside.submit(run)
        running = aim(results, 0, "load")
        shield = supervisor.look(running.supervisor)
        assert shield is not None
        os.kill(shield.parent, signal.SIGKILL)
        os.kill(running.server, signal.SIGKILL)
        status = trial.result()
    running.gone()
    assert status is (TrialStatus.COMPLETE if retries else TrialStatus.FAILED)
    events = read_events(results / "logs" / "0000")
    (number,) = [number for number, event in enumerate(events) if event.kind == "abandoned"]
    before, after = events[:number], events[number + 1 :]
    assert [event.kind for event in before].count("failed") == 1
    assert before[-1].attempt == events[number].attempt == 1
    assert [event.kind for event in after][:1] == ["retry"] * retries
    assert {event.attempt for event in after[1:]} == ({2} if retries else set())
    assert f"waiting {WAIT_S:g} s" in events[number].detail
    assert all(event.wall_s - events[number].wall_s >= WAIT_S for event in after)
