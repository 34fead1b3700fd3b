"""KV cache: bytes a token and what a request needs, per device.

Source: `vllm/v1/kv_cache_interface.py` (page sizes of full attention and MLA), `ModelConfig.get_num_kv_heads` (at least
one KV head a device: beyond their number tensor parallelism only makes copies), `vllm/v1/core/kv_cache_utils.py` (a
start needs room for one request of the longest length). MLA caches one vector of `kv_lora_rank + qk_rope_head_dim` a
token and layer, on every device of a tensor parallel group.
"""

from __future__ import annotations

import math

from sweep.memory.values import Launch, Model


def kv_heads_per_device(model: Model, tensor_parallel: int) -> int:
    """KV heads that one device keeps."""
    return 1 if model.mla is not None else max(1, model.kv_heads // tensor_parallel)


def layer_bytes_per_token(model: Model, launch: Launch) -> float:
    """Bytes of one token in one layer on one device."""
    size = launch.kv_value_bytes or float(launch.value_bytes or min(model.value_bytes, 2))
    if model.mla is not None:
        return (model.mla.kv_rank + model.mla.rope_dim) * size
    return 2 * kv_heads_per_device(model, launch.tensor_parallel) * model.head_dim * size


def request_bytes(model: Model, launch: Launch, layers: int, tokens: int) -> float:
    """What one request of so many tokens holds of `layers` layers, in whole blocks.

    A layer with a sliding window holds no more than the window and the tokens of one step
    (`SlidingWindowSpec.max_admission_blocks_per_request`).
    """
    windowed = layers * model.windowed_layers / model.layers
    seen = tokens if model.window is None else min(tokens, model.window - 1 + launch.batched_tokens)
    each = layer_bytes_per_token(model, launch)
    return each * ((layers - windowed) * _rounded(tokens, launch) + windowed * _rounded(seen, launch))


def _rounded(tokens: int, launch: Launch) -> int:
    return math.ceil(tokens / launch.block_size) * launch.block_size
