"""Our own errors in the words of `diagnosis`: the phase each belongs to, and its stable reason."""

from __future__ import annotations

import os
from pathlib import Path

from sweep.atomic_file import WriteFailed, disk_is_full
from sweep.diagnosis import Evidence
from sweep.errors import HostError, HostNotReady, LoadFailed, ServerDied, ServerNotReady, TeardownFailed


class DeviceBusy(HostNotReady):
    """The gate before a launch stayed shut."""


def phase_of(error: Exception) -> str:
    """Where a trial was when that error ended it."""
    if isinstance(error, ServerDied):
        return "load" if error.ready else "startup"
    if isinstance(error, ServerNotReady):
        return "startup"
    if isinstance(error, (HostNotReady, HostError)):
        return "host"
    if isinstance(error, TeardownFailed):
        return "teardown"
    return "load" if isinstance(error, LoadFailed) else "host"


def reason_of(error: Exception) -> str | None:
    """The word that `diagnosis` has for that error, None for one that only a log can explain."""
    if disk_is_full(error):
        return "disk_full"
    if isinstance(error, LoadFailed):
        return error.reason
    if isinstance(error, (OSError, WriteFailed)):
        return None
    words: dict[type[Exception], str] = {
        ServerDied: "server_died",
        ServerNotReady: "timeout_ready",
        TeardownFailed: "left_behind",
        DeviceBusy: "memory_busy",
        HostNotReady: "port_busy",  # what is left of these: no free port, or one taken in the last moment
    }
    return words.get(type(error))


def readings(evidence: Evidence) -> str:
    """What the host said about a failure, as a clause for its event; empty where nothing was read."""
    parts = (
        ("others held {:.1f} GiB of the device before the launch", evidence.memory_before_gib),
        ("disk {:.1f} GiB free", evidence.disk_free_gib),
        ("/dev/shm {:.1f} GiB free", evidence.shm_free_gib),
    )
    return ", ".join(text.format(value) for text, value in parts if value is not None)


def free_gib(path: Path) -> float | None:
    """Free space where `path` lies; None when it cannot be had."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize / 2**30
