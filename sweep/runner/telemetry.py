"""Readings of devices and host as rows of the `telemetry` table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from sweep.gpu import Telemetry
from sweep.journal import Journal
from sweep.store import TelemetryRow


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


def recorded_pids(record: Path) -> Callable[[], list[int]]:
    """A function that gives the process of a record file (see `sweep.process`) while it runs, else nothing."""

    def pids() -> list[int]:
        try:
            return [int(json.loads(record.read_text(encoding="utf-8"))["child"][0])]
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            return []

    return pids
