"""What a gate may rest on before anything was launched: the model, the device, and whether the rules of vLLM hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.memory import GIB, Device, Model, Unknown, node_memory_bytes, read_model

if TYPE_CHECKING:  # a report tells of the gate, too, and needs no driver
    from sweep.gpu import DeviceInfo

# NVML counts memory that the driver keeps for itself; CUDA, and with it vLLM, sees so much less (0.45 to 0.7 GiB on
# RTX 4090, RTX A6000, H100 and H200, by published logs).
_DRIVER_BYTES = 0.5 * GIB
# Variables of vLLM that move memory.
_ENV = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_PP_LAYER_PARTITION", "VLLM_MLA_DISABLE", "VLLM_CPU_OFFLOAD_GB")


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The model served, the device of one rank, and `fixed` flags that every launch has.

    `rules`: whether the server is known to be vLLM, so that what vLLM refuses by itself is refused before.
    """

    model: Model | Unknown
    device: Device | Unknown
    rules: bool = False
    fixed: Mapping[str, object] = field(default_factory=dict)

    @property
    def nothing(self) -> str | None:
        """Why nothing is known of memory; None where something is."""
        return next((one.reason for one in (self.model, self.device) if isinstance(one, Unknown)), None)


def gather(
    *,
    own_command: bool,
    build: str | None,
    model_folder: Path | None,
    model_name: str,
    devices: Sequence[DeviceInfo],
    fixed: Mapping[str, object],
    env: Mapping[str, str],
) -> Knowledge:
    """What is known on this machine; nothing is launched, and nothing raised.

    `own_command`: the study names words of its own to start a server, of which nobody knows where and in what they run.
    `build`: "gpu" or "cpu", that of the installed vLLM. `model_folder`: None where the model is not on this machine.
    `env`: the server's environment.
    """
    if own_command:
        why = Unknown("serve.command is your own: where and how it runs is not known")
        return Knowledge(why, why, rules=False, fixed=dict(fixed))
    model: Model | Unknown = Unknown(f"{model_name} is no folder on this machine, so its config.json cannot be read")
    if model_folder is not None:
        model = read_model(model_folder)
    if (named := next((name for name in _ENV if env.get(name)), None)) is not None:
        model = Unknown(f"{named} is set, which changes memory in ways the memory model does not know")
    return Knowledge(model, _device(build, devices), rules=build is not None, fixed=dict(fixed))


def _device(build: str | None, devices: Sequence[DeviceInfo]) -> Device | Unknown:
    if build == "cpu":
        total = node_memory_bytes()
        return Unknown("the memory of this machine cannot be read") if total is None else Device(total, "cpu")
    if build is None or not devices:
        return Unknown("no GPU can be asked for its memory")
    if any(device.mig for device in devices):
        return Unknown("a card is in MIG mode: how much of an instance vLLM takes for the whole is not known")
    totals = [device.memory_total_gib for device in devices]
    known = [total for total in totals if total is not None]
    if len(known) < len(totals):
        return Unknown("a GPU does not tell its memory")
    return Device(min(known) * GIB - _DRIVER_BYTES, "gpu", devices[0].name or "")


NOTHING = Knowledge(Unknown("no server is launched"), Unknown("no server is launched"))
"""Of a study without servers: refusals in its record still teach."""
