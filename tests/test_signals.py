"""Whatever is killed, nothing of ours stays alive, and what was measured stays."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fake_study
import pytest
from running import Running
from studies import Driver, Studies

from sweep import supervisor
from sweep.store import read_events, read_trials

# Time to aim in each phase, and an engine that has a session of its own.
FAKE: Mapping[str, Any] = {
    "start_delay_s": 0.4,
    "ttft_ms": 20,
    "itl_ms": 150,
    "landscape": {},
    "grandchild": {"count": 1, "setsid": True},
    "server_dies_with_child": True,
}
# One that does not end when it is asked to, and a load that takes its time.
STUBBORN: Mapping[str, Any] = {
    "itl_ms": 1000,
    "start_delay_s": 3,
    "grandchild": {"count": 1, "setsid": True, "ignore_sigterm": True},
}
SECONDS = 30.0


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
        fake={**FAKE, **(fake or {})},
        study={"trials": trials, "max_retries": 1},
        load={"num_prompts": 4, "warmup_prompts": 0},
    )
    content["serve"]["stop_timeout_s"] = stop_timeout_s
    return fake_study.write(folder / "night.yaml", content)


def results(study: Path) -> Path:
    return study.parent / "results" / "night"


def start(studies: Studies, study: Path, **how: Any) -> Driver:
    return studies.start(study, results(study), **how)


STOPS = [("SIGINT", "load"), ("SIGTERM", "start"), ("SIGHUP", "load"), ("SIGKILL", "load")]


def test_signals_to_the_driver_leave_nothing_behind(studies: Studies, tmp_path: Path) -> None:
    """All at once, each with a study of its own: what takes time here is waiting."""
    nights = [night(tmp_path / f"{name}-{phase}", trials=3, fake=STUBBORN) for name, phase in STOPS]
    drivers = [start(studies, study) for study in nights]
    running = []
    for study, driver, (name, phase) in zip(nights, drivers, STOPS, strict=True):
        driver.reach(0, phase)
        running.append(Running.of(results(study), phase))
        driver.send(signal.Signals[name])
    for study, driver, before, (name, _) in zip(nights, drivers, running, STOPS, strict=True):
        number = signal.Signals[name]
        killed = number is signal.SIGKILL
        assert driver.wait(SECONDS) == (-number if killed else 128 + number), driver.text()
        before.gone()
        assert read_trials(results(study)) == ()
        assert "Traceback" not in driver.text()
        if not killed:
            assert driver.text().strip().splitlines()[-1] == (
                f"sweep: stopped by {name}; everything measured is kept, type the same command to go on"
            )
            assert not list((results(study) / "processes").iterdir())


def test_second_ctrl_c_does_not_wait(studies: Studies, tmp_path: Path) -> None:
    study = night(tmp_path, trials=2, stop_timeout_s=6, fake={**STUBBORN, "start_delay_s": 0, "ignore_sigterm": True})
    driver = start(studies, study)
    driver.reach(0, "load")
    running = Running.of(results(study), "load")
    driver.send(signal.SIGINT)
    time.sleep(1.0)
    assert driver.process.is_alive()
    driver.send(signal.SIGINT)
    assert driver.wait(2.0) == 130
    running.gone()


# Who is hit, with what, in which phase. One trial each, in one study after the other.
HITS = [
    ("worker", "SIGKILL", "load"),
    ("worker", "SIGTERM", "start"),
    ("supervisor", "SIGKILL", "load"),
    ("supervisor", "SIGTERM", "start"),
    ("server", "SIGKILL", "load"),
    ("server", "SIGTERM", "start"),
    ("engine", "SIGKILL", "load"),
    ("client", "SIGKILL", "load"),
]


def test_death_of_any_process_of_a_trial_is_one_row_and_the_study_goes_on(studies: Studies, tmp_path: Path) -> None:
    study = night(tmp_path, trials=len(HITS) + 1)
    driver = start(studies, study)
    for number, (who, name, phase) in enumerate(HITS, start=1):
        driver.reach(number, phase, timeout_s=60)
        running = Running.of(results(study), phase)
        os.kill(getattr(running, who), signal.Signals[name])
        running.gone()
    assert driver.wait() == 0, driver.text()
    assert "Traceback" not in driver.text()
    trials = read_trials(results(study))
    assert [trial.number for trial in trials] == list(range(len(trials)))
    for trial, (who, _, _) in zip(trials[1:], HITS, strict=False):
        attempts = {event.attempt for event in read_events(results(study), trial.number)}
        assert attempts == set(range(1, trial.attempts + 1))
        assert (trial.status.value, trial.attempts) == ("complete", 2), (who, trial.failure)
    assert not list((results(study) / "processes").iterdir())


def test_death_of_ray_is_one_line_and_the_next_start_goes_on(studies: Studies, tmp_path: Path) -> None:
    """Three studies with a Ray of their own: its raylet dies, all of it dies, Ctrl-C on their terminal."""
    ends: dict[str, tuple[str, ...]] = {"raylet": ("raylet",), "cluster": ("gcs_server", "raylet"), "terminal": ()}
    nights = {name: night(tmp_path / name, trials=2, fake={"start_delay_s": 0.0}) for name in ends}
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
    assert [trial.number for trial in read_trials(results(nights["cluster"]))] == [0, 1]
