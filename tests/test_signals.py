"""Whatever is killed, nothing of ours stays alive, and what was measured stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fake_study
import pytest
from hits import aim, hit, lasting, turning
from running import Running
from studies import Driver, Studies

from sweep import supervisor
from sweep.config import load
from sweep.gpu import Gpus
from sweep.prepare import prepare
from sweep.redact import Redactor
from sweep.runner import TrialOutcome, TrialSetup, run_trial
from sweep.store import read_events, read_trials
from sweep.trial import TrialKind, TrialSpec

pytestmark = pytest.mark.night

SECONDS = 300.0


@pytest.fixture(scope="module", autouse=True)
def innocent() -> Iterator[None]:
    """A process that a search by name would take for a server."""
    with subprocess.Popen(["vllm serve toy --port 8000", "600"], executable="/bin/sleep") as process:
        yield
        assert process.poll() is None
        process.kill()


def night(folder: Path, *, trials: int, stop_timeout_s: float = 0.5, fake: Mapping[str, Any] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    content = fake_study.study(
        folder,
        fake=lasting("load") if fake is None else fake,
        study={"trials": trials, "max_retries": 1},
        load={"num_prompts": 4, "warmup_prompts": 1},
    )
    content["serve"]["stop_timeout_s"] = stop_timeout_s
    return fake_study.write(folder / "night.yaml", content)


def results(study: Path) -> Path:
    return study.parent / "results" / "night"


def start(studies: Studies, study: Path, **how: Any) -> Driver:
    return studies.start(study, results(study), **how)


# Each phase once; `scripts/bench_faults.py` has every signal in every phase.
STOPS = [("SIGTERM", "start"), ("SIGHUP", "ready"), ("SIGINT", "warmup"), ("SIGKILL", "load"), ("SIGTERM", "stop")]


def test_signals_to_the_driver_leave_nothing_behind(studies: Studies, tmp_path: Path) -> None:
    """All at once, each with a study of its own: what takes time here is waiting."""
    nights = [
        night(tmp_path / f"{name}-{phase}", trials=3, stop_timeout_s=3.0, fake=lasting(phase, seconds=3.0))
        for name, phase in STOPS
    ]
    drivers = [start(studies, study) for study in nights]

    def shoot(study: Path, driver: Driver, stop: tuple[str, str]) -> Running:
        before = aim(results(study), 0, stop[1])
        driver.send(signal.Signals[stop[0]])
        return before

    with ThreadPoolExecutor() as pool:
        running = list(pool.map(shoot, nights, drivers, STOPS))
    for study, driver, before, (name, phase) in zip(nights, drivers, running, STOPS, strict=True):
        number = signal.Signals[name]
        killed = number is signal.SIGKILL
        assert driver.wait(SECONDS) == (-number if killed else 128 + number), driver.text()
        before.gone()
        assert [trial.number for trial in read_trials(results(study))] in ([[], [0]] if phase == "stop" else [[]])
        assert "Traceback" not in driver.text()
        if not killed:
            assert driver.text().strip().splitlines()[-1] == (
                f"sweep: stopped by {name}; everything measured is kept, type the same command to go on"
            )
            assert not list((results(study) / "processes").iterdir())


def test_second_ctrl_c_does_not_wait(studies: Studies, tmp_path: Path) -> None:
    study = night(tmp_path, trials=2, stop_timeout_s=2 * SECONDS, fake=lasting("load", "stop", seconds=3.0))
    driver = start(studies, study)
    running = aim(results(study), 0, "load")
    driver.send(signal.SIGINT)
    time.sleep(1.0)
    assert driver.process.is_alive()
    driver.send(signal.SIGINT)
    assert driver.wait(SECONDS) == 130
    running.gone()


# Who is hit, with what, in which phase: one trial each, the trials of a line in one study.
HITS = [
    [("worker", "SIGTERM", "start"), ("worker", "SIGKILL", "warmup"), ("worker", "SIGINT", "stop")],
    [("worker", "SIGHUP", "ready"), ("worker", "SIGKILL", "load"), ("client", "SIGKILL", "load")],
]


def test_death_of_any_process_of_a_trial_is_one_row_and_the_study_goes_on(studies: Studies, tmp_path: Path) -> None:
    nights = [
        night(tmp_path / str(number), trials=len(hits) + 1, fake=lasting(*{phase for _, _, phase in hits}))
        for number, hits in enumerate(HITS)
    ]
    drivers = [start(studies, study) for study in nights]

    def shoot(study: Path, hits: Sequence[tuple[str, str, str]]) -> None:
        for number, (who, name, phase) in enumerate(hits, start=1):
            hit(results(study), number, who, name, phase).gone()

    with ThreadPoolExecutor() as pool:
        list(pool.map(shoot, nights, HITS))
    for study, driver, hits in zip(nights, drivers, HITS, strict=True):
        assert driver.wait() == 0, driver.text()
        assert "Traceback" not in driver.text()
        trials = read_trials(results(study))
        assert [trial.number for trial in trials] == list(range(len(hits) + 1))
        for trial, (who, name, _) in zip(trials[1:], hits, strict=True):
            attempts = {event.attempt for event in read_events(results(study), trial.number)}
            assert attempts == set(range(1, trial.attempts + 1))
            assert trial.status.value == "complete", (who, name, trial.failure)
            # Ray's workers do not heed SIGINT; everything else costs the attempt.
            assert trial.attempts == 2 or (name == "SIGINT" and trial.attempts == 1), (who, name)
        assert not list((results(study) / "processes").iterdir())


@dataclass(frozen=True)
class Shot:
    """A trial of which a process got a signal, and what ran in that moment."""

    outcome: TrialOutcome
    running: Running
    folder: Path


# Each process in each phase once, each signal as often as another; a load client is there in one phase only.
CASES = [*turning(), ("client", "SIGTERM", "load"), ("client", "SIGINT", "load")]


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[tuple[str, str, str], Future[Shot]]]:
    """All of them, a few at a time: what takes time here is waiting."""
    home = tmp_path_factory.mktemp("shots")
    path = fake_study.write(home / "study.yaml", fake_study.study(home, load={"num_prompts": 4}))
    with Gpus() as gpus:
        setup = prepare(load(path), path, home / "results" / "night", gpus).setup
    with ThreadPoolExecutor(4) as pool:
        yield {case: pool.submit(_shot, home / "-".join(case), setup, *case) for case in CASES}


def _shot(folder: Path, setup: TrialSetup, who: str, name: str, phase: str) -> Shot:
    folder.mkdir()
    env = {"FAKE_VLLM": json.dumps(lasting(phase))}
    changes: dict[str, Any] = {"folder": folder, "server_env": env, "client_env": env, "max_retries": 1}
    changes |= {"retry_wait_s": 0.0, "stop_timeout_s": 0.6, "served_name": folder.name}
    spec = TrialSpec(0, TrialKind.BASELINE, {"max-num-seqs": 64})
    with Gpus() as gpus, ThreadPoolExecutor(1) as beside:
        running = beside.submit(hit, folder, 0, who, name, phase, SECONDS)
        outcome = run_trial(spec, replace(setup, **changes), redactor=Redactor({}), gpus=gpus)
        return Shot(outcome, running.result(), folder)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_signal_to_a_process_of_a_trial_costs_one_attempt(
    shots: Mapping[tuple[str, str, str], Future[Shot]], case: tuple[str, str, str]
) -> None:
    who, _, phase = case
    shot = shots[case].result()
    result = shot.outcome.result
    # A server that is being stopped has given all it had to give.
    assert (result.status.value, result.attempts) == ("complete", 1 if phase == "stop" else 2), result.failure
    failed = [event.failure_class for event in result.events if event.kind == "failed"]
    expected = {"start": ["unknown", "engine_died", "other"], "stop": []}.get(phase, ["engine_died"])
    if who == "client":
        expected = ["client_error"]
    assert len(failed) == result.attempts - 1
    assert set(failed) <= set(expected)
    shot.running.gone()
    assert fake_study.processes_with(f"served-model-name {shot.folder.name}") == []
    assert not list((shot.folder / "processes").iterdir())


def test_death_of_ray_is_one_line_and_the_next_start_goes_on(studies: Studies, tmp_path: Path) -> None:
    """Three studies with a Ray of their own: its raylet dies, all of it dies, Ctrl-C on their terminal."""
    ends: dict[str, tuple[str, ...]] = {"raylet": ("raylet",), "cluster": ("gcs_server", "raylet"), "terminal": ()}
    nights = {name: night(tmp_path / name, trials=2, fake=lasting("load", seconds=1.0)) for name in ends}
    drivers = {name: start(studies, study, local=True) for name, study in nights.items()}
    running = {}
    for name, driver in drivers.items():
        driver.reach(0, "load")
        running[name] = Running.of(results(nights[name]), "load")
        if name == "terminal":
            os.killpg(driver.pid, signal.SIGINT)
        for pid in supervisor.descendants({driver.pid}, supervisor.everyone()):
            if Path(f"/proc/{pid}/comm").read_text().strip() in ends[name]:
                os.kill(pid, signal.SIGKILL)
    for name, driver in drivers.items():
        assert driver.wait(SECONDS) == (130 if name == "terminal" else 1), driver.text()
        last = driver.text().strip().splitlines()[-1]
        assert last.startswith("sweep: stopped by SIGINT" if name == "terminal" else "Ray is gone: its process "), last
        assert last.endswith("everything measured is kept, type the same command to go on")
        assert "Traceback" not in driver.text()
        running[name].gone()
        read_trials(results(nights[name]))
    again = start(studies, nights["cluster"])
    assert again.wait() == 0, again.text()
    # It joins a cluster now, whose node has a baseline of its own where that of trial 0 was stored before Ray died.
    after = read_trials(results(nights["cluster"]))
    assert [trial.number for trial in after if trial.kind is not TrialKind.NODE] == [0, 1]
