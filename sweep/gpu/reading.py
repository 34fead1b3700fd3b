"""What a device says now: a sample for telemetry, its occupancy for the gate. Every function here may block.

What a device or driver does not tell is None and named; a device that is gone is a `Problem`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from sweep.gpu.lane import Problem
from sweep.gpu.nvml import GIB, GONE, UNSAID, Card, ask, problem_of
from sweep.gpu.values import DeviceReading, throttle_names


@dataclass(frozen=True, slots=True)
class Sample:
    """A reading, and what could not be read for it."""

    reading: DeviceReading
    unread: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Used memory and compute processes (id, GiB) of a device; None where the driver does not tell."""

    used_gib: float | None
    processes: tuple[tuple[int, float | None], ...] | None


def read_card(card: Card) -> Sample | Problem:
    """All that is sampled of one device."""
    unread: list[str] = []

    def value(what: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except pynvml.NVMLError as error:
            if error.value in GONE:
                raise
            unread.append(what if error.value in UNSAID else f"{what} ({problem_of(error).text})")
            return None

    own, board = card.handle, card.board
    try:
        used = value("used memory", lambda: ask(("nvmlDeviceGetMemoryInfo",), own).used / GIB)
        rates = value("utilization", lambda: ask(("nvmlDeviceGetUtilizationRates",), own))
        bits = value("throttle reasons", lambda: _throttle_bits(board))
        reading = DeviceReading(
            monotonic_s=time.monotonic(),
            index=card.info.index,
            mig_index=card.info.mig_index,
            memory_used_gib=used,
            utilization_percent=None if rates is None else float(rates.gpu),
            memory_utilization_percent=None if rates is None else float(rates.memory),
            sm_clock_mhz=value("SM clock", lambda: _clock_mhz(board, pynvml.NVML_CLOCK_SM)),
            memory_clock_mhz=value("memory clock", lambda: _clock_mhz(board, pynvml.NVML_CLOCK_MEM)),
            power_w=value("power", lambda: ask(("nvmlDeviceGetPowerUsage",), board) / 1000),
            power_limit_w=value("power limit", lambda: _power_limit_w(board)),
            temperature_c=value("temperature", lambda: _temperature_c(board)),
            throttle_reasons=None if bits is None else throttle_names(bits),
        )
    except pynvml.NVMLError as error:
        return problem_of(error)
    return Sample(reading, tuple(unread))


def read_occupancy(card: Card) -> Occupancy | Problem:
    """Who and what is on a device. Any error but a plain "not offered" is a Problem: it may hide a tenant."""
    try:
        memory = _offered(("nvmlDeviceGetMemoryInfo",), card.handle)
        names = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
        listed = _offered(names, card.handle)
    except pynvml.NVMLError as error:
        return problem_of(error)
    processes = None
    if listed is not None:
        # One line for each context of a process; its largest figure stands for it.
        by_size = sorted(listed, key=lambda entry: entry.usedGpuMemory or 0)
        processes = tuple(
            sorted(
                {
                    int(entry.pid): None if entry.usedGpuMemory is None else entry.usedGpuMemory / GIB
                    for entry in by_size
                }.items()
            )
        )
    return Occupancy(None if memory is None else memory.used / GIB, processes)


def _offered(names: tuple[str, ...], handle: Any) -> Any:
    try:
        return ask(names, handle)
    except pynvml.NVMLError as error:
        # A handle that was good when it was made and is refused now is an instance that was taken away.
        if error.value in UNSAID and error.value != pynvml.NVML_ERROR_INVALID_ARGUMENT:
            return None
        raise


def _clock_mhz(board: Any, kind: int) -> float:
    return float(ask(("nvmlDeviceGetClockInfo",), board, kind))


def _power_limit_w(board: Any) -> float:
    return float(ask(("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit"), board)) / 1000


def _temperature_c(board: Any) -> float:
    return float(ask(("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"), board, pynvml.NVML_TEMPERATURE_GPU))


def _throttle_bits(board: Any) -> int:
    names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    return int(ask(names, board))
