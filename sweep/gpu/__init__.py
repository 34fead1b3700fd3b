"""NVIDIA devices through NVML: what is there, whether it is free for a launch, and how it fared under load.

Absent GPUs are said, not faked: `Gpus.notice` tells in a line what cannot be read, and its values are None.
"""

from __future__ import annotations

from sweep.gpu.devices import Gpus
from sweep.gpu.disturbance import APPLICATION_XIDS, Findings, judge, usual_throttling
from sweep.gpu.host import HostReading
from sweep.gpu.telemetry import Telemetry, TelemetrySampler
from sweep.gpu.values import (
    Cleanliness,
    DeviceInfo,
    DeviceMemory,
    DeviceReading,
    DeviceState,
    ForeignProcess,
    XidEvent,
    disturbing,
)
from sweep.gpu.xid import XidWatch

__all__ = [
    "APPLICATION_XIDS",
    "Cleanliness",
    "DeviceInfo",
    "DeviceMemory",
    "DeviceReading",
    "DeviceState",
    "Findings",
    "ForeignProcess",
    "Gpus",
    "HostReading",
    "Telemetry",
    "TelemetrySampler",
    "XidEvent",
    "XidWatch",
    "disturbing",
    "judge",
    "usual_throttling",
]
