"""What a soak shows beside surviving it: how little memory was left, and what the engine had to preempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sweep.gpu import DeviceInfo
from sweep.store import TelemetryRow
from sweep.trial import Phase


def soak_remark(rows: Sequence[TelemetryRow], devices: Sequence[DeviceInfo], engine: Mapping[str, float | None]) -> str:
    """One line: the least free memory of a device in GiB, the preemptions, the fullest KV cache; what is not known is
    said so.
    """
    total_gib = {one.index: one.memory_total_gib for one in devices}
    free_gib = [
        total - row.memory_used_gib
        for row in rows
        if row.phase == Phase.LOAD
        and row.device is not None
        and row.memory_used_gib is not None
        and (total := total_gib.get(row.device)) is not None
    ]
    memory = f"{min(free_gib):.2f} GiB of device memory stayed free" if free_gib else "free device memory is not known"
    preemptions, kv = engine.get("preemptions"), engine.get("peak_kv_usage_share")
    told = "preemptions are not known" if preemptions is None else f"{preemptions:.0f} preemptions"
    full = "" if kv is None else f", KV cache at most {kv:.0%} full"
    return f"worst burst: {memory}, {told}{full}"
