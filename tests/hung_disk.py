"""A file system that never answers: who looks into it hangs in the kernel, and no signal ends it.

What a GPU driver does to an engine in a bad night, with the means of FUSE: a request that was read and not answered is
waited for without end. All of it ends with `close`, and with the process that holds it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

_NOSUID, _NODEV, _FORCE, _DETACH = 2, 4, 1, 2
_INIT = 26
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def hung_disk(folder: Path) -> Iterator[None]:
    """`folder` as such a file system. Raises OSError where it cannot be had: no right to mount, no FUSE."""
    folder.mkdir(parents=True, exist_ok=True)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    where = str(folder).encode()
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
    try:
        if _LIBC.mount(b"hung", where, b"fuse", _NOSUID | _NODEV, options) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        reader = threading.Thread(target=_read, args=(device,), daemon=True)
        reader.start()
        try:
            yield
        finally:
            _LIBC.umount2(where, _FORCE | _DETACH)
            reader.join(10.0)
    finally:
        os.close(device)


def _read(device: int) -> None:
    """Answer the greeting, read everything else and say nothing."""
    with contextlib.suppress(OSError):  # the file system is gone
        while request := os.read(device, 1 << 17):
            _, opcode, unique = struct.unpack_from("<IIQ", request)
            if opcode == _INIT:
                body = struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 0, 0, 1 << 16, 1, 0, 0, 0)
                os.write(device, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)
