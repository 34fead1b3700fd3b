"""One process to a study, no name that escapes, and no mixing of trials that cannot be compared."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sweep.errors import HostError, UserError
from sweep.fingerprint import Fingerprint
from sweep.redact import REDACTED, Redactor
from sweep.study_folder import StudyFolder

ROOT = Path(__file__).parents[1]
FIRST = Fingerprint.from_json(json.dumps({"vllm": "0.32.0", "model": "m", "hostname": "a", "load": {"rate": "8"}}))
NOBODY = Redactor({})
HOLD = """
import sys
from pathlib import Path
from sweep.study_folder import StudyFolder
folder = StudyFolder.open(Path(sys.argv[1]), "night")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_elsewhere(results: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the study `night`."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(results)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
    finally:
        holder.kill()
        holder.communicate()


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that knows no flock."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


def with_a_trial(folder: StudyFolder) -> None:
    (folder.path / "trials").mkdir()
    (folder.path / "trials" / "0000.parquet").touch()


# The folder


def test_opening_makes_the_folders(tmp_path: Path) -> None:
    with StudyFolder.open(tmp_path / "results", "night") as folder:
        assert folder.path == tmp_path / "results" / "night"
        assert folder.log_folder(3) == folder.path / "logs" / "0003"
        for made in (folder.processes, folder.load, folder.ray, folder.log_folder(3)):
            assert made.is_dir()
            assert made.is_relative_to(folder.path)


@pytest.mark.parametrize(
    "name", ["..", ".", "", "a/b", "../a", "/etc", ".hidden", "a..b", "a\n", "a\0b", "-x", "a b", "ä", "x" * 101]
)
def test_a_name_cannot_escape(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="not a plain folder name") as caught:
        StudyFolder.open(tmp_path / "results", name)
    assert len(str(caught.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "night").write_text("")
    with pytest.raises(HostError, match="File exists"):
        StudyFolder.open(tmp_path, "night")
    with pytest.raises(HostError, match="Not a directory"):
        StudyFolder.open(tmp_path / "night", "night")


OPEN_READ_ONLY = """
import sys
from pathlib import Path
from sweep.errors import HostError
from sweep.study_folder import StudyFolder
try:
    StudyFolder.open(Path(sys.argv[1]), "night")
except HostError as error:
    print(error)
"""


def test_a_read_only_results_folder_is_one_line(tmp_path: Path) -> None:
    """Read-only by its mount, which binds root as well, in a mount namespace of its own."""
    mount = f"mount -t tmpfs -o ro none {tmp_path}"
    if subprocess.run(["unshare", "-Urm", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs in a user namespace is not permitted here")
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", OPEN_READ_ONLY,
         str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    expected = f"cannot write in {tmp_path / 'night'}: Read-only file system; choose another results folder\n"
    assert (done.stdout, done.stderr) == (expected, "")


def test_the_umask_decides_who_may_read(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with StudyFolder.open(tmp_path / "results", "night") as folder:
            folder.adopt(FIRST, {}, NOBODY)
    finally:
        os.umask(before)
    for path in (folder.path, *folder.path.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


# The lock


def test_a_second_process_is_refused_with_the_first_ones_host_and_id(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path) as holder, pytest.raises(HostError) as caught:
        StudyFolder.open(tmp_path, "night")
    line = str(caught.value)
    assert f"on host {socket.gethostname()}, process {holder.pid}, since 20" in line
    assert len(line.splitlines()) == 1


def test_a_lock_left_by_a_killed_process_is_no_obstacle(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with StudyFolder.open(tmp_path, "night") as folder:
            assert json.loads((folder.path / "lock").read_text())["pid"] == os.getpid()


def test_two_studies_do_not_stand_in_each_others_way(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path), StudyFolder.open(tmp_path, "day") as folder:
        assert folder.path.is_dir()


def test_closing_gives_the_study_up(tmp_path: Path) -> None:
    first = StudyFolder.open(tmp_path, "night")
    with pytest.raises(HostError, match=f"process {os.getpid()}"):
        StudyFolder.open(tmp_path, "night")
    first.close()
    first.close()
    StudyFolder.open(tmp_path, "night").close()


def test_a_lock_of_odd_content_is_no_obstacle_and_no_traceback(tmp_path: Path) -> None:
    for content in (b"\xff\xfe", b"[1]", b'{"host": "x"}'):
        (tmp_path / "night").mkdir(exist_ok=True)
        (tmp_path / "night" / "lock").write_bytes(content)
        with StudyFolder.open(tmp_path, "night"):
            (tmp_path / "night" / "lock").write_bytes(content)
            with pytest.raises(HostError, match="in another process"):
                StudyFolder.open(tmp_path, "night")


def test_children_do_not_keep_the_lock(tmp_path: Path) -> None:
    folder = StudyFolder.open(tmp_path, "night")
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
        folder.close()
        StudyFolder.open(tmp_path, "night").close()
        child.kill()


@pytest.mark.usefixtures("no_flock")
class TestWithoutFlock:
    def test_a_living_holder_is_named(self, tmp_path: Path) -> None:
        with (
            StudyFolder.open(tmp_path, "night"),
            pytest.raises(HostError, match=f"running already on host .*, process {os.getpid()},"),
        ):
            StudyFolder.open(tmp_path, "night")
        StudyFolder.open(tmp_path, "night").close()
        assert not (tmp_path / "night" / "lock.holder").exists()

    @pytest.mark.parametrize("stale", ["dead", "recycled", "rebooted"])
    def test_a_marker_of_a_dead_process_is_no_obstacle(self, tmp_path: Path, stale: str) -> None:
        folder = StudyFolder.open(tmp_path, "night")
        marker = folder.path / "lock.holder"
        holder = json.loads(marker.read_text())
        if stale == "dead":
            with subprocess.Popen(["true"]) as ended:
                ended.wait()
            holder |= {"pid": ended.pid}
        else:
            holder |= {"started_ticks": 1} if stale == "recycled" else {"boot_id": "before"}
        marker.write_text(json.dumps(holder))
        with StudyFolder.open(tmp_path, "night"):
            assert json.loads(marker.read_text())["pid"] == os.getpid()
        assert sorted(path.name for path in folder.path.glob("lock*")) == ["lock"]

    @pytest.mark.parametrize("content", ['{"host": "elsewhere", "pid": 1, "since": "x"}', ""])
    def test_what_cannot_be_judged_is_refused_with_the_remedy(self, tmp_path: Path, content: str) -> None:
        marker = tmp_path / "night" / "lock.holder"
        marker.parent.mkdir()
        marker.write_text(content)
        with pytest.raises(HostError, match=r"seems to be running already.*if it is not, remove .*lock\.holder"):
            StudyFolder.open(tmp_path, "night")
        assert marker.exists()


# Going on with a study


def test_the_same_study_goes_on_with_other_weights_and_trials(tmp_path: Path) -> None:
    with StudyFolder.open(tmp_path, "night") as folder:
        assert folder.adopt(FIRST, {"trials": 6}, NOBODY) == ()
        with_a_trial(folder)
    with StudyFolder.open(tmp_path, "night") as folder:
        assert folder.adopt(FIRST, {"trials": 12, "weights": {"p95_ttft_ms": 1}}, NOBODY) == ()
        assert json.loads((folder.path / "study.json").read_text())["trials"] == 12


def test_incomparable_trials_are_refused_with_the_difference_and_the_remedy(tmp_path: Path) -> None:
    changed = dataclasses.replace(FIRST, vllm="0.33.0", load=(("rate", "4"),))
    with StudyFolder.open(tmp_path, "night") as folder:
        folder.adopt(FIRST, {"n": 1}, NOBODY)
        with_a_trial(folder)
        with pytest.raises(UserError) as caught:
            folder.adopt(changed, {"n": 2}, NOBODY)
        line = str(caught.value)
        assert "vLLM version: was 0.32.0, is now 0.33.0; load setting rate: was 8, is now 4" in line
        assert "another study name" in line
        assert len(line.splitlines()) == 1
        # Nothing of the refused study is kept.
        assert json.loads((folder.path / "study.json").read_text()) == {"n": 1}
        assert folder.adopt(FIRST, {}, NOBODY) == ()


def test_another_host_is_a_remark(tmp_path: Path) -> None:
    with StudyFolder.open(tmp_path, "night") as folder:
        folder.adopt(FIRST, {}, NOBODY)
        with_a_trial(folder)
        (remark,) = folder.adopt(dataclasses.replace(FIRST, hostname="b"), {}, NOBODY)
    assert "host: was a, is now b" in remark


def test_a_study_without_trials_may_still_be_corrected(tmp_path: Path) -> None:
    with StudyFolder.open(tmp_path, "night") as folder:
        folder.adopt(FIRST, {}, NOBODY)
        corrected = dataclasses.replace(FIRST, model="right")
        assert folder.adopt(corrected, {}, NOBODY) == ()
        assert Fingerprint.from_json((folder.path / "fingerprint.json").read_text()) == corrected


def test_what_becomes_known_later_is_kept(tmp_path: Path) -> None:
    with StudyFolder.open(tmp_path, "night") as folder:
        folder.adopt(FIRST, {}, NOBODY)
        with_a_trial(folder)
        folder.adopt(dataclasses.replace(FIRST, driver="570.1"), {}, NOBODY)
        with pytest.raises(UserError, match=r"GPU driver: was 570\.1, is now 580\.2"):
            folder.adopt(dataclasses.replace(FIRST, driver="580.2"), {}, NOBODY)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"load": 3}'])
def test_a_damaged_fingerprint_is_set_aside_and_said(tmp_path: Path, content: str) -> None:
    with StudyFolder.open(tmp_path, "night") as folder:
        (folder.path / "fingerprint.json").write_text(content)
        (remark,) = folder.adopt(FIRST, {}, NOBODY)
        assert "fingerprint.json was damaged and is set aside" in remark
        assert [path.read_text() for path in (folder.path / "set_aside").iterdir()] == [content]
        assert Fingerprint.from_json((folder.path / "fingerprint.json").read_text()) == FIRST


def test_no_secret_of_the_settings_is_stored(tmp_path: Path) -> None:
    settings = {"serve": {"env": {"HF_TOKEN": "abc"}, "command": ["docker", "-e", "A_KEY=opensesame"]}}
    with StudyFolder.open(tmp_path, "night") as folder:
        folder.adopt(FIRST, settings, NOBODY)
        stored = json.loads((folder.path / "study.json").read_text())
    assert stored["serve"] == {"env": {"HF_TOKEN": REDACTED}, "command": ["docker", "-e", f"A_KEY={REDACTED}"]}


def test_a_folder_that_went_away_is_one_line(tmp_path: Path) -> None:
    folder = StudyFolder.open(tmp_path, "night")
    shutil.rmtree(folder.path)
    with pytest.raises(HostError, match=r"cannot write .*No such file"):
        folder.adopt(FIRST, {}, NOBODY)
    folder.close()


def test_waiting_for_the_holder_is_short(tmp_path: Path) -> None:
    """The lock taken but not yet signed: a second process waits a moment for the name, not for ever."""
    with StudyFolder.open(tmp_path, "night") as folder:
        content = (folder.path / "lock").read_bytes()
        (folder.path / "lock").write_bytes(b"")
        write_late = f"sleep 0.05; cp {folder.path}/late {folder.path}/lock"
        (folder.path / "late").write_bytes(content)
        with subprocess.Popen(["sh", "-c", write_late]) as late, pytest.raises(HostError) as caught:
            StudyFolder.open(tmp_path, "night")
        late.wait()
    assert f"process {os.getpid()}" in str(caught.value)
