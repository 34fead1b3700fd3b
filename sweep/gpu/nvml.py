"""NVML by way of `pynvml`: opening it, and which devices there are. Every function here may block.

Calls were renamed and dropped over the driver's versions, so each is asked for under all its names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pynvml

from sweep.gpu.lane import Problem
from sweep.gpu.values import DeviceInfo, device_label

GIB = 2**30
_COUNT_LIMIT = 1024

# The device or driver does not offer this, or not to us: nothing is wrong.
UNSAID = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NO_DATA,
}
# Nothing more can be had from this device.
GONE = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
}
_WORDS = {
    pynvml.NVML_ERROR_UNINITIALIZED: "NVML was shut down",
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission to ask the NVIDIA driver",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver here (libnvidia-ml.so.1 cannot be loaded)",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "the NVIDIA driver is too old: its NVML lacks a call we need",
    pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU is lost; the machine may need a restart",
    pynvml.NVML_ERROR_RESET_REQUIRED: "the GPU must be reset before it can be used again",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA driver was updated while in use; restart",
}


@dataclass(frozen=True, slots=True)
class Card:
    """A device and NVML's handles: its own, and its card's, which differ for a MIG instance."""

    info: DeviceInfo
    handle: Any
    board: Any


@dataclass(frozen=True, slots=True)
class Opened:
    """The devices found, and a line for each thing about them that a person should know."""

    cards: tuple[Card, ...]
    notes: tuple[str, ...]


def ask(names: tuple[str, ...], *args: Any) -> Any:
    """Call the first of `names` that both `pynvml` and the driver's library have, else raise NVMLError."""
    for name in names:
        call = getattr(pynvml, name, None)
        if call is None:
            continue
        try:
            return call(*args)
        except (
            pynvml.NVMLError_FunctionNotFound,
            pynvml.NVMLError_ArgumentVersionMismatch,
            pynvml.NVMLLibraryMismatchError,
        ):
            continue
    raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def problem_of(error: Any) -> Problem:
    """An NVMLError in plain words."""
    return Problem(_WORDS.get(error.value) or f"NVML says: {error}")


def open_nvml() -> Opened | Problem:
    """Initialise NVML and list its devices. After a Problem nothing is left to shut down."""
    try:
        ask(("nvmlInit",))
    except pynvml.NVMLError as error:
        return problem_of(error)
    try:
        return _list_cards()
    except pynvml.NVMLError as error:
        close_nvml()
        return problem_of(error)


def close_nvml() -> Problem | None:
    """Undo one `open_nvml`."""
    try:
        ask(("nvmlShutdown",))
    except pynvml.NVMLError as error:
        return problem_of(error)
    return None


def _list_cards() -> Opened:
    cards: list[Card] = []
    notes: list[str] = []
    driver, cuda = _text(("nvmlSystemGetDriverVersion",)), _cuda_version()
    for index in range(min(int(ask(("nvmlDeviceGetCount",))), _COUNT_LIMIT)):
        try:
            board = ask(("nvmlDeviceGetHandleByIndex",), index)
            info = DeviceInfo(
                index=index,
                uuid=_text(("nvmlDeviceGetUUID",), board),
                name=_text(("nvmlDeviceGetName",), board),
                memory_total_gib=_total_gib(board),
                driver_version=driver,
                cuda_version=cuda,
                mig=_in_mig_mode(board),
            )
            instances = _instances(info, board) if info.mig else []
        except pynvml.NVMLError as error:
            notes.append(f"{device_label(index)} cannot be read: {problem_of(error).text}")
            continue
        cards.extend(instances or [Card(info, board, board)])
        if info.mig:
            found = f"{len(instances)} instance(s) stand for the card" if instances else "no instance that we may use"
            notes.append(f"{info.label} is in MIG mode: {found}")
    if not cards and not notes:
        notes.append("the NVIDIA driver is loaded, but it shows no GPU")
    return Opened(tuple(cards), tuple(notes))


def _in_mig_mode(board: Any) -> bool:
    try:
        return bool(ask(("nvmlDeviceGetMigMode",), board)[0] == pynvml.NVML_DEVICE_MIG_ENABLE)
    except pynvml.NVMLError as error:
        if error.value in GONE:
            raise
        return False  # a card or driver from before MIG


def _instances(card: DeviceInfo, board: Any) -> list[Card]:
    found = []
    for number in range(min(int(ask(("nvmlDeviceGetMaxMigDeviceCount",), board)), _COUNT_LIMIT)):
        try:
            handle = ask(("nvmlDeviceGetMigDeviceHandleByIndex",), board, number)
        except pynvml.NVMLError as error:
            if error.value in GONE:
                raise
            continue  # an empty slot, or an instance of somebody else
        info = replace(
            card,
            uuid=_text(("nvmlDeviceGetUUID",), handle),
            name=_text(("nvmlDeviceGetName",), handle) or card.name,
            memory_total_gib=_total_gib(handle),
            mig_index=number,
            parent_uuid=card.uuid,
            gpu_instance_id=_number(("nvmlDeviceGetGpuInstanceId",), handle),
            compute_instance_id=_number(("nvmlDeviceGetComputeInstanceId",), handle),
        )
        found.append(Card(info, handle, board))
    return found


def _optional(names: tuple[str, ...], *args: Any) -> Any:
    try:
        return ask(names, *args)
    except pynvml.NVMLError as error:
        if error.value in GONE:
            raise
        return None


def _text(names: tuple[str, ...], *args: Any) -> str | None:
    answer = _optional(names, *args)
    return str(answer) if answer else None


def _number(names: tuple[str, ...], *args: Any) -> int | None:
    answer = _optional(names, *args)
    return None if answer is None else int(answer)


def _total_gib(handle: Any) -> float | None:
    memory = _optional(("nvmlDeviceGetMemoryInfo",), handle)
    return None if memory is None else memory.total / GIB


def _cuda_version() -> str | None:
    packed = _number(("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"))
    return f"{packed // 1000}.{packed % 1000 // 10}" if packed else None
