"""Readings of devices and host as rows of the `telemetry` table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from sweep.errors import HostError
from sweep.gpu import DeviceReading, Telemetry, usual_throttling
from sweep.journal import Journal
from sweep.store import TelemetryRow, read_telemetry
from sweep.trial import Phase


def telemetry_rows(telemetry: Telemetry | None, journal: Journal) -> list[TelemetryRow]:
    """One row a reading, on the clock of the journal's attempt and with its phase at that time."""
    if telemetry is None:
        return []
    rows = []
    for device in telemetry.devices:
        at_s = journal.elapsed_s(device.monotonic_s)
        rows.append(
            TelemetryRow(
                at_s=at_s,
                phase=journal.phase_at(at_s),
                attempt=journal.attempt,
                device=device.index,
                mig_device=device.mig_index,
                memory_used_gib=device.memory_used_gib,
                utilization_percent=device.utilization_percent,
                memory_utilization_percent=device.memory_utilization_percent,
                sm_clock_mhz=device.sm_clock_mhz,
                memory_clock_mhz=device.memory_clock_mhz,
                power_w=device.power_w,
                power_limit_w=device.power_limit_w,
                temperature_c=device.temperature_c,
                throttle_reasons=device.throttle_reasons,
            )
        )
    for host in telemetry.host:
        at_s = journal.elapsed_s(host.monotonic_s)
        rows.append(
            TelemetryRow(
                at_s=at_s,
                phase=journal.phase_at(at_s),
                attempt=journal.attempt,
                host_cpu_percent=host.cpu_percent,
                client_cpu_percent=host.client_cpu_percent_of_core,
                ram_free_gib=host.ram_available_gib,
            )
        )
    return rows


def load_readings(rows: Iterable[TelemetryRow], attempt: int) -> tuple[DeviceReading, ...]:
    """What the devices said while an attempt's load ran; with throttle reasons, of the rest only whose they are."""
    return tuple(
        DeviceReading(row.at_s, row.device, row.mig_device, throttle_reasons=row.throttle_reasons)
        for row in rows
        if row.device is not None and row.phase == Phase.LOAD and row.attempt == attempt
    )


def usual_of(folder: Path, number: int = 0) -> dict[str, float]:
    """How much the machine holds its devices back anyhow, by the last load of the study's baseline (trial 0).

    Reason -> share of the samples; empty when it does not, or when no baseline is stored.
    """
    try:
        rows = read_telemetry(folder, number)
    except HostError:
        return {}
    last = max((row.attempt or 0 for row in rows), default=0)
    return usual_throttling(load_readings(rows, last))


def recorded_pids(record: Path) -> Callable[[], list[int]]:
    """A function that gives the process of a record file (see `sweep.process`) and its children while it runs, else
    nothing."""

    def pids() -> list[int]:
        try:
            pid = int(json.loads(record.read_text(encoding="utf-8"))["child"][0])
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            return []
        return [pid, *_children(pid)]

    return pids


def _children(pid: int) -> list[int]:
    """A kept client's load runs in a fork of it. Empty on a kernel that does not list children."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (OSError, ValueError):
        return []
