"""From flags to what decides about memory, with vLLM's own defaults where a flag is left to it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sweep.memory.quantized import online_bits
from sweep.memory.values import GIB, Device, Launch, Model, Unknown
from sweep.trial import chunks_prefill

# Flags that move memory in ways the formulas do not have, and the values that leave things as they are.
_UNKNOWN_FLAGS: Mapping[str, tuple[object, ...]] = {
    "cpu-offload-gb": (0,),
    "kv-cache-memory-bytes": (),
    "num-gpu-blocks-override": (),
    "speculative-config": (),
    "speculative-model": (),
    "enable-lora": (False,),
    "decode-context-parallel-size": (1,),
    "prefill-context-parallel-size": (1,),
    "kv-transfer-config": (),
    "kv-offloading-size": (),
    "hf-overrides": (),
    "hf-config-path": (),
    "revision": (),
    "enable-dbo": (False,),
    "load-format": ("auto", "safetensors", "dummy", "runai_streamer", "fastsafetensors", "pt"),
    "max-num-active-seqs": (),
    "additional-config": (),
    "compilation-config": (),
}
# `max-num-batched-tokens` and `max-num-seqs` of a server that is not told (`EngineArgs.get_batch_defaults`).
_DEFAULTS = ((160 * GIB, 16384, 1024), (70 * GIB, 8192, 1024), (0.0, 2048, 256))
_CPU_DEFAULTS = (2048, 128)
_UTILIZATION = 0.92  # since 0.20 or so, 0.9 before: the larger one, which lets more start
_BLOCK, _CPU_BLOCK = 16, 128
_VALUE_BYTES = {"float16": 2, "half": 2, "bfloat16": 2, "float32": 4, "float": 4}
_KV_BYTES = {"fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "int8": 1.0, "bfloat16": 2.0, "float16": 2.0}
_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kmgKMG]?)")


def read_launch(flags: Mapping[str, object], model: Model, device: Device) -> Launch | Unknown:
    """The launch of a server with `flags` (names with hyphens, None: left to vLLM); Unknown where one has an effect on
    memory that is not counted here.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    for name, harmless in _UNKNOWN_FLAGS.items():
        if name in given and not any(_same(given[name], one) for one in harmless):
            return Unknown(f"--{name} changes memory in ways the memory model does not know")
    if _size(given, "data-parallel-size") != 1 and model.moe is not None:
        return Unknown("data parallel experts are shared out in ways the memory model does not know")
    try:
        return _launch(given, model, device)
    except ValueError as error:
        return Unknown(str(error))


def _launch(given: Mapping[str, object], model: Model, device: Device) -> Launch:
    seqs, batched = _whole(given, "max-num-seqs"), _whole(given, "max-num-batched-tokens")
    longest = _longest(given, model)
    default_batched, default_seqs = _defaults(device)
    tokens = batched or default_batched
    if batched is None and longest is not None:
        if not chunks_prefill(given):
            tokens = max(tokens, longest)
        tokens = min(tokens, (seqs or default_seqs) * longest)
    return Launch(
        utilization=_share(given.get("gpu-memory-utilization", _UTILIZATION)),
        batched_tokens=tokens,
        seqs=seqs or min(default_seqs, tokens),
        max_model_len=longest,
        block_size=_whole(given, "block-size") or (_CPU_BLOCK if device.kind == "cpu" else _BLOCK),
        tensor_parallel=_size(given, "tensor-parallel-size"),
        pipeline_parallel=_size(given, "pipeline-parallel-size"),
        kv_value_bytes=_of(_KV_BYTES, given.get("kv-cache-dtype", "auto"), "kv-cache-dtype"),
        value_bytes=None if (size := _of(_VALUE_BYTES, given.get("dtype", "auto"), "dtype")) is None else int(size),
        eager=given.get("enforce-eager") is True,
        online_bits=_online(given, model),
    )


def _defaults(device: Device) -> tuple[int, int]:
    if device.kind == "cpu":
        return _CPU_DEFAULTS
    large = [one for one in _DEFAULTS if device.total_bytes >= one[0]]
    if "a100" in device.name.lower() and device.total_bytes < _DEFAULTS[0][0]:
        large = [_DEFAULTS[-1]]
    return large[0][1], large[0][2]


def _longest(given: Mapping[str, object], model: Model) -> int | None:
    """None where vLLM is to fit it: `auto` and -1."""
    value = given.get("max-model-len")
    if value in ("auto", -1, "-1"):
        return None
    found = _whole(given, "max-model-len")
    longest = model.longest_tokens if found is None else found
    if longest is None:
        raise ValueError("config.json does not say how long a request may be, and no max-model-len is set")
    return longest


def _online(given: Mapping[str, object], model: Model) -> float | None:
    name = given.get("quantization")
    if name is None or model.quantization is not None:
        return None
    bits = online_bits(name)
    if bits is None:
        raise ValueError(f"--quantization {name} makes weights of a size the memory model does not know")
    return bits


def _whole(given: Mapping[str, object], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    number = _number(value)
    if number is None or number != int(number) or number < 1:
        raise ValueError(f"{name} is {value!r}, which is no whole number above zero")
    return int(number)


def _size(given: Mapping[str, object], name: str) -> int:
    return _whole(given, name) or 1


def _number(value: object) -> float | None:
    """A number as vLLM reads it from a command line: 32k is 32,000, 32K is 32,768."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value) if abs(value) < 2**53 else None
    match = _NUMBER.fullmatch(str(value).strip())
    return None if match is None else float(match[1]) * _SUFFIXES[match[2]]


def _share(value: object) -> float:
    number = _number(value)
    if number is None:
        raise ValueError(f"gpu-memory-utilization is {value!r}, which is no number")
    return number


def _of(table: Mapping[str, float], value: object, name: str) -> float | None:
    """The entry for a value; None for `auto`."""
    if value == "auto":
        return None
    found = table.get(str(value))
    if found is None:
        raise ValueError(f"{name} {value} is not known to the memory model")
    return found


def _same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other
