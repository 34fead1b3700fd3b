"""How many bits a quantised weight takes, from the `quantization_config` of a model.

A group of `g` weights shares a scale of 16 bits and, where the method has them, a zero point of as many bits as a
weight. Sources: the configuration classes in `vllm/model_executor/layers/quantization/`; for bitsandbytes
https://arxiv.org/abs/2305.14314 (NF4: a scale for 64 weights; 0.127 bits a weight once that is quantised, too).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweep.memory.values import Quantization

_SCALE_BITS = 16
_BNB_GROUP, _BNB_NESTED_BITS = 64, 0.127
# Methods of one width, with their scales: one of 8 bits for 32 (mxfp4) or for 16 weights (nvfp4).
_WIDTHS = {
    "fp8": 8.0,
    "fbgemm_fp8": 8.0,
    "experts_int8": 8.0,
    "mxfp4": 4.25,
    "nvfp4": 4.5,
    "mxfp8": 8.25,
    "ptpc_fp8": 8.0,
}
# What `--quantization` makes of weights that are stored whole.
_ONLINE = {"fp8": 8.0, "bitsandbytes": 4.0 + 32 / _BNB_GROUP, "experts_int8": 8.0, "ptpc_fp8": 8.0, "mxfp8": 8.25}


def read_quantization(config: object) -> Quantization | None:
    """The quantisation that a configuration names, None for none. A method that is not known has no `bits`."""
    if not isinstance(config, Mapping) or not config:
        return None
    method = str(config.get("quant_method") or config.get("quant_algo") or "unknown").lower()
    return Quantization(method, _bits(method, config), experts_only=method in ("mxfp4", "experts_int8"))


def online_bits(name: object) -> float | None:
    """Bits of a weight that `--quantization` of this name makes of one stored whole; None where it makes none."""
    return _ONLINE.get(str(name).lower())


def _bits(method: str, config: Mapping[str, Any]) -> float | None:
    if method in _WIDTHS:
        return _WIDTHS[method]
    if method in ("gptq", "gptq_marlin", "awq", "awq_marlin", "auto-round", "auto_round", "inc"):
        return _grouped(
            config.get("bits", config.get("w_bit")), config.get("group_size", config.get("q_group_size")), True
        )
    if method == "bitsandbytes":
        if config.get("load_in_8bit"):
            return 8.0
        return 4.0 + (_BNB_NESTED_BITS if config.get("bnb_4bit_use_double_quant") else 32 / _BNB_GROUP)
    if method == "compressed-tensors":
        return _compressed(config.get("config_groups"))
    if method == "modelopt":
        algorithm = str(config.get("quant_algo") or "").lower()
        return _WIDTHS.get(algorithm)
    return None


def _compressed(groups: object) -> float | None:
    """The widest of the groups of a compressed-tensors configuration."""
    if not isinstance(groups, Mapping):
        return None
    found = []
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            found.append(
                _grouped(weights.get("num_bits"), weights.get("group_size"), not weights.get("symmetric", True))
            )
    known = [bits for bits in found if bits is not None]
    return max(known) if known and len(known) == len(found) else None


def _grouped(bits: object, group: object, zeros: bool) -> float | None:
    if not isinstance(bits, int) or isinstance(bits, bool) or not 0 < bits <= 16:
        return None
    if not isinstance(group, int) or group <= 0:
        return float(bits)
    return bits + (_SCALE_BITS + (bits if zeros else 0)) / group
