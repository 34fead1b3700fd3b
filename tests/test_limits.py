"""Time and disk run out: the study stops by itself, says why, and keeps what it has."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fake_study
import pytest
from studies import Driver, Studies

from sweep.store import read_trials

# A trial of about two seconds that is almost all waiting: a busy machine changes little.
SLOW = {"start_delay_s": 1.2, "landscape": {}}
QUICK = {"num_prompts": 4, "warmup_prompts": 0}


def last_line(driver: Driver) -> str:
    return driver.text().strip().splitlines()[-1]


def test_time_budget_starts_nothing_that_cannot_end_in_time(studies: Studies, tmp_path: Path) -> None:
    study = fake_study.write(
        tmp_path / "night.yaml", fake_study.study(tmp_path, fake=SLOW, study={"trials": 50}, load=QUICK)
    )
    results = tmp_path / "results" / "night"
    driver = studies.start(study, results, "--time-budget", "10s")
    assert driver.wait() == 0, driver.text()
    trials = read_trials(results)
    assert 1 <= len(trials) < 10  # of 50; tests/test_plan.py has the rule on a clock of its own
    assert last_line(driver) == "the time left is shorter than a trial"
    # What is known of earlier trials counts from the first moment.
    again = studies.start(study, results, "--time-budget", "1s")
    assert again.wait() == 0
    assert last_line(again) == "the time left is shorter than a trial"
    assert read_trials(results) == trials


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 11 MiB: the store's reserve and room for a few trials."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=11m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no right to mount a small file system here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_full_disk_stops_the_study_and_loses_no_trial(studies: Studies, tmp_path: Path, small_disk: Path) -> None:
    content = fake_study.study(tmp_path, fake={"noise_lines": 16_000}, study={"trials": 12}, load=QUICK)
    content["study"]["results"] = str(small_disk / "results")
    study = fake_study.write(tmp_path / "night.yaml", content)
    results = small_disk / "results" / "night"
    driver = studies.start(study, results)
    assert driver.wait() == 1, driver.text()
    assert "Traceback" not in driver.text()
    assert "The disk is full" in last_line(driver) or "make room" in last_line(driver), driver.text()
    kept = [trial for trial in read_trials(results) if trial.metrics is not None]
    assert 1 <= len(kept) < 12
    assert driver.text().count(" done: score") == len(kept)
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    again = studies.start(study, results, "--trials", str(len(kept) + 1))
    assert again.wait() == 0, again.text()
    after = read_trials(results)
    assert list(after[: len(kept)]) == kept
    assert [trial.number for trial in after] == list(range(len(kept) + 1))
    assert all(trial.metrics is not None for trial in after)
