"""Device memory: weights, KV cache, work at start, work under load, and what others hold.

Sentences of vLLM 0.3 to 0.32 (`v1/core/kv_cache_utils.py`, `v1/worker/`, the old `worker/worker.py`), of PyTorch's
allocators, of Triton, cuBLAS and NCCL.
"""

from __future__ import annotations

from sweep.diagnosis.rule import Kind, Rule, sentence
from sweep.diagnosis.values import FailureClass as Class

_OUT_OF_MEMORY = (
    r"(?:CUDA|HIP|XPU|Tried) out of memory\b",
    r"(?:CUDA|HIP)(?: driver)? [eE]rror: out of memory",
    r"CUDART error: out of memory",
    r"Triton Error \[(?:CUDA|HIP)\]: out of memory",
    r"CUDA error: CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)",
    r"cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    r"\[enforce fail at alloc_cpu\.cpp:\d+\]",
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",
    r"Memory allocation failure? on device",
    r"(?:level_zero backend failed with error|Native API failed\. Native API returns): \d+ "
    r"\(UR_RESULT_ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES)",
)

RULES = (
    Rule(
        sentence(r"CUDA out of memory occurred when warming up (?:sampler|pooler)"),
        Class.STARTUP_OOM,
        "The warm-up of sampling does not fit: lower max-num-seqs or gpu-memory-utilization.",
    ),
    Rule(
        sentence(r"Failed to load model - not enough GPU memory"),
        Class.WEIGHTS_OOM,
        "The weights do not fit: more tensor parallelism, quantization or a smaller model; lower utilization does "
        "not help.",
        kind=Kind.WEIGHTS,
    ),
    Rule(
        sentence(*_OUT_OF_MEMORY),
        Class.STARTUP_OOM,
        "Device memory ran out.",
        kind=Kind.OUT_OF_MEMORY,
    ),
    Rule(
        sentence(r"Cuda failure (?:\d+ )?'out of memory'"),
        Class.STARTUP_OOM,
        "Device memory ran out.",
        kind=Kind.OUT_OF_MEMORY,
        anywhere=True,
        quiet_too=True,
    ),
    Rule(
        sentence(
            r"No available memory for the cache blocks",
            r"To serve at least one request with the models?'s max seq len",
            r"The model's max seq len \(\d+\) is larger than the maximum number of tokens that can be stored in",
            r"Cannot auto-fit max_model_len: not enough",
            r"max_num_seqs \(\d+\) exceeds available Mamba cache blocks",
        ),
        Class.KV_CACHE_TOO_SMALL,
        "Too little is left for the KV cache: raise gpu-memory-utilization, lower max-model-len or max-num-seqs, or "
        "spread the weights.",
        kind=Kind.KV_CACHE,
    ),
    Rule(
        # On the CPU build: what the process holds already exceeds the whole share.
        sentence(
            r"Available memory on node \d+ .{0,40} on kv cache allocation is less than requested memory for kv \(-"
        ),
        Class.KV_CACHE_TOO_SMALL,
        "Nothing is left for the KV cache: raise gpu-memory-utilization, on this build a share of the node's memory.",
        kind=Kind.KV_CACHE,
    ),
    Rule(
        sentence(
            r"Free memory on device\b.{0,80} on startup is less than",
            r"Available memory on node \d+ .{0,40} on startup is less than",
        ),
        Class.MEMORY_TAKEN_BY_OTHER,
        "Other processes hold the memory this launch asks for: wait for them to go or end them, then try again.",
        kind=Kind.FREE_MEMORY,
    ),
    Rule(
        sentence(
            r"Error in memory profiling\b",
            r"Available memory on node \d+ .{0,40} on kv cache allocation is less than requested memory for kv "
            r"\([\d.]+/[\d.]+ GiB\)\. Reduce",
        ),
        Class.MEMORY_TAKEN_BY_OTHER,
        "Another process took or freed memory while this one started, often a server still going away: wait and try "
        "again.",
    ),
    Rule(
        sentence(r"Available memory on node \d+ .{0,40} on kv cache allocation is less than requested memory for kv"),
        Class.STARTUP_OOM,
        "The KV cache asked for is larger than the memory of the node: ask for less.",
    ),
)
