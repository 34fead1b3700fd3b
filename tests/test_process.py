"""Supervised processes: real ones, real signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import alive, json_file, until

from sweep import supervisor
from sweep.errors import HostError
from sweep.process import SupervisedProcess, end_leftovers

FAKE = [sys.executable, str(Path(__file__).with_name("fake_vllm.py")), "serve", "model"]
STUBBORN = {"setsid": True, "ignore_sigterm": True}


class Tree:
    """A fake server with a grandchild in a session of its own that ignores SIGTERM."""

    def __init__(self, folder: Path, *, stop_timeout_s: float = 0.2, **config: object) -> None:
        self.record = folder / "records" / "0.json"
        grandchild = {**STUBBORN, "pid_file": str(folder / "pids.json")}
        fake = {"no_listen": True, "grandchild": grandchild, **config}
        self.process = SupervisedProcess.start(
            FAKE,
            env={**os.environ, "FAKE_VLLM": json.dumps(fake)},
            log_path=folder / "log",
            record_path=self.record,
            stop_timeout_s=stop_timeout_s,
            kill_wait_s=0.3,
        )
        self.engine = json_file(folder / "pids.json")[0]
        self.pids = [self.process.pid, self.process.supervisor_pid, self.engine]

    def gone(self) -> bool:
        return not alive(self.pids)


@pytest.fixture
def stopped() -> Iterator[list[SupervisedProcess]]:
    """Processes to be stopped whatever the test does."""
    processes: list[SupervisedProcess] = []
    yield processes
    for process in processes:
        process.stop(grace_s=0.0)


def run(folder: Path, script: str, **env: str) -> SupervisedProcess:
    return SupervisedProcess.start(
        ["/bin/sh", "-c", script],
        env={"PATH": os.environ["PATH"], **env},
        log_path=folder / "log",
        record_path=folder / "records" / "0.json",
        stop_timeout_s=0.3,
    )


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -SEGV $$", -11), ("kill -9 $$", -9)])
def test_exit_code_is_the_truth(tmp_path: Path, script: str, code: int) -> None:
    process = run(tmp_path, script)
    assert process.wait(300) == code
    report = process.stop()
    assert (report.exit_code, report.killed, report.left) == (code, False, ())
    assert process.poll() == code
    assert not list((tmp_path / "records").iterdir())


def test_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"cannot start '/no/such/vllm': No such file or directory"):
        SupervisedProcess.start(["/no/such/vllm"], env={}, log_path=tmp_path / "log", record_path=tmp_path / "0.json")
    assert not (tmp_path / "0.json").exists()


def test_environment_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="Invalid argument"):
        run(tmp_path, "exit 0", NUL="\0")


def test_record_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "records").write_text("a file")
    with pytest.raises(HostError, match="cannot start"):
        run(tmp_path, "exit 0")


def test_surroundings_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("earlier\n")
    script = "echo out; echo err >&2; cat; env; echo $$; ps -o pid=,pgid=,sid= -p $$"
    process = run(tmp_path, script, MINE="x" * 100_000, ODD="caf\udce9")
    assert process.wait(300) == 0
    process.stop()
    text = (tmp_path / "log").read_text(errors="surrogateescape")
    lines = text.splitlines()
    assert lines[:3] == ["earlier", "out", "err"]
    assert {"MINE=" + "x" * 100_000, "ODD=caf\udce9"} <= set(lines)
    names = {line.partition("=")[0] for line in lines if "=" in line}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "MINE", "ODD", supervisor.TOKEN_NAME}
    assert lines[-1].split() == [str(process.pid)] * 3


def test_record_says_who_runs(tmp_path: Path, stopped: list[SupervisedProcess]) -> None:
    process = run(tmp_path, "sleep 60", SECRET="do-not-tell")
    stopped.append(process)
    text = (tmp_path / "records" / "0.json").read_text()
    record = json.loads(text)
    assert record["child"][0] == record["session"] == record["group"] == process.pid
    for role in ("owner", "supervisor", "child"):
        pid, started = record[role]
        seen = supervisor.look(pid)
        assert seen is not None
        assert seen.started == started
    assert supervisor.carries(process.pid, record["token"])
    cmdline = Path(f"/proc/{process.supervisor_pid}/cmdline").read_text()
    assert "do-not-tell" not in text + cmdline


def test_record_of_an_earlier_tree_is_kept(tmp_path: Path) -> None:
    records = tmp_path / "records"
    records.mkdir()
    (records / "0.json").write_text("of one that could not be ended")
    process = run(tmp_path, "sleep 60")
    assert len(list(records.glob("*.json"))) == 2
    process.stop()
    assert [path.read_text() for path in records.iterdir()] == ["of one that could not be ended"]


def test_stop_of_a_polite_command(tmp_path: Path) -> None:
    process = run(tmp_path, "trap 'exit 7' TERM; while :; do sleep 0.02; done")
    time.sleep(0.2)
    assert process.poll() is None
    first = process.stop(grace_s=10)
    assert (first.exit_code, first.killed, first.left) == (7, False, ())
    assert process.stop() == first
    assert not list((tmp_path / "records").iterdir())


def test_owner_is_told_that_its_own_child_was_killed(tmp_path: Path) -> None:
    """As Ray does to a worker that it ends: the command lives on."""
    process = run(tmp_path, "while :; do sleep 0.02; done")
    seen = supervisor.look(process.supervisor_pid)
    assert seen is not None
    os.kill(seen.parent, signal.SIGKILL)
    until(lambda: (now := supervisor.look(process.supervisor_pid)) and now.parent != seen.parent, "another parent")
    assert process.poll() is None
    report = process.stop(grace_s=5)
    assert (report.left, report.abandoned) == ((), True)
    assert not run(tmp_path, "exit 0").stop().abandoned


def test_stop_of_a_stubborn_tree(tmp_path: Path) -> None:
    tree = Tree(tmp_path, ignore_sigterm=True)
    report = tree.process.stop()
    assert (report.exit_code, report.killed, report.left) == (-9, True, ())
    assert tree.gone()
    assert not tree.record.exists()


NO_KILL = """
#define _GNU_SOURCE
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
int kill(pid_t pid, int number) { return number == SIGKILL ? 0 : (int)syscall(SYS_kill, pid, number); }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_process_that_cannot_be_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that hangs in a driver: a library under the supervisor swallows its SIGKILLs."""
    (tmp_path / "no_kill.c").write_text(NO_KILL)
    library = str(tmp_path / "no_kill.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(tmp_path / "no_kill.c")], check=True)
    monkeypatch.setenv("LD_PRELOAD", library)
    tree = Tree(tmp_path)
    monkeypatch.delenv("LD_PRELOAD")
    report = tree.process.stop()
    assert (report.exit_code, report.killed, report.left) == (0, True, (tree.engine,))
    assert alive(tree.pids) == [tree.engine]
    # Its record stays, and the next start tries again.
    (found,) = end_leftovers(tree.record.parent)
    assert (found.record, found.ended, found.left) == (tree.record, (tree.engine,), ())
    assert not tree.record.exists()


def test_stop_can_be_hurried(tmp_path: Path) -> None:
    tree = Tree(tmp_path, ignore_sigterm=True, stop_timeout_s=60)
    patient = threading.Thread(target=tree.process.stop)
    patient.start()
    time.sleep(0.1)
    report = tree.process.stop(grace_s=0)
    patient.join(5)
    assert not patient.is_alive()
    assert report.killed
    assert tree.gone()


def test_escaped_grandchild_without_environment(tmp_path: Path) -> None:
    grandchild = {**STUBBORN, "clear_env": True, "pid_file": str(tmp_path / "pids.json")}
    tree = Tree(tmp_path, grandchild=grandchild)
    os.kill(tree.process.pid, signal.SIGKILL)
    assert tree.process.wait(300) == -9
    assert tree.process.stop(grace_s=0).left == ()
    assert tree.gone()


def test_leader_that_left_its_threads_behind(tmp_path: Path) -> None:
    """A process whose main thread is over while others hang is shown as a zombie; it still holds what it holds."""
    code = (
        "import ctypes, signal, threading, time\n"
        "signal.signal(15, signal.SIG_IGN)\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "open('ready', 'w').close()\n"
        "ctypes.CDLL(None).syscall(60, 0)\n"
    )
    process = SupervisedProcess.start(
        [sys.executable, "-S", "-c", code],
        env={},
        log_path=tmp_path / "log",
        record_path=tmp_path / "0.json",
        cwd=tmp_path,
        stop_timeout_s=0.3,
    )
    until((tmp_path / "ready").exists, "the thread to run")
    until(lambda: "State:\tZ" in Path(f"/proc/{process.pid}/status").read_text(), "its leader to leave")
    assert process.poll() is None
    assert alive([process.pid])
    report = process.stop()
    assert (report.exit_code, report.killed, report.left) == (-9, True, ())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("victim", ["supervisor", "command"])
def test_signal(tmp_path: Path, victim: str, number: signal.Signals) -> None:
    tree = Tree(tmp_path)
    os.kill(tree.pids[1] if victim == "supervisor" else tree.pids[0], number)
    code = tree.process.wait(300)
    assert code is not None
    if victim == "command":
        # SIGTERM and SIGINT are handled by the fake as by vLLM: a clean end.
        assert code == {signal.SIGKILL: -9, signal.SIGHUP: -1}.get(number, 0)
    elif number == signal.SIGKILL:
        assert code == -9
    until(tree.gone, "the tree to end")
    report = tree.process.stop()
    assert report.left == ()
    assert report.exit_code == code
    assert not tree.record.exists()


def test_killed_engine_takes_the_server_with_it(tmp_path: Path) -> None:
    grandchild = {**STUBBORN, "pid_file": str(tmp_path / "pids.json")}
    process = SupervisedProcess.start(
        [*FAKE, "--host", "127.0.0.1", "--port", "0"],
        env={**os.environ, "FAKE_VLLM": json.dumps({"grandchild": grandchild, "server_dies_with_child": True})},
        log_path=tmp_path / "log",
        record_path=tmp_path / "0.json",
    )
    engine = json_file(tmp_path / "pids.json")[0]
    os.kill(engine, signal.SIGKILL)
    assert process.wait(300) == 1
    assert process.stop().left == ()
    assert "died unexpectedly" in (tmp_path / "log").read_text()


def test_innocent_process_with_the_name_survives(tmp_path: Path) -> None:
    with subprocess.Popen(["bash", "-c", "exec -a 'vllm serve model' sleep 60"]) as innocent:
        tree = Tree(tmp_path)
        tree.process.stop(grace_s=0)
        assert tree.gone()
        assert innocent.poll() is None
        innocent.kill()
