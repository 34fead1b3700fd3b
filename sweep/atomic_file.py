"""Files that are whole or absent, whatever is killed and whenever."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from sweep.errors import HostNotReady

# EFBIG is the limit on a file's size (ulimit -f), which leaves a writer in the same place as a full disk.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# A folder that cannot be synced on this file system: the rename itself is still atomic.
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES})
TEMPORARY_SUFFIX = ".tmp"


class WriteFailed(HostNotReady):
    """A file could not be written; nothing of it is left. `path` is the file, `code` the `errno`."""

    def __init__(self, path: Path, code: int | None, message: str) -> None:
        self.path, self.code = path, code
        super().__init__(message)


class DiskFull(WriteFailed):
    """No room for a file: disk, quota or the limit on file sizes. Files written before are untouched."""


def write_atomically(path: Path, content: bytes, *, scratch: Path | None = None) -> None:
    """Put `content` at `path`, replacing what is there, and return when it would survive a power cut.

    The file appears under its name whole or not at all: it is written as `.NAME.tmp`, synced and renamed. `scratch` is
    a folder of the same file system to write it in, by default its own. One writer of a file at a time. Raises DiskFull
    or WriteFailed; both leave what was at `path` as it was.
    """
    temporary = (scratch or path.parent) / f".{path.name}{TEMPORARY_SUFFIX}"
    try:
        _write_synced(temporary, content)
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise write_error(path, error) from error
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def reserve_room(path: Path, size_bytes: int) -> None:
    """A file that takes up so much of the disk, to be removed when room is needed. Raises OSError, leaving nothing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        # Blocks of its own: a file that is merely long takes up nothing.
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def write_error(path: Path, error: OSError) -> WriteFailed:
    """The error to raise for `error` while writing `path`: DiskFull or WriteFailed, in one line."""
    if error.errno in _FULL:
        why = {errno.EDQUOT: "the quota is used up", errno.EFBIG: "the limit on file sizes (ulimit -f) is reached"}
        reason = why.get(error.errno or 0, "the disk is full")
        return DiskFull(path, error.errno, f"cannot write {path}: {reason}; make room and start the study again")
    return WriteFailed(path, error.errno, f"cannot write {path}: {error.strerror or error}")


def disk_is_full(error: BaseException) -> bool:
    """Whether that error, or one that it was raised for, is a full disk, a used-up quota or the limit on file sizes."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, DiskFull) or (isinstance(link, OSError) and link.errno in _FULL):
            return True
        link = link.__cause__ or link.__context__
    return False


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def _write_synced(path: Path, content: bytes) -> None:
    # 0o666 lets the umask decide who may read.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        # Network file systems report a full disk as late as here.
        os.close(descriptor)
