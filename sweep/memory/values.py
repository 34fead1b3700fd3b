"""What goes into a sum of device memory and what comes out: values only. Sizes are in bytes."""

from __future__ import annotations

from dataclasses import dataclass

GIB = float(2**30)


@dataclass(frozen=True, slots=True)
class Unknown:
    """Why nothing can be said; `reason` is one line for a person."""

    reason: str


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention: the cache holds one latent of `kv_rank` and one shared key of `rope_dim` a token."""

    kv_rank: int
    q_rank: int | None
    rope_dim: int
    nope_dim: int
    v_dim: int


@dataclass(frozen=True, slots=True)
class Moe:
    """Mixture of experts in `layers` of the layers: `experts` of width `intermediate`, `active` of them for a token;
    `shared_intermediate` is the width of what every token goes through, 0 for none.
    """

    layers: int
    experts: int
    active: int
    intermediate: int
    shared_intermediate: int


@dataclass(frozen=True, slots=True)
class Quantization:
    """Weights of linear layers in fewer bits. `bits` count scales and zero points; None: only the files can tell.

    `experts_only`: attention and shared layers stay as they are.
    """

    method: str
    bits: float | None
    experts_only: bool = False


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder as `config.json` describes it, and what its weight files hold.

    `window` is a sliding window in tokens over `windowed_layers` of the layers. `value_bytes` is the size of one number
    as the weights are stored. `stored_bytes` is None where there are no weight files to look at.
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    intermediate: int
    gated: bool
    tied: bool
    value_bytes: int
    longest_tokens: int | None
    mla: Mla | None = None
    moe: Moe | None = None
    quantization: Quantization | None = None
    window: int | None = None
    windowed_layers: int = 0
    draft_layers: int = 0
    stored_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """What one rank of the server may fill. `kind`: "gpu", or "cpu" for the CPU build, where it is a NUMA node."""

    total_bytes: float
    kind: str = "gpu"
    name: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """The flags that decide about memory, with vLLM's defaults filled in. Tokens and requests are those of a step.

    `max_model_len` None: vLLM fits it to what there is.
    """

    utilization: float
    batched_tokens: int
    seqs: int
    max_model_len: int | None
    block_size: int
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    kv_value_bytes: float | None = None
    value_bytes: int | None = None
    eager: bool = False
    online_bits: float | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """Memory of the fullest device of a launch, as the formulas have it before anything was observed.

    `budget_bytes` is utilization times the device; `fixed_bytes` are libraries, NCCL and the like, `graph_bytes` CUDA
    graphs. `kv_bytes` is what is left for the KV cache (below zero: nothing is). `bytes_per_token` of KV cache are
    those of one device; `needed_bytes` is what one request of the longest length holds of it, and what a start needs.
    """

    budget_bytes: float
    weight_bytes: float
    activation_bytes: float
    graph_bytes: float
    fixed_bytes: float
    kv_bytes: float
    bytes_per_token: float
    needed_bytes: float
    longest_tokens: int | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a start is expected to come to. Intervals are of 95 %.

    `starts` is the probability that the server gets ready. `requests_of_longest`: how many requests of the longest
    length the cache holds at once, None where that length is not known.
    """

    parts: Parts
    starts: float
    kv_tokens: int
    kv_tokens_low: int
    kv_tokens_high: int
    requests_of_longest: float | None
    observed_starts: int = 0
