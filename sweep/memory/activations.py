"""What a start needs beside weights and KV cache: activations of the profiling run, CUDA graphs, fixed costs.

vLLM runs one step of `max-num-batched-tokens` tokens and one sampling of `max-num-seqs` requests before it sizes the KV
cache, and takes their peak off the budget (`GPUModelRunner.profile_run`, `_dummy_sampler_run`). These are estimates:
the terms are counted, how many of them live at once was set by published start-up logs
(tests/data/started_servers.json).
"""

from __future__ import annotations

from sweep.memory.values import GIB, Device, Launch, Model

# Copies of the hidden states that live at once: residual, input, output.
_HIDDEN_COPIES = 3
# Of the widest layer: what goes in, and the product or its gate and up halves.
_WIDE_COPIES = 3
# Bytes for a request and a word of the vocabulary in sampling: logits in 2 and 4, sorted values 4, places 8, sums 4.
_SAMPLING_BYTES = 22
_GRAPH_BASE, _GRAPH_BYTES_PER_LAYER_AND_SIZE = 0.2 * GIB, 0.2 * 2**20
_GRAPH_STEP, _LARGEST_GRAPH, _SMALL_GRAPHS = 8, 512, 4
# After the CUDA context, which is there before vLLM counts: libraries, attention workspaces; and buffers of NCCL and of
# the custom all-reduce where there are several devices.
_FIXED, _SEVERAL = 0.45 * GIB, 0.35 * GIB
# The process of the CPU build, in 0.32.0 with two toy models: 0.61 to 0.65 GiB beside weights and activations.
_CPU_PROCESS = 0.6 * GIB


def activation_bytes(model: Model, launch: Launch) -> float:
    """The peak of the profiling run on one device: the larger of a step and of a sampling."""
    size = launch.value_bytes or min(model.value_bytes, 2)
    tp, tokens = launch.tensor_parallel, launch.batched_tokens
    attention = (model.heads + 2 * model.kv_heads) * model.head_dim / tp
    wide = max(_WIDE_COPIES * model.intermediate / tp, 2 * attention)
    if model.moe is not None:
        routed = model.moe.active * (max(2 * model.moe.intermediate / tp, model.hidden) + model.moe.intermediate / tp)
        wide = max(wide if model.moe.layers < model.layers else 0.0, routed)
    step = tokens * size * (_HIDDEN_COPIES * model.hidden + wide)
    sampling = min(launch.seqs, tokens) * model.vocabulary * _SAMPLING_BYTES
    return float(max(step, sampling))


def graph_bytes(model: Model, launch: Launch, device: Device) -> float:
    """CUDA graphs of all captured batch sizes: 1, 2, 4 and every 8 up to twice `max-num-seqs`, 512 at most
    (`CompilationConfig.cudagraph_capture_sizes`); part of the profile since vLLM 0.21."""
    if launch.eager or device.kind == "cpu":
        return 0.0
    sizes = _SMALL_GRAPHS + min(2 * launch.seqs, _LARGEST_GRAPH, launch.batched_tokens) // _GRAPH_STEP
    return _GRAPH_BASE + sizes * model.layers / launch.pipeline_parallel * _GRAPH_BYTES_PER_LAYER_AND_SIZE


def fixed_bytes(launch: Launch, device: Device) -> float:
    """What no flag of a step changes."""
    if device.kind == "cpu":
        return _CPU_PROCESS
    return _FIXED + (_SEVERAL if launch.tensor_parallel * launch.pipeline_parallel > 1 else 0.0)
