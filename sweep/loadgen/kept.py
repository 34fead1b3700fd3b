"""The owner's side of a load client that imports once for all rounds of a server (`sweep.kept_client`)."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sweep.process import SupervisedProcess

# The modules of `vllm_cpu.installed`: what a person's own command needs, or changes between runs, is not known.
_KNOWN = ("sweep.vllm_cpu", "vllm.entrypoints.cli.main")
# The bar is the only sign of progress: drawn at each finished request, 80 bytes, and not when it pleases.
CLIENT_ENV: Mapping[str, str] = {"PYTHONUNBUFFERED": "1", "TQDM_MININTERVAL": "0", "TQDM_MINITERS": "1"}


def can_be_kept(command: Sequence[str]) -> bool:
    """Whether `command` is the client of this Python's own vLLM."""
    return tuple(command[:2]) == (sys.executable, "-m") and len(command) > 2 and command[2] in _KNOWN


class KeptClient:
    """Runs of one client command, one after the other, each in a fork of a process that has imported everything.

    It has an environment of its own from its start on, a log that all runs append to, and a record file like any other
    supervised process. What remains of it ends with `stop`.
    """

    def __init__(self, process: SupervisedProcess, channel: socket.socket, command: tuple[str, ...]) -> None:
        self._process, self._channel = process, channel
        self.command = command
        self._code: int | None = None
        self._running = False
        self._received = b""

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        log_path: Path,
        record_path: Path,
        stop_timeout_s: float = 10.0,
    ) -> KeptClient:
        """Begin to import, in the background; `command` is `python -m MODULE WORD...`. Raises HostError when it cannot
        be started."""
        python, _m, module, *words = command
        ours, theirs = socket.socketpair()
        try:
            process = SupervisedProcess.start(
                (python, "-m", "sweep.kept_client", str(theirs.fileno()), module, *words),
                env={**CLIENT_ENV, **env},
                log_path=log_path,
                record_path=record_path,
                stop_timeout_s=stop_timeout_s,
                pass_fds=(theirs.fileno(),),
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(process, ours, tuple(command))

    @property
    def usable(self) -> bool:
        """Whether another run may be begun: it lives, and no run is under way."""
        return not self._running and self._process.poll() is None

    def begin(self, argv: Sequence[str]) -> KeptRun:
        """Start a run; `argv` is a whole command that begins with `command`. One at a time."""
        if self._running or tuple(argv[: len(self.command)]) != self.command:
            raise ValueError("a kept client runs one load at a time, and its own command only")
        self._code, self._running, self._received = None, True, b""
        with contextlib.suppress(OSError):  # it has ended just now, which `wait` finds out
            self._channel.sendall(json.dumps(argv[len(self.command) :]).encode() + b"\n")
        return KeptRun(self)

    def wait(self, timeout_s: float) -> int | None:
        """The exit code of the run, that of the whole process if it ended before, None after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self._code is None:
            self._listen(min(0.25, deadline - time.monotonic()))
            if self._code is None and (code := self._process.poll()) is not None:
                self._code = code or 1  # it has no reason to end well while it owes us a code
            if time.monotonic() >= deadline:
                break
        return self._code

    def stop(self) -> None:
        """End the process, and with it a run that is under way. May be called again."""
        self._process.stop()
        self._channel.close()

    def end_run(self) -> None:
        """Make sure that no run is under way. One that must be cut short takes the process with it."""
        if self._running and self._code is None:
            self.stop()
        self._running = False

    def _listen(self, timeout_s: float) -> None:
        poller = select.poll()
        poller.register(self._channel.fileno(), select.POLLIN)
        if not poller.poll(max(0.0, timeout_s) * 1000.0):
            return
        with contextlib.suppress(ConnectionError):
            self._received += self._channel.recv(4096)
        if self._received.endswith(b"\n"):
            self._code = int(json.loads(self._received))


class KeptRun:
    """One run of a kept client, with the two methods of a supervised process that a load needs."""

    def __init__(self, kept: KeptClient) -> None:
        self._kept = kept

    def wait(self, timeout_s: float) -> int | None:
        """The exit code, or None after `timeout_s`."""
        return self._kept.wait(timeout_s)

    def stop(self) -> None:
        """End it, if it has not ended."""
        self._kept.end_run()
