"""`CUDA_VISIBLE_DEVICES` -> devices, by CUDA's own rules.

Rules from the CUDA programming guide, "CUDA Environment Variables": a list of indices, UUIDs (or unique
beginnings of them) or MIG ids; the first entry that names nothing hides itself and all that follow; an empty
value hides everything. That a device named twice hides everything too is what the driver does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sweep.gpu.values import DeviceInfo

_HIDE_ALL = {"", "-1", "nodevfiles"}
# Before driver 470 an instance was its card and two ids: MIG-GPU-<uuid>/<GPU instance>/<compute instance>.
_OLD_MIG = re.compile(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)", re.IGNORECASE)
_INDEX = re.compile(r"\+?(\d+)")  # CUDA reads digits as far as they go, so "1x" is 1


def select_visible(
    value: str | None, devices: Sequence[DeviceInfo], *, device_order: str | None = None
) -> tuple[tuple[DeviceInfo, ...], str | None]:
    """The devices CUDA would see, in its order, and one line if the value does not say what it seems to.

    `value` is that of `CUDA_VISIBLE_DEVICES`, None when unset; `device_order` that of `CUDA_DEVICE_ORDER`.
    An index or UUID of a card in MIG mode stands for its first instance, the one CUDA takes.
    """
    if value is None:
        return tuple(devices), None
    if value.strip().lower() in _HIDE_ALL:
        return (), None
    shown = f"CUDA_VISIBLE_DEVICES={value!r}"
    chosen: list[DeviceInfo] = []
    for entry in (part.strip() for part in value.split(",")):
        matches = _matches(entry, devices)
        if len(matches) != 1:
            why = "fits several devices" if matches else "names no device here"
            cut = f"{shown}: {entry!r} {why}; CUDA ignores it and what follows"
            return tuple(chosen), (None if entry == "-1" else cut)
        if matches[0] in chosen:
            return (), f"{shown} names {matches[0].label} twice: CUDA then shows no device at all"
        chosen.append(matches[0])
    return tuple(chosen), _order_warning(value, devices, device_order)


def _matches(entry: str, devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """The devices an entry may mean: one when it is valid. Instances of one card count as its first."""
    if index := _INDEX.match(entry):
        return _by_card([device for device in devices if device.index == int(index[1])])
    if old := _OLD_MIG.fullmatch(entry):
        card, ids = old[1].lower(), (int(old[2]), int(old[3]))
        return [
            device
            for device in devices
            if (device.gpu_instance_id, device.compute_instance_id) == ids
            and (device.parent_uuid or "").lower().startswith(card)
        ]
    prefix = entry.lower()
    if prefix.startswith("mig-"):
        return [device for device in devices if (device.uuid or "").lower().startswith(prefix)]
    if prefix.startswith("gpu-"):
        return _by_card([d for d in devices if (d.parent_uuid or d.uuid or "").lower().startswith(prefix)])
    return []


def _by_card(devices: list[DeviceInfo]) -> list[DeviceInfo]:
    first: dict[int, DeviceInfo] = {}
    for device in devices:
        first.setdefault(device.index, device)
    return list(first.values())


def _order_warning(value: str, devices: Sequence[DeviceInfo], device_order: str | None) -> str | None:
    """CUDA counts the fastest card first unless told otherwise; NVML counts by PCI bus. Equal cards tie."""
    kinds = {device.name for device in devices}
    by_bus = (device_order or "").strip().upper() == "PCI_BUS_ID"
    if by_bus or len(kinds) < 2 or not re.search(r"(^|,)\s*\+?\d", value):
        return None
    return (
        f"CUDA_VISIBLE_DEVICES={value!r} uses indices among unlike cards, which CUDA and nvidia-smi count "
        "differently: set CUDA_DEVICE_ORDER=PCI_BUS_ID or use UUIDs"
    )
