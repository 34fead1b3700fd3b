"""The sum: a model, a launch and a device make the parts of its memory.

    KV cache = utilization x memory - weights - activations - CUDA graphs - fixed costs

Source: `Worker.determine_available_memory` in `vllm/v1/worker/gpu_worker.py`; on the CPU build
(`vllm/v1/worker/cpu_worker.py`) utilization is a share of the NUMA node's memory, and what the process holds by then
comes off it. The device with the least room decides for all of them.
"""

from __future__ import annotations

from sweep.memory.activations import activation_bytes, fixed_bytes, graph_bytes
from sweep.memory.kv_cache import layer_bytes_per_token, request_bytes
from sweep.memory.values import Device, Launch, Model, Parts, Unknown
from sweep.memory.weights import stage_layers, weight_bytes


def parts_of(model: Model, launch: Launch, device: Device) -> Parts | Unknown:
    """The memory of the pipeline stage that holds the fewest tokens."""
    if device.kind == "cpu" and launch.tensor_parallel * launch.pipeline_parallel > 1:
        return Unknown("several ranks of the CPU build share nodes in ways the memory model does not know")
    if model.heads % launch.tensor_parallel or model.layers < launch.pipeline_parallel:
        return Unknown("the parallel sizes do not divide the model")
    weights = weight_bytes(model, launch)
    if isinstance(weights, Unknown):
        return weights
    layers = stage_layers(model.layers, launch.pipeline_parallel)
    stages = [_stage(model, launch, device, *one) for one in zip(layers, weights, strict=True)]
    return min(stages, key=lambda parts: parts.kv_bytes / parts.bytes_per_token)


def _stage(model: Model, launch: Launch, device: Device, layers: int, weights: float) -> Parts:
    budget = launch.utilization * device.total_bytes
    activations, fixed = activation_bytes(model, launch), fixed_bytes(launch, device)
    graphs = graph_bytes(model, launch, device)
    longest = launch.max_model_len
    each = layers * layer_bytes_per_token(model, launch)
    block = each * launch.block_size
    needed = block if longest is None else request_bytes(model, launch, layers, longest) + block
    if longest is not None and model.windowed_layers:
        # vLLM logs the capacity as so many requests of the longest length; a token then takes a share of one.
        each = request_bytes(model, launch, layers, longest) / longest
    return Parts(
        budget_bytes=budget,
        weight_bytes=weights,
        activation_bytes=activations,
        graph_bytes=graphs,
        fixed_bytes=fixed,
        kv_bytes=budget - weights - activations - graphs - fixed,
        bytes_per_token=each,
        needed_bytes=needed,
        longest_tokens=longest,
    )
