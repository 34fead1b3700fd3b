"""Ports that two concurrent trials of one machine cannot both get."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from sweep.errors import HostError, HostNotReady

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _HIGHEST = 20_000, 65_535


class PortReservation:
    """A port that is ours until `release`, the end of a `with` block, or the end of this process."""

    def __init__(self, port: int, fd: int, path: Path) -> None:
        self.port, self._fd, self._path = port, fd, path

    def release(self) -> None:
        """Give the port back. May be called twice."""
        if self._fd >= 0:
            # Removed while still locked: whoever waits for this file finds that it is no longer the one on disk.
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def reserve_port(host: str = "127.0.0.1", *, folder: Path | None = None) -> PortReservation:
    """A free port of `host`, locked against every other caller of this user on this machine.

    The port lies outside the kernel's ephemeral range where that leaves room, so that no outgoing connection takes
    it between now and the server's start. `folder` holds the lock files (default: one of this user under the
    temporary folder). Raises HostNotReady when there is none.
    """
    folder = _folder() if folder is None else folder
    for port in _candidates():
        reservation = _try(host, port, folder)
        if reservation is not None:
            return reservation
    raise HostNotReady(f"no free port on {host} between {_LOWEST} and {_HIGHEST}")


def port_free(host: str, port: int) -> bool:
    """Whether nothing listens on that port. Connections that only linger after their end do not count."""
    try:
        with _bind(host, port):
            return True
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return False
        raise


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        # As servers do. SO_REUSEPORT is left out on purpose: vLLM sets it, and two of them would share one port.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def _folder() -> Path:
    path = Path(tempfile.gettempdir()) / f"sweep-ports-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise HostError(f"{path} belongs to somebody else; remove it or set TMPDIR")
    return path


def _candidates() -> Iterator[int]:
    low, high = _ephemeral_range()
    outside = [port for port in range(_LOWEST, _HIGHEST + 1) if not low <= port <= high]
    inside = [port for port in range(_LOWEST, _HIGHEST + 1) if low <= port <= high]
    # Another user's choice cannot be locked, only avoided: start somewhere. No measurement depends on it.
    start = random.SystemRandom().randrange(len(outside)) if outside else 0
    yield from outside[start:]
    yield from outside[:start]
    yield from inside


def _ephemeral_range() -> tuple[int, int]:
    try:
        low, high = _EPHEMERAL.read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32_768, 60_999  # Linux' default


def _try(host: str, port: int, folder: Path) -> PortReservation | None:
    path = folder / f"{port}.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_ino == path.stat().st_ino and port_free(host, port):
            return PortReservation(port, fd, path)
    os.close(fd)
    return None
