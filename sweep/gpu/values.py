"""What is known of a device and its processes: plain values, None where the driver does not say.

A device is a whole card (`mig_index` None) or one MIG instance of a card. `(index, mig_index)` names it
within one run of a machine; the index is NVML's, which is `nvidia-smi`'s. Memory is in GiB of 2**30 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

# Bits of nvmlDeviceGetCurrentClocksEventReasons, from the NVML reference (NvmlClocksEventReasons).
_REASON_NAMES = (
    (0x001, "gpu_idle"),
    (0x002, "applications_clocks"),
    (0x004, "sw_power_cap"),
    (0x008, "hw_slowdown"),
    (0x010, "sync_boost"),
    (0x020, "sw_thermal_slowdown"),
    (0x040, "hw_thermal_slowdown"),
    (0x080, "hw_power_brake"),
    (0x100, "display_clocks"),
    (0x200, "board_limit"),
    (0x400, "reliability"),
)
_MPS_SERVER = "nvidia-cuda-mps-server"
# A power cap in software is how a card always runs at its limit: it belongs to the machine, not to one trial.
DISTURBING = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"})


def throttle_names(bits: int) -> tuple[str, ...]:
    """The names of the set bits, lowest first; a bit this version does not know is kept as `bit_0x...`."""
    names = tuple(name for bit, name in _REASON_NAMES if bits & bit)
    known = sum(bit for bit, _ in _REASON_NAMES)
    rest = bits & ~known
    return names + tuple(f"bit_{1 << n:#x}" for n in range(rest.bit_length()) if rest >> n & 1)


def disturbing(reasons: Iterable[str] | None) -> bool:
    """Whether any of `reasons` (None when unknown) means that heat, power or hardware slowed the card.

    Idle, application clocks, sync boost and the software power cap are not disturbances.
    """
    return bool(reasons) and not DISTURBING.isdisjoint(reasons or ())


def device_label(index: int, mig_index: int | None = None) -> str:
    """`GPU 2`, or `GPU 2 MIG 1` for an instance."""
    return f"GPU {index}" if mig_index is None else f"GPU {index} MIG {mig_index}"


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device CUDA could run on. `mig` is True for a card in MIG mode and for its instances."""

    index: int
    uuid: str | None
    name: str | None
    memory_total_gib: float | None
    driver_version: str | None
    cuda_version: str | None  # the newest the driver supports, such as "12.4"
    mig: bool = False
    mig_index: int | None = None
    parent_uuid: str | None = None  # of an instance: its card
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None

    @property
    def label(self) -> str:
        return device_label(self.index, self.mig_index)


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One look at one device at `monotonic_s` (`time.monotonic`). All None: the device did not answer.

    `throttle_reasons` is empty when nothing holds the clocks back and None when the driver does not say.
    For a MIG instance memory is its own; clocks, power, temperature and throttle reasons are its card's.
    """

    monotonic_s: float
    index: int
    mig_index: int | None = None
    memory_used_gib: float | None = None
    utilization_percent: float | None = None
    memory_utilization_percent: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    throttle_reasons: tuple[str, ...] | None = None

    @property
    def label(self) -> str:
        return device_label(self.index, self.mig_index)


@dataclass(frozen=True, slots=True)
class ForeignProcess:
    """A compute process on a device that is not ours.

    `command` is None for a process this machine's /proc does not show (another container); `memory_gib` is
    None where the driver does not tell memory by process.
    """

    pid: int
    command: str | None
    memory_gib: float | None
    index: int
    mig_index: int | None = None

    @property
    def daemon(self) -> bool:
        """Whether it is the server of NVIDIA's MPS, which stays on a device between its users."""
        return PurePath((self.command or "").partition(" ")[0]).name == _MPS_SERVER

    def __str__(self) -> str:
        command = self.command or "not visible from here, perhaps in another container"
        memory = "an unknown amount" if self.memory_gib is None else f"{self.memory_gib:.1f} GiB"
        return f"process {self.pid} ({command}) holds {memory} on {device_label(self.index, self.mig_index)}"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Used memory of one device: a baseline is a tuple of these."""

    index: int
    used_gib: float | None
    mig_index: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One device at the end of a wait.

    `own_pids` are the caller's processes still on it; `problem` says why it cannot be read, None when it can.
    """

    index: int
    mig_index: int | None
    used_gib: float | None
    baseline_gib: float | None
    clean: bool
    own_pids: tuple[int, ...] = ()
    problem: str | None = None

    @property
    def label(self) -> str:
        return device_label(self.index, self.mig_index)

    @property
    def over_gib(self) -> float | None:
        """Memory above the baseline, never below 0; None where either is unknown."""
        if self.used_gib is None or self.baseline_gib is None:
            return None
        return max(0.0, self.used_gib - self.baseline_gib)


@dataclass(frozen=True, slots=True)
class Cleanliness:
    """Whether devices were free for a launch, after `waited_s` seconds of waiting.

    `message` is None when clean, else one line that names the processes, the left-over memory or the device
    that cannot be read. `daemons` are foreign processes that were let be: an MPS server that holds little, and no
    more than the look before.
    """

    clean: bool
    waited_s: float
    devices: tuple[DeviceState, ...] = ()
    foreign: tuple[ForeignProcess, ...] = ()
    message: str | None = None
    daemons: tuple[ForeignProcess, ...] = ()

    @property
    def memory_before_gib(self) -> float | None:
        """The largest memory above its baseline of any device: what a launch finds taken; None if unknown."""
        return max((state.over_gib for state in self.devices if state.over_gib is not None), default=None)

    @property
    def dirty(self) -> tuple[DeviceState, ...]:
        """The devices that were not clean: candidates for being taken out of a study."""
        return tuple(state for state in self.devices if not state.clean)


@dataclass(frozen=True, slots=True)
class XidEvent:
    """A critical error the driver reported: its XID number, and the card (None when it does not say)."""

    monotonic_s: float
    index: int | None
    xid: int
