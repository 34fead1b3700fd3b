"""What /proc tells about the host and its processes; None wherever it does not."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from sweep.redact import Redactor

_PROC = Path("/proc")
_COMMAND_LENGTH = 160


@dataclass(frozen=True, slots=True)
class HostReading:
    """One look at the host. The CPU figures are averages since the look before, None for the first.

    `cpu_percent` is of all cores together (100: all busy; time stolen by a hypervisor counts as busy).
    `client_cpu_percent_of_core` is of one core: a single-threaded load client near 100 is itself the limit.
    `ram_available_gib` is what the kernel could still hand out without swapping (MemAvailable).
    """

    monotonic_s: float
    cpu_percent: float | None
    ram_available_gib: float | None
    client_cpu_percent_of_core: float | None


class HostClock:
    """Turns the running counters of /proc into percentages between two looks."""

    def __init__(self, client_pids: Callable[[], Iterable[int]] | None = None) -> None:
        self._client_pids = client_pids
        self._cpu = _cpu_ticks()
        self._clients: dict[tuple[int, int], int] = {}
        self._clients_s = time.monotonic()

    def read(self) -> HostReading:
        """The state now. The processes asked for may come and go between looks."""
        now_s = time.monotonic()
        return HostReading(now_s, self._cpu_percent(), _ram_available_gib(), self._client_percent(now_s))

    def _cpu_percent(self) -> float | None:
        before, self._cpu = self._cpu, _cpu_ticks()
        if before is None or self._cpu is None or self._cpu[1] <= before[1]:
            return None
        return 100.0 * (self._cpu[0] - before[0]) / (self._cpu[1] - before[1])

    def _client_percent(self, now_s: float) -> float | None:
        if self._client_pids is None:
            return None
        before, elapsed_s = self._clients, now_s - self._clients_s
        self._clients = dict(filter(None, (_process_ticks(pid) for pid in self._client_pids())))
        self._clients_s = now_s
        # A process seen for the first time has no earlier count: what it used before is not this interval's.
        ticks = [count - before[key] for key, count in self._clients.items() if key in before]
        if not ticks or elapsed_s <= 0:
            return None
        return 100.0 * sum(ticks) / os.sysconf("SC_CLK_TCK") / elapsed_s


def command_of(pid: int) -> str | None:
    """A process's command on one line, shortened and with secrets hidden; None if it is not to be seen."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes() or (_PROC / str(pid) / "comm").read_bytes()
    except OSError:
        return None
    text = " ".join(raw.replace(b"\0", b" ").decode(errors="replace").split())
    text = Redactor(os.environ).text(text)
    return (text if len(text) <= _COMMAND_LENGTH else text[: _COMMAND_LENGTH - 1] + "…") or None


def _cpu_ticks() -> tuple[int, int] | None:
    """(busy, total) since boot. Guest time is already inside user time, so only the first eight count."""
    try:
        line = (_PROC / "stat").read_text().partition("\n")[0]
        counts = [int(word) for word in line.split()[1:9]]
    except (OSError, ValueError):
        return None
    total, idle = sum(counts), sum(counts[3:5])  # idle and waiting for disks
    return (total - idle, total) if total else None


def _process_ticks(pid: int) -> tuple[tuple[int, int], int] | None:
    """((pid, start time), CPU ticks of all its threads); the start time tells a recycled pid apart."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return (pid, int(fields[19])), int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return None


def _ram_available_gib() -> float | None:
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", (_PROC / "meminfo").read_text(), re.M)
    except OSError:
        return None
    return int(found[1]) / 2**20 if found else None
