"""CPUs of its own for each server and its load client (`resources.pin_cpus`).

A machine's CPUs are shared among its devices, each getting some of the NUMA node it sits at; a trial has those of its
devices. Without devices they are shared among as many trials as run at once. Hyperthreads of a core stay together: two
servers on one core would not be apart. Everything that is started meanwhile inherits the set.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from sweep.errors import HostNotReady
from sweep.gpu import DeviceInfo

_CPUS, _PCI = Path("/sys/devices/system/cpu"), Path("/sys/bus/pci/devices")
_DRIVER = Path("/proc/driver/nvidia/gpus")


@contextlib.contextmanager
def own_cpus(mine: Sequence[DeviceInfo], every: Sequence[DeviceInfo], at_once: int) -> Iterator[frozenset[int]]:
    """The CPUs of a trial on the devices `mine` of `every` one here, this thread's until the end.

    `at_once`: how many trials run here at once where there are no devices. Raises HostNotReady where there are too few
    CPUs, or no share is free.
    """
    allowed = os.sched_getaffinity(0)
    with contextlib.ExitStack() as stack:
        if mine:
            cpus = of_devices(mine, every, cores_of(allowed), {one: node_of(one) for one in every})
        else:
            parts = shares(cores_of(allowed), at_once)
            cpus = parts[stack.enter_context(_free_place(at_once))]
        os.sched_setaffinity(0, cpus)
        try:
            yield cpus
        finally:
            os.sched_setaffinity(0, allowed)


def of_devices(
    mine: Sequence[DeviceInfo],
    every: Sequence[DeviceInfo],
    cores: Sequence[tuple[int | None, frozenset[int]]],
    nodes: Mapping[DeviceInfo, int | None],
) -> frozenset[int]:
    """The CPUs of the devices `mine`: those of each one's NUMA node shared among all devices there.

    `cores`: of each the NUMA node and its CPUs; `nodes`: of each device. Where the node of any is not known, or has no
    core that may be used, all cores are shared among all devices.
    """
    known = all(any(at == node for at, _ in cores) for node in nodes.values()) and None not in nodes.values()
    found: set[int] = set()
    for device in mine:
        node = nodes[device] if known else None
        beside = [one for one in every if not known or nodes[one] == node]
        there = [core for core in cores if not known or core[0] == node]
        found |= shares(there, len(beside))[beside.index(device)]
    return frozenset(found)


def shares(cores: Sequence[tuple[int | None, frozenset[int]]], count: int) -> tuple[frozenset[int], ...]:
    """`count` sets of whole cores, as equal as can be, neighbours in one. Raises HostNotReady where one is empty."""
    if count > len(cores):
        raise HostNotReady(
            f"resources.pin_cpus: {len(cores)} cores cannot be shared among {count} servers; leave it out, or run "
            "fewer trials at once"
        )
    ends = [len(cores) * place // count for place in range(count + 1)]
    return tuple(frozenset(cpu for _, core in cores[begin:end] for cpu in core) for begin, end in pairwise(ends))


def cores_of(allowed: set[int], root: Path = _CPUS) -> tuple[tuple[int | None, frozenset[int]], ...]:
    """The cores that may be used: of each the NUMA node and its CPUs, in the order of both."""
    found: dict[frozenset[int], int | None] = {}
    for cpu in sorted(allowed):
        siblings = parse_cpus(_text(root / f"cpu{cpu}" / "topology" / "thread_siblings_list")) or {cpu}
        node = next((int(at.name[4:]) for at in (root / f"cpu{cpu}").glob("node[0-9]*")), None)
        found[frozenset((siblings | {cpu}) & allowed)] = node
    return tuple(sorted(((node, core) for core, node in found.items()), key=lambda one: (one[0] or 0, min(one[1]))))


def node_of(device: DeviceInfo, driver: Path = _DRIVER, pci: Path = _PCI) -> int | None:
    """The NUMA node that a card sits at, by what driver and kernel say; None where they do not."""
    card = device.parent_uuid or device.uuid
    for place in driver.glob("*/information"):
        if card is not None and card in _text(place).split():
            node = _text(pci / place.parent.name.lower() / "numa_node").strip()
            return int(node) if node.isdigit() else None  # -1: the machine has no such nodes
    return None


def parse_cpus(text: str) -> set[int]:
    """The CPUs of a list as the kernel writes it, `0-3,8`."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found |= set(range(int(first), int(last or first) + 1))
    return found


def spelled(cpus: frozenset[int]) -> str:
    """The same in that form."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


@contextlib.contextmanager
def _free_place(count: int) -> Iterator[int]:
    """The first of `count` places here that no other trial of this user has; the kernel frees it at its death."""
    folder = Path(tempfile.gettempdir()) / f"sweep-cpus-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise HostNotReady(f"{folder} belongs to somebody else; remove it or set TMPDIR")
    for place in range(count):
        with (folder / f"{place}-of-{count}").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield place
            return
    raise HostNotReady(f"resources.pin_cpus: all {count} shares of this machine's CPUs are taken")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
