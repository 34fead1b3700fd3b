"""Weights on the fullest device of a launch, from a model's shape, scaled to what its files really hold.

Counts follow vLLM's layers: column- and row-parallel linear layers and the vocabulary are split by tensor parallelism
(`vllm/model_executor/layers/linear.py`, `vocab_parallel_embedding.py`), K and V no further than to one KV head a
device, norms, routers and the compressing half of MLA not at all; pipeline stages share the layers as `get_pp_indices`
does.
MLA keeps its key and value projection twice: for prefill, and absorbed for decode (`mla_attention.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from sweep.memory.values import Launch, Model, Unknown

_VOCABULARY_STEP = 64
# Files may differ so much from what the configuration makes of them (buffers, biases, scales, heads not counted here).
_TOLERANCE, _TOLERANCE_QUANTIZED = 0.08, 0.25


@dataclass(frozen=True, slots=True)
class _Linear:
    """Weights of a layer in numbers: `split` are shared out over tensor parallelism, `kv` down to one head, `whole` are
    on each device; those of experts are `experts`, split as well.
    """

    split: float = 0.0
    kv: float = 0.0
    whole: float = 0.0
    experts: float = 0.0
    absorbed: float = 0.0  # copies made at load, of the size of numbers, split


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a launch shares weights out, and in how many bits it loads what is not quantised."""

    tensor_parallel: int
    pipeline_parallel: int
    bits: float
    online_bits: float | None

    @classmethod
    def of(cls, model: Model, launch: Launch) -> _Cut:
        size = launch.value_bytes or min(model.value_bytes, 2)
        return cls(launch.tensor_parallel, launch.pipeline_parallel, 8.0 * size, launch.online_bits)


def weight_bytes(model: Model, launch: Launch) -> tuple[float, ...] | Unknown:
    """Bytes of weights on one device of each pipeline stage, in their order; Unknown where files and shape disagree."""
    return _weight_bytes(model, _Cut.of(model, launch))


def read_bytes(model: Model, launch: Launch) -> float | Unknown:
    """What one device of each pipeline stage reads of its weights, at least, for one more token of one request; the sum
    over the stages, which follow one another. Of a mixture the experts that work for a token, and no embedding, of
    which a row is read. Unknown as `weight_bytes`.
    """
    held = weight_bytes(model, launch)
    if isinstance(held, Unknown):
        return held
    moe = model.moe
    working = model if moe is None else replace(model, moe=replace(moe, experts=min(moe.active, moe.experts)))
    cut = _Cut.of(model, launch)
    stages = stage_layers(model.layers, launch.pipeline_parallel)
    every = 0.0
    for place, (layers, whole) in enumerate(zip(stages, held, strict=True)):
        last = place == len(stages) - 1
        # A matrix that is tied is read as the last one, whatever stage holds it as the first.
        every += (
            whole
            * _stage_bytes(working, cut, layers, first=False, last=last)
            / _stage_bytes(model, cut, layers, first=place == 0, last=last)
        )
    return every


@lru_cache(maxsize=64)
def _weight_bytes(model: Model, cut: _Cut) -> tuple[float, ...] | Unknown:
    stored_bits = 8.0 * model.value_bytes
    quantized = model.quantization
    shape = _described(model, stored_bits)
    if quantized is not None and quantized.bits is None:
        if model.stored_bytes is None:
            return Unknown(f"weights quantised by {quantized.method} are not known by size, and there are no files")
        scale = model.stored_bytes / shape
    elif model.stored_bytes is not None:
        scale = model.stored_bytes / shape
        tolerance = _TOLERANCE if quantized is None else _TOLERANCE_QUANTIZED
        if not 1 / (1 + tolerance) <= scale <= 1 + tolerance:
            return Unknown(
                f"the weight files hold {model.stored_bytes / 1e9:.1f} GB where config.json describes "
                f"{shape / 1e9:.1f} GB: one of them is not this model's"
            )
    else:
        scale = 1.0
    stages = stage_layers(model.layers, cut.pipeline_parallel)
    return tuple(
        scale * _stage_bytes(model, cut, layers, first=place == 0, last=place == len(stages) - 1)
        for place, layers in enumerate(stages)
    )


def stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each pipeline stage: what is left over goes to the middle (vLLM's `get_pp_indices`)."""
    each = [layers // stages] * stages
    for place in range(2, layers % stages + 2):
        each[-place] += 1
    return tuple(each)


def _linear_bits(model: Model, bits: float, online: float | None) -> tuple[float, float]:
    """Bits of a weight in attention and plain layers, and in experts."""
    quantized = model.quantization
    if quantized is None:
        return (bits, bits) if online is None else (online, online)
    low = bits if quantized.bits is None else quantized.bits
    return (bits if quantized.experts_only else low), low


def _described(model: Model, bits: float) -> float:
    """Bytes of the weight files as the shape has them, layers for drafting included."""
    plain, experts = _linear_bits(model, bits, None)
    layer = _total(model, plain, experts, bits) + model.draft_layers * _draft_bytes(model, plain, experts, bits)
    return layer + bits / 8 * _vocabulary(model) * model.hidden * (1 if model.tied else 2)


def _total(model: Model, plain: float, experts: float, bits: float) -> float:
    dense = model.layers - (model.moe.layers if model.moe else 0)
    attention, norms = _attention(model), _norms(model)
    every = (attention.split + attention.kv) * plain / 8 + (attention.whole * plain + norms * bits) / 8
    mlp = dense * _mlp(model) * plain / 8
    mixed = _experts(model)
    moe = (
        0.0
        if model.moe is None
        else model.moe.layers * (mixed.split * plain + mixed.experts * experts + mixed.whole * bits) / 8
    )
    return model.layers * every + mlp + moe


def _draft_bytes(model: Model, plain: float, experts: float, bits: float) -> float:
    """A layer for multi-token prediction, loaded only to speculate: as the last layer, and what joins it on."""
    mixed, attention = _experts(model), _attention(model)
    linear = attention.split + attention.kv + attention.whole + mixed.split + 2 * model.hidden**2
    ends = 2 * model.vocabulary * model.hidden
    return (linear * plain + mixed.experts * experts + (mixed.whole + ends) * bits) / 8


def _stage_bytes(model: Model, cut: _Cut, layers: int, *, first: bool, last: bool) -> float:
    tp, bits = cut.tensor_parallel, cut.bits
    plain, experts = _linear_bits(model, bits, cut.online_bits)
    attention, mixed = _attention(model), _experts(model)
    kv_share = max(1, model.kv_heads // tp) / model.kv_heads
    one = attention.split / tp * plain + attention.kv * kv_share * plain + attention.whole * plain
    one += attention.absorbed / tp * bits + _norms(model) * bits
    with_experts = 0.0 if model.moe is None else model.moe.layers / model.layers * layers
    mlp = (layers - with_experts) * _mlp(model) / tp * plain
    moe = with_experts * (mixed.split / tp * plain + mixed.experts / tp * experts + mixed.whole * bits)
    ends = int(first) + int(last and not (model.tied and first))
    return (layers * one + mlp + moe + ends * _vocabulary(model) / tp * model.hidden * bits) / 8


def _attention(model: Model) -> _Linear:
    mla = model.mla
    if mla is None:
        side = model.heads * model.head_dim
        return _Linear(split=2.0 * model.hidden * side, kv=2.0 * model.hidden * model.kv_heads * model.head_dim)
    query = model.heads * (mla.nope_dim + mla.rope_dim)
    up = float(mla.kv_rank * model.heads * (mla.nope_dim + mla.v_dim))
    down = model.hidden * (mla.kv_rank + mla.rope_dim)
    into = model.hidden * query if mla.q_rank is None else mla.q_rank * query
    return _Linear(
        split=into + up + model.heads * mla.v_dim * model.hidden,
        whole=float(down + (0 if mla.q_rank is None else model.hidden * mla.q_rank)),
        absorbed=up,
    )


def _mlp(model: Model) -> float:
    return float((3 if model.gated else 2) * model.hidden * model.intermediate)


def _experts(model: Model) -> _Linear:
    moe = model.moe
    if moe is None:
        return _Linear(split=_mlp(model))
    return _Linear(
        split=3.0 * model.hidden * moe.shared_intermediate,
        experts=3.0 * model.hidden * moe.intermediate * moe.experts,
        whole=float(model.hidden * moe.experts),
    )


def _norms(model: Model) -> float:
    return 2.0 * model.hidden


def _vocabulary(model: Model) -> int:
    """Rows of the embedding: padded so that each device has as many."""
    return -(-model.vocabulary // _VOCABULARY_STEP) * _VOCABULARY_STEP
