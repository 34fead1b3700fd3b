"""Signals that come while Ray starts."""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import fake_study
import pytest
from studies import Driver, Studies
from waiting import until

from sweep import supervisor
from sweep.config import load
from sweep.gpu import Gpus
from sweep.interrupts import Interrupts, Stopped
from sweep.prepare import prepare


@pytest.mark.night
def test_signal_in_the_middle_of_the_start_is_one_line(studies: Studies, tmp_path: Path) -> None:
    """As soon as the first, or the last, of Ray's own processes is there; it knows SIGTERM as a crash."""
    cases = [("SIGTERM", "gcs_server"), ("SIGTERM", "raylet"), ("SIGINT", "raylet")]
    drivers = []
    for name, process in cases:
        folder = tmp_path / f"{name}-{process}"
        study = fake_study.write(folder / "night.yaml", fake_study.study(folder))
        drivers.append(studies.start(study, folder / "results" / "night", local=True))
    with Gpus() as gpus:
        notices = prepare(load(study), study, tmp_path / "nowhere", gpus).notices
    started: list[dict[int, int]] = [{} for _ in drivers]
    waiting = dict(enumerate(cases))
    while any(driver.process.is_alive() for driver in drivers):
        for index, driver in enumerate(drivers):
            started[index] |= below(driver)
            if index in waiting and waiting[index][1] in names(started[index]):
                driver.send(signal.Signals[waiting.pop(index)[0]])
        time.sleep(0.02)
    for driver, (name, _), processes in zip(drivers, cases, started, strict=True):
        assert driver.wait() == 128 + signal.Signals[name], driver.text()
        *before, last = driver.text().strip().splitlines()
        assert last == f"sweep: stopped by {name}; everything measured is kept, type the same command to go on"
        assert set(before) <= set(notices)
        until(functools.partial(all_gone, processes), f"the end of {processes}", 30.0)


def below(driver: Driver) -> dict[int, int]:
    """Processes under the driver: id and start time."""
    living = supervisor.everyone()
    return {pid: living[pid].started for pid in supervisor.descendants({driver.pid}, living)}


def names(processes: Mapping[int, int]) -> set[str]:
    found = set()
    for pid in processes:
        with contextlib.suppress(OSError):
            found.add(Path(f"/proc/{pid}/comm").read_text().strip())
    return found


def all_gone(processes: Mapping[int, int]) -> bool:
    now = supervisor.everyone()
    return not any(pid in now and now[pid].started == started for pid, started in processes.items())


def test_signal_that_is_held_counts_for_more_than_what_it_breaks() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def breaks() -> None:
        signal.raise_signal(signal.SIGTERM)
        raise RuntimeError("Ray does not start")

    with Interrupts() as interrupts, pytest.raises(Stopped) as stopped, interrupts.held():
        breaks()
    assert stopped.value.number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_hangup_ends_a_study_except_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGHUP)
            interrupts.check()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with pytest.raises(Stopped), Interrupts():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
