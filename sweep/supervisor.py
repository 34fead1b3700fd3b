"""Parent of one process tree that must not outlive the tool. Standard library only; run as a script.

The owner starts `python -I -S supervisor.py`, writes one JSON line (the job) to its standard input and keeps that
pipe open. The supervisor starts the command in a session of its own and answers in JSON lines on standard output:
`started`, `failed`, `exited`, `ended`. It ends the whole tree (SIGTERM, bounded wait, SIGKILL) when it reads
`stop SECONDS`, when the pipe closes, when its parent is gone, on SIGTERM, SIGHUP or SIGINT, and when the command
itself has exited.

Nets lie under each other, because any of these processes may be killed at any moment:

- the owner's direct child is a shield that only waits: Ray ends the direct children of a worker with SIGKILL when it
  ends the worker (`kill_child_processes_on_worker_exit`), and the supervisor must outlive that;
- it is the subreaper of everything below it, so that an orphan is re-parented here and found, whatever session it made;
- its child asks the kernel for SIGKILL at the supervisor's own death;
- a record file names ids, start times and a random token that every descendant has in its environment, for whoever must
  clean up when the supervisor was killed too (`process.end_leftovers`).

Nothing is ever found by name.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

TOKEN_NAME = "SWEEP_PROCESS_TOKEN"
KILL_WAIT_S = 10.0  # a process that is still there so long after SIGKILL hangs in the kernel
ORPHAN_GRACE_S = 10.0  # nobody waits any more: end sooner than a patient owner would
AFTER_EXIT_GRACE_S = 3.0  # for the children of a command that is over; the next trial waits
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_RESET = ("SIGINT", "SIGTERM", "SIGHUP", "SIGCHLD", "SIGPIPE", "SIGXFSZ")


class Seen(NamedTuple):
    """A living process: parent, session, and start time in clock ticks since boot, which makes its id unique."""

    parent: int
    session: int
    started: int


def look(pid: int) -> Seen | None:
    """The process of that id, or None if it is gone or only waits to be reaped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 (pathlib would triple the start-up time)
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    # A leader shown as a zombie while other threads of it hang in a driver is not gone: it still holds the device.
    if fields[0] in (b"Z", b"X") and int(fields[17]) <= 1:
        return None
    return Seen(int(fields[1]), int(fields[3]), int(fields[19]))


def everyone() -> dict[int, Seen]:
    """All living processes by id."""
    found = ((int(name), look(int(name))) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    return {pid: seen for pid, seen in found if seen is not None}


def descendants(roots: set[int], living: dict[int, Seen]) -> set[int]:
    """Ids of everything below `roots`, without them."""
    found: set[int] = set()
    fresh = roots
    while fresh:
        fresh = {pid for pid, seen in living.items() if seen.parent in fresh} - found - roots
        found |= fresh
    return found


def carries(pid: int, token: str) -> bool:
    """Whether the process was started with that token in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            return f"{TOKEN_NAME}={token}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def place() -> dict[str, str]:
    """Where process ids mean something: this host since this boot, in this process namespace."""
    with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
        boot_id = file.read().strip()
    return {"host": os.uname().nodename, "boot_id": boot_id, "pid_namespace": os.readlink("/proc/self/ns/pid")}  # noqa: PTH115


def end(
    members: Callable[[], dict[int, int]],
    kill_at: Callable[[], float],
    pause: Callable[[float], None],
    kill_wait_s: float = KILL_WAIT_S,
) -> tuple[bool, tuple[int, ...]]:
    """End all `members` (id -> start time): SIGTERM once each, SIGKILL from `kill_at` (monotonic) on, then proof.

    Returns whether SIGKILL was sent and the ids that were still there `kill_wait_s` later.
    """
    asked: dict[int, int] = {}
    killing_since: float | None = None
    step_s = 0.005
    while found := members():
        now = time.monotonic()
        if now >= kill_at():
            killing_since = now if killing_since is None else killing_since
            if now - killing_since >= kill_wait_s:
                return True, tuple(sorted(found))
            _send(signal.SIGKILL, found)
        else:
            _send(signal.SIGTERM, {pid: at for pid, at in found.items() if asked.get(pid) != at})
            asked |= found
        pause(step_s)
        step_s = min(step_s * 1.5, 0.1)
    return killing_since is not None, ()


def _send(number: signal.Signals, found: dict[int, int]) -> None:
    for pid, started in found.items():
        seen = look(pid)
        if seen is not None and seen.started == started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def write_record(path: str, record: dict[str, Any]) -> None:
    """Replace the record file in one step."""
    part = f"{path}.part"
    with open(part, "w") as file:  # noqa: PTH123
        json.dump(record, file)
    os.replace(part, path)  # noqa: PTH105


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _report(event: str, **facts: object) -> None:
    with contextlib.suppress(OSError):  # the owner is gone; there is nobody to tell
        os.write(1, (json.dumps({"event": event, **facts}) + "\n").encode())


class _Supervisor:
    def __init__(self, job: dict[str, Any], rest: bytes) -> None:
        self._job, self._input, self._open = job, rest, True
        self._kill_at: float | None = None
        self._child = 0
        own = look(os.getpid())
        self._record: dict[str, Any] = {
            **place(),
            "owner": job["owner"],
            "supervisor": [os.getpid(), own.started if own else 0],
            "child": None,
            "token": job["token"],
            "log": job["log"],
        }

    def run(self) -> None:
        self._listen()
        try:
            self._start()
        except OSError as error:
            self._remove_record()
            _report("failed", error=error.strerror or str(error), errno=error.errno)
            return
        while self._kill_at is None:
            self._wait(1.0)
            # Beside the pipe: a child that the owner forked may hold the other end open.
            owner = look(self._job["owner"][0])
            if owner is None or owner.started != self._job["owner"][1]:
                self.ask(ORPHAN_GRACE_S)
        killed, left = end(self._members, lambda: self._kill_at or 0.0, self._wait, self._job["kill_wait_s"])
        self._reap()
        if not left:
            self._remove_record()
        _report("ended", killed=killed, left=left)

    def ask(self, grace_s: float) -> None:
        """End within `grace_s` from now; a later request can only shorten the wait."""
        at = time.monotonic() + min(grace_s, self._job["stop_timeout_s"])
        self._kill_at = at if self._kill_at is None else min(self._kill_at, at)

    def _listen(self) -> None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for name in ("SIGTERM", "SIGHUP", "SIGINT"):
            # A second signal does not wait.
            signal.signal(getattr(signal, name), lambda *_: self.ask(ORPHAN_GRACE_S if self._kill_at is None else 0.0))

    def _start(self) -> None:
        # Written before there is anything to find, so that no moment is without a record.
        write_record(self._job["record"], self._record)
        log = os.open(self._job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        trouble, tell = os.pipe2(os.O_CLOEXEC)
        parent = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            self._become(null, log, tell, parent)
        os.close(tell)
        said = os.read(trouble, 16)  # empty once exec has closed the other end
        for fd in (trouble, log, null):
            os.close(fd)
        if said:
            os.waitpid(self._child, 0)
            raise OSError(int(said), os.strerror(int(said)))
        seen = look(self._child)
        # A command that is over already has left no start time; its id is then of no use to anybody.
        self._record["child"] = [self._child, seen.started if seen else 0]
        self._record["session"] = self._record["group"] = self._child
        with contextlib.suppress(OSError):  # a disk that filled up just now; the first record has the token
            write_record(self._job["record"], self._record)
        _report("started", record=self._record)

    def _become(self, null: int, log: int, tell: int, parent: int) -> None:
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            for name in _RESET:
                signal.signal(getattr(signal, name), signal.SIG_DFL)
            if self._job["cwd"] is not None:
                os.chdir(self._job["cwd"])
            for fd, number in ((null, 0), (log, 1), (log, 2)):
                os.dup2(fd, number)
            argv: list[str] = self._job["argv"]
            os.execvpe(argv[0], argv, self._job["env"])
        except OSError as error:
            os.write(tell, str(error.errno).encode())
        except ValueError:  # a NUL or "=" where none may be
            os.write(tell, str(errno.EINVAL).encode())
        finally:
            os._exit(127)

    def _wait(self, timeout_s: float) -> None:
        inputs = [self._wake, 0] if self._open else [self._wake]
        ready = select.select(inputs, [], [], timeout_s)[0]
        if self._wake in ready:
            os.read(self._wake, 4096)
        if 0 in ready:
            chunk = os.read(0, 4096)
            *lines, self._input = (self._input + chunk).split(b"\n")
            for line in lines:
                self.ask(float(line.removeprefix(b"stop ")))
            if not chunk:
                self._open = False
                self.ask(ORPHAN_GRACE_S)
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child:
                _report("exited", code=os.waitstatus_to_exitcode(status))
                self.ask(AFTER_EXIT_GRACE_S)

    def _members(self) -> dict[int, int]:
        living = everyone()
        ids = descendants({os.getpid()}, living)
        if not ids:
            # Nothing below us: look once more for what has escaped, by its environment.
            token, own = self._job["token"], self._record["supervisor"][1]
            ids = {pid for pid, seen in living.items() if seen.started >= own and carries(pid, token)}
        return {pid: living[pid].started for pid in ids - {os.getpid()}}

    def _remove_record(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._job["record"])  # noqa: PTH108


def _main() -> None:
    if shielded := os.fork():
        for fd in (0, 1):
            os.close(fd)  # or the pipes would stay open when the supervisor is gone
        os.waitpid(shielded, 0)
        return
    received = b""
    while b"\n" not in received:
        chunk = os.read(0, 1 << 16)
        if not chunk:
            return
        received += chunk
    line, _, rest = received.partition(b"\n")
    _Supervisor(json.loads(line), rest).run()


if __name__ == "__main__":
    _main()
