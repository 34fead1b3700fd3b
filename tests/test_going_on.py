"""A short study that is killed, stopped and ended; tests/test_resume.py and tests/test_signals.py do it at length."""

from __future__ import annotations

import signal
from pathlib import Path

import fake_study
from hits import lasting
from running import Running
from studies import Studies, nothing_left

from sweep.store import read_events, read_trials


def test_a_study_that_is_killed_and_stopped_is_ended_by_the_same_command(studies: Studies, tmp_path: Path) -> None:
    content = fake_study.study(
        tmp_path, fake=lasting("load"), study={"trials": 2}, load={"num_prompts": 4, "warmup_prompts": 1}
    )
    content["serve"]["stop_timeout_s"] = 0.5
    study = fake_study.write(tmp_path / "night.yaml", content)
    results = tmp_path / "results" / "night"

    killed = studies.start(study, results)
    killed.reach(0, "load")
    running = Running.of(results, "load")
    killed.kill()
    running.gone()
    assert read_trials(results) == ()

    stopped = studies.start(study, results)
    stopped.reach(1, "load")
    running = Running.of(results, "load")
    (baseline,) = read_trials(results)
    assert (baseline.number, str(baseline.status)) == (0, "complete")
    assert {event.attempt for event in read_events(results, 0)} == {1, 2}
    stopped.send(signal.SIGTERM)
    assert stopped.wait() == 128 + signal.SIGTERM, stopped.text()
    assert stopped.text().strip().splitlines()[-1] == (
        "sweep: stopped by SIGTERM; everything measured is kept, type the same command to go on"
    )
    running.gone()
    assert not list((results / "processes").iterdir())
    assert read_trials(results) == (baseline,)

    ended = studies.start(study, results)
    assert ended.wait() == 0, ended.text()
    assert "going on: 1 of 2 trials are stored" in ended.text()
    first, second = read_trials(results)
    assert first == baseline
    assert (second.number, str(second.status), second.attempts) == (1, "complete", 2)
    assert "Traceback" not in killed.text() + stopped.text() + ended.text()
    nothing_left(tmp_path)
