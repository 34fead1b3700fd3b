"""A command under a supervisor, seen from its owner."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweep import supervisor
from sweep.errors import HostError
from sweep.process.leftovers import end_recorded

_START_WAIT_S = 60.0  # a loaded machine may take seconds to start an interpreter; more means that something is wrong
_MARGIN_S = 5.0


@dataclass(frozen=True, slots=True)
class StopReport:
    """How a process tree ended. `left` are ids that SIGKILL did not remove within its bounded wait.

    `exit_code` is that of the command itself, negative for a signal; None if it is among those left. `took_s` counts
    from the first call of `stop`. `abandoned`: the process between owner and supervisor was killed meanwhile, which is
    what Ray does to the children of a worker that it ends.
    """

    exit_code: int | None
    killed: bool
    left: tuple[int, ...]
    took_s: float
    abandoned: bool = False


class SupervisedProcess:
    """A running command. Make one with `start`; end it with `stop`. May be polled from any thread."""

    def __init__(
        self, popen: subprocess.Popen[bytes], record_path: Path, stop_timeout_s: float, kill_wait_s: float
    ) -> None:
        self._popen, self._record_path = popen, record_path
        self._stop_timeout_s, self._kill_wait_s = stop_timeout_s, kill_wait_s
        self._lock = threading.RLock()
        self._received = b""
        self._record: dict[str, Any] = {}
        self._exit_code: int | None = None
        self._ended: StopReport | None = None
        self._stop_asked_at: float | None = None
        self._failed: OSError | None = None

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log_path: Path,
        record_path: Path,
        cwd: Path | None = None,
        stop_timeout_s: float = 30.0,
        kill_wait_s: float = supervisor.KILL_WAIT_S,
        pass_fds: Sequence[int] = (),
    ) -> SupervisedProcess:
        """Start `argv` with exactly `env`, in a new session, standard output and error appended to `log_path`.

        `record_path` names the file that says what runs (a name beside it if there is one already); it is gone again
        after a clean end. `stop_timeout_s` is the longest wait between SIGTERM and SIGKILL, `kill_wait_s` the longest
        one for SIGKILL to work. The command also gets the descriptors `pass_fds`, under their numbers. Raises HostError
        when the command cannot be executed.
        """
        log_path, record_path = log_path.absolute(), record_path.absolute()
        own = supervisor.look(os.getpid())
        token = secrets.token_hex(16)
        if record_path.exists():  # of a tree that could not be ended: still needed
            record_path = record_path.with_stem(f"{record_path.stem}-{token[:8]}")
        job = {
            "argv": list(argv),
            "env": {**env, supervisor.TOKEN_NAME: token},
            "log": str(log_path),
            "record": str(record_path),
            "cwd": None if cwd is None else str(cwd),
            "stop_timeout_s": stop_timeout_s,
            "kill_wait_s": kill_wait_s,
            "token": token,
            "owner": [os.getpid(), own.started if own else 0],
        }
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            record_path.parent.mkdir(parents=True, exist_ok=True)
            with log_path.open("ab") as log:
                popen = subprocess.Popen(
                    [sys.executable, "-I", "-S", supervisor.__file__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    bufsize=0,
                    pass_fds=pass_fds,
                    start_new_session=True,  # a Ctrl-C on the terminal is for the owner alone
                )
        except OSError as error:
            raise HostError(f"cannot start {argv[0]!r}: {error}") from error
        self = cls(popen, record_path, stop_timeout_s, kill_wait_s)
        try:
            self._hand_over(job)
        except BaseException:
            self._close()
            raise
        return self

    @property
    def pid(self) -> int:
        """Process id of the command (not of its supervisor); also its process group and session."""
        child: int = self._record["child"][0]
        return child

    @property
    def supervisor_pid(self) -> int:
        """Process id of the supervisor."""
        pid: int = self._record["supervisor"][0]
        return pid

    def poll(self) -> int | None:
        """The command's exit code (negative: signal) or None while it runs. Never blocks for long.

        When the supervisor was killed, the kernel kills the command with it: what is left of the tree is ended here
        and the answer is -9.
        """
        self._drain()
        return self._exit_code

    def wait(self, timeout_s: float) -> int | None:
        """As `poll`, but wait up to `timeout_s` for the end."""
        deadline = time.monotonic() + timeout_s
        while (code := self.poll()) is None and (rest_s := deadline - time.monotonic()) > 0:
            self._listen(rest_s)
        return code

    def stop(self, *, grace_s: float | None = None) -> StopReport:
        """End the whole tree: SIGTERM, up to `grace_s` (default and limit: `stop_timeout_s`), SIGKILL, proof.

        May be called again, also with a shorter grace while another call waits; it then returns the same report.
        """
        grace_s = self._stop_timeout_s if grace_s is None else min(grace_s, self._stop_timeout_s)
        now = time.monotonic()
        if self._stop_asked_at is None:
            self._stop_asked_at = now
        if self._ended is None:
            with contextlib.suppress(OSError):  # broken pipe: the supervisor is gone, which _drain finds out
                self._stdin(f"stop {grace_s}\n".encode())
        # After a natural end the supervisor may be in the middle of its own, longer wait.
        deadline = now + max(grace_s, supervisor.ORPHAN_GRACE_S) + self._kill_wait_s + _MARGIN_S
        while self._ended is None:
            self._drain()
            if self._ended is None and time.monotonic() > deadline:
                # A supervisor that does not answer; the end of its pipe makes _drain end the tree by the record.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.supervisor_pid, signal.SIGKILL)
                deadline = float("inf")
            if self._ended is None:
                self._listen(1.0)
        if self._popen.poll() == -signal.SIGKILL:
            self._ended = dataclasses.replace(self._ended, abandoned=True)
        self._close()
        return self._ended

    def _stdin(self, data: bytes) -> None:
        assert self._popen.stdin is not None
        view = memoryview(data)
        while view:
            view = view[os.write(self._popen.stdin.fileno(), view) :]

    def _hand_over(self, job: dict[str, Any]) -> None:
        assert self._popen.stdout is not None
        os.set_blocking(self._popen.stdout.fileno(), False)
        with contextlib.suppress(BrokenPipeError):
            self._stdin(json.dumps(job).encode() + b"\n")
        deadline = time.monotonic() + _START_WAIT_S
        while not self._record:
            self._drain()
            if self._failed is not None or self._ended is not None or time.monotonic() > deadline:
                self._record_path.unlink(missing_ok=True)
                why = "its supervisor ended" if self._failed is None else self._failed.strerror
                raise HostError(f"cannot start {job['argv'][0]!r}: {why}") from self._failed
            if not self._record:
                self._listen(1.0)

    def _listen(self, timeout_s: float) -> None:
        """Wait until the supervisor says something, at most `timeout_s`."""
        assert self._popen.stdout is not None
        if self._popen.stdout.closed:
            return
        with contextlib.suppress(ValueError):  # closed by another thread
            poller = select.poll()  # unlike select() it takes descriptors above 1023
            poller.register(self._popen.stdout.fileno(), select.POLLIN)
            poller.poll(max(0.0, timeout_s) * 1000.0)

    def _drain(self) -> None:
        with self._lock:
            while self._ended is None:
                assert self._popen.stdout is not None
                try:
                    chunk = os.read(self._popen.stdout.fileno(), 1 << 16)
                except BlockingIOError:
                    return
                if not chunk:
                    self._supervisor_lost()
                    return
                *lines, self._received = (self._received + chunk).split(b"\n")
                for line in lines:
                    self._heed(json.loads(line))

    def _heed(self, said: dict[str, Any]) -> None:
        match said["event"]:
            case "started":
                self._record = said["record"]
            case "failed":
                self._failed = OSError(said["errno"], said["error"])
            case "exited":
                self._exit_code = said["code"]
            case "ended":
                self._finish(killed=said["killed"], left=tuple(said["left"]))

    def _supervisor_lost(self) -> None:
        if self._failed is not None or not self._record:
            self._finish(killed=False, left=())
            return
        killed, left = end_recorded(self._record, grace_s=0.0, by_session=True)
        if self._exit_code is None and self.pid not in left:
            self._exit_code = -signal.SIGKILL
        if not left:
            self._record_path.unlink(missing_ok=True)
        self._finish(killed=killed, left=left)

    def _finish(self, *, killed: bool, left: tuple[int, ...]) -> None:
        took_s = 0.0 if self._stop_asked_at is None else time.monotonic() - self._stop_asked_at
        self._ended = StopReport(self._exit_code, killed, left, took_s)

    def _close(self) -> None:
        """Let go of the pipes (which ends a supervisor that still runs) and reap the supervisor."""
        with self._lock:
            for pipe in (self._popen.stdin, self._popen.stdout):
                if pipe is not None:
                    pipe.close()
            try:
                self._popen.wait(_MARGIN_S)
            except subprocess.TimeoutExpired:
                self._popen.kill()
