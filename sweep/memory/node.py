"""Memory of the NUMA node that the CPU build of vLLM fills: its flag counts a share of this."""

from __future__ import annotations

import os
from pathlib import Path

_NODES = Path("/sys/devices/system/node")
# Version 2 of control groups, then version 1, whose "no limit" is a number near 2**63.
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_NO_LIMIT = 2**62


def node_memory_bytes(nodes: Path = _NODES, limits: tuple[Path, ...] = _LIMITS) -> float | None:
    """What vLLM takes for the whole: the node of the first CPU of this process, or its control group's limit if that is
    less (`vllm/utils/cpu_resource_utils.py`). None where it cannot be read.
    """
    total = _node_total(nodes)
    if total is None:
        return None
    limit = next((found for path in limits if (found := _whole(path)) is not None), None)
    return total if limit is None or limit >= _NO_LIMIT else min(total, float(limit))


def _node_total(nodes: Path) -> float | None:
    first = min(os.sched_getaffinity(0))
    node = next(iter(nodes.glob(f"node*/cpu{first}")), None)
    text = _read((node.parent if node is not None else nodes / "node0") / "meminfo")
    for line in (text or "").splitlines():
        words = line.split()
        if len(words) >= 4 and words[2] == "MemTotal:" and words[3].isdigit():
            return float(words[3]) * 1024
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError):
        return None


def _whole(path: Path) -> int | None:
    text = (_read(path) or "").strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None
