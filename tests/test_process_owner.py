"""The owner dies, in every way there is: nothing of it is left, now or after the next start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from waiting import alive, json_file, until

from sweep import supervisor
from sweep.process import end_leftovers

HERE = Path(__file__).parent
FAKE = [sys.executable, str(HERE / "fake_vllm.py"), "serve", "model"]


class Owner:
    """A process that owns a tree: command, supervisor and a grandchild that ignores SIGTERM in its own session."""

    def __init__(self, popen: subprocess.Popen[str], folder: Path) -> None:
        self.popen, self.records = popen, folder / "records"
        assert popen.stdout is not None
        self.ids: dict[str, int] = json.loads(popen.stdout.readline())
        self.engine = json_file(folder / "pids.json")[0]
        self.tree = [self.ids["command"], self.ids["supervisor"], self.engine]


@contextmanager
def owner(folder: Path, *, stop_timeout_s: float = 0.2, **more: Any) -> Iterator[Owner]:
    grandchild = {"setsid": True, "ignore_sigterm": True, "pid_file": str(folder / "pids.json")}
    job = {
        "argv": FAKE,
        "env": {"FAKE_VLLM": json.dumps({"no_listen": True, "grandchild": grandchild})},
        "folder": str(folder),
        "stop_timeout_s": stop_timeout_s,
        **more,
    }
    with subprocess.Popen(
        [sys.executable, str(HERE / "owner.py"), json.dumps(job)],
        env={**os.environ, "PYTHONPATH": str(HERE.parent)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as popen:
        started = None
        try:
            started = Owner(popen, folder)
            yield started
        finally:
            popen.kill()
            if started is not None:
                for pid in [started.engine, started.ids["forked"]]:
                    if pid is not None and alive([pid]):
                        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP])
def test_owner_gets_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    with owner(tmp_path) as own:
        os.killpg(own.popen.pid, number)  # as a terminal does for Ctrl-C
        until(lambda: not alive(own.tree), "the tree to end")
        assert not list(own.records.iterdir())


def test_owner_forked_a_child_that_keeps_the_pipes(tmp_path: Path) -> None:
    with owner(tmp_path, fork=True) as own:
        own.popen.kill()
        until(lambda: not alive(own.tree), "the tree to end")
        assert alive([own.ids["forked"]])


def test_direct_children_are_killed_before_the_owner(tmp_path: Path) -> None:
    """What Ray does to a worker: SIGKILL to its direct children, then its own end."""
    with owner(tmp_path) as own:
        living = supervisor.everyone()
        for pid in [pid for pid, seen in living.items() if seen.parent == own.popen.pid]:
            os.kill(pid, signal.SIGKILL)
        own.popen.kill()
        until(lambda: not alive(own.tree), "the tree to end")


def kill_owner_and_supervisor(own: Owner) -> None:
    os.kill(own.ids["supervisor"], signal.SIGSTOP)  # so that it cannot act on the end of the owner
    own.popen.kill()
    own.popen.wait()
    os.kill(own.ids["supervisor"], signal.SIGKILL)
    until(lambda: not alive([own.ids["supervisor"], own.ids["command"]]), "supervisor and command to end")
    assert alive([own.engine])


def test_leftovers_of_owner_and_supervisor_are_ended_at_the_next_start(tmp_path: Path) -> None:
    innocent = subprocess.Popen(["bash", "-c", "exec -a 'vllm serve model' sleep 60"], start_new_session=True)
    with owner(tmp_path) as own, innocent:
        kill_owner_and_supervisor(own)
        found = end_leftovers(own.records)
        assert [(left.ended, left.left) for left in found] == [((own.engine,), ())]
        assert not alive([own.engine])
        assert not list(own.records.iterdir())
        assert end_leftovers(own.records) == ()
        assert innocent.poll() is None
        innocent.kill()


def test_leftover_whose_supervisor_hangs(tmp_path: Path) -> None:
    with owner(tmp_path, stop_timeout_s=60) as own:
        own.popen.kill()
        own.popen.wait()
        # The supervisor is patient with the stubborn engine; the next start is not.
        (found,) = end_leftovers(own.records)
        assert own.engine in found.ended
        assert not alive(own.tree)


def test_records_of_the_living_are_left_alone(tmp_path: Path) -> None:
    with owner(tmp_path) as own:
        assert end_leftovers(own.records) == ()
        assert len(alive(own.tree)) == 3
        assert list(own.records.iterdir())
        # With the study's lock in hand, a living owner is a worker that should be gone.
        (found,) = end_leftovers(own.records, even_owned=True)
        assert set(found.ended) == {own.ids["command"], own.engine}
        assert not alive(own.tree)
        assert own.popen.poll() is None


@pytest.fixture
def innocent() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


def record(folder: Path, pid: int, started: int, **changes: str) -> Path:
    identity = {**supervisor.place(), "token": "t", "log": "", "session": pid, "group": pid, **changes}
    path = folder / "0001-server.json"
    supervisor.write_record(
        str(path), {**identity, "owner": [1, 1], "supervisor": [1, started - 1], "child": [pid, started]}
    )
    return path


def test_process_id_that_was_used_again_is_not_ended(tmp_path: Path, innocent: subprocess.Popen[bytes]) -> None:
    seen = supervisor.look(innocent.pid)
    assert seen is not None
    path = record(tmp_path, innocent.pid, seen.started - 1)
    assert end_leftovers(tmp_path) == ()
    assert innocent.poll() is None
    assert not path.exists()


def test_same_id_and_start_time_is_ended(tmp_path: Path, innocent: subprocess.Popen[bytes]) -> None:
    seen = supervisor.look(innocent.pid)
    assert seen is not None
    path = record(tmp_path, innocent.pid, seen.started)
    # `sleep` goes at SIGTERM; it stays a zombie of this test until it is waited for, which is not alive.
    (found,) = end_leftovers(tmp_path)
    assert found.ended == (innocent.pid,)
    assert innocent.wait(300) == -signal.SIGTERM
    assert not path.exists()


@pytest.mark.parametrize(
    ("changes", "kept"),
    [({"host": "elsewhere"}, True), ({"pid_namespace": "pid:[1]"}, True), ({"boot_id": "an earlier one"}, False)],
)
def test_records_of_another_place(
    tmp_path: Path, innocent: subprocess.Popen[bytes], changes: dict[str, str], kept: bool
) -> None:
    seen = supervisor.look(innocent.pid)
    assert seen is not None
    path = record(tmp_path, innocent.pid, seen.started, **changes)
    assert end_leftovers(tmp_path) == ()
    assert innocent.poll() is None
    assert path.exists() is kept


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"owner": 3, "supervisor": null}', "\0\0", '{"owner": [1'])
def test_record_that_is_none_is_removed(tmp_path: Path, text: str) -> None:
    (tmp_path / "0.json").write_text(text)
    (tmp_path / "notes.txt").write_text("not ours")
    assert end_leftovers(tmp_path) == ()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_no_folder_no_leftovers(tmp_path: Path) -> None:
    assert end_leftovers(tmp_path / "absent") == ()
