"""One process to a study: an flock, or where the file system has none a file that only its holder makes."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sweep.errors import HostError

_HELD = frozenset({errno.EWOULDBLOCK, errno.EAGAIN})
# What some NFS, FUSE and cluster mounts answer: they know no flock.
_NO_FLOCK = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
# A holder writes its name right after it has the lock; a second process may look in between.
_LOOKS, _LOOK_EVERY_S = 50, 0.02


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a study. `started_ticks` is its start time as the kernel counts it, None if not known."""

    host: str
    pid: int
    since: str
    boot_id: str | None = None
    started_ticks: int | None = None

    def __str__(self) -> str:
        return f"host {self.host}, process {self.pid}, since {self.since}"


class Lock:
    """The held lock of a study; made by `take`."""

    def __init__(self, descriptor: int | None, marker: Path | None) -> None:
        self._descriptor, self._marker = descriptor, marker

    @classmethod
    def take(cls, folder: Path, study: str) -> Lock:
        """The lock `folder/lock`, taken. Raises HostError when another process has it, OSError when it cannot be made.

        An flock goes with its process, so a file left by a dead one is no obstacle. Its content says who holds it.
        """
        path = folder / "lock"
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Somebody may have removed the file between our opening and locking it.
                if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, _this_process(), 0)
                    return cls(descriptor, None)
                os.close(descriptor)
            except OSError as error:
                holder = _holder_soon(descriptor) if error.errno in _HELD else None
                os.close(descriptor)
                if error.errno in _HELD:
                    raise _held(study, holder) from error
                if error.errno in _NO_FLOCK:
                    return cls._take_marker(folder / "lock.holder", study)
                raise

    @classmethod
    def _take_marker(cls, path: Path, study: str) -> Lock:
        while True:
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except FileExistsError:
                _clear_dead_marker(path, study)
                continue
            try:
                os.write(descriptor, _this_process())
                os.fsync(descriptor)
            except OSError:
                path.unlink(missing_ok=True)
                raise
            finally:
                os.close(descriptor)
            return cls(None, path)

    @staticmethod
    def content(folder: Path) -> str:
        """What the last holder wrote of itself; empty when there is nothing to read."""
        for name in ("lock.holder", "lock"):
            try:
                return (folder / name).read_text(errors="replace")
            except OSError:
                continue
        return ""

    def release(self) -> None:
        """Let go; may be repeated."""
        descriptor, marker = self._descriptor, self._marker
        self._descriptor = self._marker = None
        if descriptor is not None:
            os.close(descriptor)
        if marker is not None:
            with contextlib.suppress(OSError):
                marker.unlink(missing_ok=True)


def last_holder(folder: Path) -> tuple[Holder | None, bool | None]:
    """Who last held the study and whether it lives; None where that cannot be seen from here. Takes nothing."""
    holder = _parsed(Lock.content(folder).encode())
    if holder is None:
        return None, None
    if holder.host != socket.gethostname():
        return holder, None
    return holder, _lives(holder)


def _clear_dead_marker(path: Path, study: str) -> None:
    """Remove the marker of a process that is no more. Raises HostError when it lives, or where we cannot see it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    holder = _parsed(content)
    if holder is None or holder.host != socket.gethostname():
        raise HostError(
            f"study {study} seems to be running already ({holder or 'holder not known'}); "
            f"this file system has no locks to ask, so if it is not, remove {path}"
        )
    if _lives(holder):
        raise _held(study, holder)
    dead = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.rename(dead)
        if dead.read_bytes() != content:
            # Another process cleared the dead marker and set its own since we looked: give it back.
            dead.rename(path)
            return
        dead.unlink()
    except FileNotFoundError:
        return


def _lives(holder: Holder) -> bool:
    """Whether that very process of this host lives, not another that got its id."""
    return holder.boot_id == _boot_id() and holder.started_ticks == _started_ticks(holder.pid) is not None


def _held(study: str, holder: Holder | None) -> HostError:
    who = f"on {holder}" if holder else "in another process"
    return HostError(f"study {study} is running already {who}; wait for it, stop it, or take another study name")


def _this_process() -> bytes:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    holder = Holder(socket.gethostname(), os.getpid(), now, _boot_id(), _started_ticks(os.getpid()))
    return (json.dumps(dataclasses.asdict(holder)) + "\n").encode()


def _holder_soon(descriptor: int) -> Holder | None:
    for _ in range(_LOOKS):
        try:
            content = os.pread(descriptor, 4096, 0)
        except OSError:
            return None
        if content:
            return _parsed(content)
        time.sleep(_LOOK_EVERY_S)
    return None


def _parsed(content: bytes) -> Holder | None:
    try:
        return Holder(**json.loads(content))
    except (ValueError, TypeError):
        return None


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _started_ticks(pid: int) -> int | None:
    """When a process started, in ticks since boot; None when none of that id lives. A recycled id differs in it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
