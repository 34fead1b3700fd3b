"""Time and disk run out: the study stops by itself, says why, and keeps what it has."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fake_study
import pytest
from ray.tune.error import TuneError
from studies import Driver, Studies

from sweep.errors import HostError, HostNotReady, LoadFailed
from sweep.journal import EVENTS, Journal
from sweep.process import SupervisedProcess
from sweep.runner.evidence import reason_of
from sweep.store import DiskFull, WriteFailed, read_trials
from sweep.study import why_tune_gave_up
from sweep.trainable import how_to_go_on
from sweep.trial import Finished, TrialKind, TrialStatus

QUICK = {"num_prompts": 4, "warmup_prompts": 0}


def last_line(driver: Driver) -> str:
    return driver.text().strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("error", "times"),
    [
        (DiskFull(Path("t"), errno.ENOSPC, "cannot write t: the disk is full; make room and start the study again"), 1),
        (OSError(errno.ENOSPC, "No space left on device"), 1),
        (WriteFailed(Path("t"), errno.EACCES, "cannot write t: Permission denied"), 0),
    ],
    ids=["store", "log", "no right"],
)
def test_what_cannot_be_written_is_said_once_with_what_to_do(error: HostNotReady | OSError, times: int) -> None:
    finished = Finished(
        0,
        TrialKind.BASELINE,
        {},
        TrialStatus.FAILED,
        failure_class="other",
        failure_line=str(error),
        advice=how_to_go_on(error),
        policy="stop_now",
    )
    line = finished.line_of_cause()
    assert line.count("make room") == times
    assert ("mend that" in line) is (times == 0)


def raised_for(cause: OSError, error: Exception) -> Exception:
    """`error` as it comes out of the handler of `cause`."""
    try:
        try:
            raise cause
        except OSError:
            raise error  # noqa: B904 - as Ray does
    except (HostError, LoadFailed, TuneError) as caught:
        return caught


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FULL, "disk_full"),
        (OSError(errno.EFBIG, "File too large"), "disk_full"),
        (DiskFull(Path("t"), errno.EDQUOT, "the quota is used up"), "disk_full"),
        (raised_for(FULL, HostError("cannot start 'vllm'")), "disk_full"),
        (raised_for(FULL, LoadFailed("result_missing", "no result")), "disk_full"),
        (OSError(errno.EACCES, "Permission denied"), None),
        (raised_for(OSError(errno.EACCES, "Permission denied"), HostError("cannot start 'vllm'")), None),
        (LoadFailed("result_missing", "no result"), "result_missing"),
    ],
)
def test_a_full_disk_is_known_by_its_number_whatever_was_raised_for_it(error: Exception, reason: str | None) -> None:
    assert reason_of(error) == reason


def test_a_disk_that_ray_finds_full_is_the_cause_in_one_line() -> None:
    page = "Traceback (most recent call last):\n  File x\nOSError: [Errno 28] No space left on device\n"
    line = why_tune_gave_up(raised_for(FULL, TuneError(page)))
    assert line == (
        "The disk is full, so that Ray Tune gave up: OSError: [Errno 28] No space left on device; make room"
    )
    assert why_tune_gave_up(RuntimeError("no\nraylet")) == "Ray Tune gave up: no"


def test_a_command_that_finds_no_room_for_its_record_fails_of_that(tmp_path: Path) -> None:
    (tmp_path / "record.json.part").symlink_to("/dev/full")
    with pytest.raises(HostError, match="No space left on device") as caught:
        SupervisedProcess.start(["/bin/true"], env={}, log_path=tmp_path / "log", record_path=tmp_path / "record.json")
    assert reason_of(caught.value) == "disk_full"


def test_a_journal_without_room_goes_on_and_says_why_it_wrote_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 3, redact=str)
    for name in (EVENTS, "progress.tmp"):
        (tmp_path / name).symlink_to("/dev/full")
    journal.begin_attempt(1)
    journal.enter("load", total=4)
    journal.advance(2)
    journal.note("round", "done")
    assert [event.kind for event in journal.events] == ["phase", "round"]
    assert journal.trouble is not None
    assert journal.trouble.errno == errno.ENOSPC
    assert Journal(tmp_path / "new", 4, redact=str).trouble is None


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


@pytest.mark.night
def test_full_disk_stops_the_study_and_loses_no_trial(studies: Studies, tmp_path: Path, small_disk: Path) -> None:
    content = fake_study.study(tmp_path, fake={"noise_lines": 16_000}, study={"trials": 12}, load=QUICK)
    content["study"]["results"] = str(small_disk / "results")
    study = fake_study.write(tmp_path / "night.yaml", content)
    results = small_disk / "results" / "night"
    driver = studies.start(study, results)
    assert driver.wait() == 1, driver.text()
    assert "Traceback" not in driver.text()
    last = last_line(driver)
    assert "The disk is full" in last or "make room" in last, driver.text()
    assert max(last.count(words) for words in ("No space left", "isk is full", "make room")) == 1, last
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
