"""From a `config.json` to the shape of a model: every common decoder, and a plain word about those that are not.

Names of keys are those of `transformers` (its configuration classes) as vLLM reads them in
`vllm/transformers_utils/model_arch_config_convertor.py`. What is not understood is never guessed: `Unknown`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweep.memory.model_files import read_config, stored_bytes
from sweep.memory.quantized import read_quantization
from sweep.memory.values import Mla, Model, Moe, Quantization, Unknown

Config = Mapping[str, Any]

# Parts that take memory in ways of their own: encoders, recurrent states, caches shared between or unlike in layers.
_FOREIGN = {
    "vision_config": "has a vision encoder",
    "audio_config": "has an audio encoder",
    "encoder": "has an encoder",
    "block_configs": "has layers of different shapes",
    "layers_block_type": "mixes attention with recurrent layers",
    "hybrid_override_pattern": "mixes attention with recurrent layers",
    "linear_attn_config": "mixes attention with recurrent layers",
    "linear_num_value_heads": "mixes attention with recurrent layers",
    "mamba_d_state": "has recurrent layers",
    "ssm_cfg": "has recurrent layers",
    "state_size": "has recurrent layers",
    "conv_L_cache": "has convolution layers",
    "num_kv_shared_layers": "shares KV cache between layers",
    "index_topk": "has a sparse attention index",
    "compress_ratios": "compresses its KV cache",
}
_INNER = ("text_config", "llm_config", "language_config")
_KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
_EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
_ACTIVE = ("num_experts_per_tok", "moe_top_k", "moe_k", "num_experts_per_token")
_MOE_STEPS = ("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step", "moe_layer_interval")
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length")
# Of the types that vLLM caches latents for (`is_deepseek_mla`), those whose layers are as in DeepSeek V2.
_MLA = ("deepseek_v2", "deepseek_v3", "deepseek_mtp", "kimi_k2", "glm4_moe_lite", "pangu_ultra_moe", "axk1")
# Two matrices in the MLP, not three.
_UNGATED = ("gpt2", "gpt_neox", "gpt_bigcode", "falcon", "opt", "bloom", "mpt", "phi", "starcoder2", "gptj", "nemotron")
_TIED_BY_DEFAULT = ("gemma", "gemma2", "gemma3_text", "gpt2", "gpt_bigcode", "bloom", "falcon", "opt", "cohere",
                    "cohere2", "starcoder2", "mpt")  # fmt: skip
_FOUR_BYTES = ("float32", "float")
_TWO_BYTES = ("bfloat16", "float16", "half")


def read_model(folder: Path) -> Model | Unknown:
    """The model in `folder`, or why nothing can be said of it. Reads no weights, and never raises."""
    config = read_config(folder)
    if isinstance(config, Unknown):
        return config
    return model_of(config, stored_bytes(folder))


def model_of(config: Config, stored: int | None = None) -> Model | Unknown:
    """The model that a configuration describes; `stored` is the size of its weight files."""
    inner = next((config[name] for name in _INNER if isinstance(config.get(name), Mapping)), config)
    for key, what in _FOREIGN.items():
        if config.get(key) or inner.get(key):
            return Unknown(f"{_name(config)} {what}, which the memory model does not know")
    if config.get("is_encoder_decoder"):
        return Unknown(f"{_name(config)} is no decoder alone, which the memory model does not know")
    try:
        return _Reader(inner, config).model(stored)
    except _Missing as missing:
        return Unknown(f"config.json of {_name(config)} {missing}")


class _Missing(Exception):
    """What the configuration does not say."""


def _name(config: Config) -> str:
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    return str(first or config.get("model_type") or "the model")[:80]


class _Reader:
    def __init__(self, config: Config, outer: Config) -> None:
        self._config, self._outer = config, outer
        self._type = str(config.get("model_type") or outer.get("model_type") or "")

    def model(self, stored: int | None) -> Model:
        layers, hidden = self._need("num_hidden_layers", "n_layer", "n_layers", "num_layers"), self._need(
            "hidden_size", "n_embd", "d_model"
        )  # fmt: skip
        heads = self._need("num_attention_heads", "n_head", "n_heads")
        windowed = self._windowed(layers)
        quantization = read_quantization(
            self._outer.get("quantization_config") or self._config.get("quantization_config")
        )
        return Model(
            architecture=_name(self._outer),
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=self._kv_heads(heads),
            head_dim=self._find("head_dim", "hidden_size_per_head", "attention_head_dim") or max(1, hidden // heads),
            vocabulary=self._need("vocab_size", "padded_vocab_size"),
            intermediate=self._intermediate(hidden),
            gated=self._type not in _UNGATED,
            tied=self._tied(),
            value_bytes=self._value_bytes(),
            longest_tokens=self._longest(),
            mla=self._mla(),
            moe=self._moe(layers),
            quantization=quantization if isinstance(quantization, Quantization) else None,
            window=self._find("sliding_window") if windowed else None,
            windowed_layers=windowed,
            draft_layers=self._find("num_nextn_predict_layers") or 0,
            stored_bytes=stored,
        )

    def _find(self, *names: str) -> int | None:
        """The first of these that is a whole number above zero. Raises _Missing for one that is something else."""
        for name in names:
            value = self._config.get(name)
            if value is None or value == 0:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or value < 0:
                raise _Missing(f"gives {name} as something other than a whole number")
            return int(value)
        return None

    def _need(self, *names: str) -> int:
        found = self._find(*names)
        if found is None:
            raise _Missing(f"does not give {names[0]}")
        return found

    def _kv_heads(self, heads: int) -> int:
        if (
            self._type == "falcon"
            and self._config.get("multi_query")
            and not self._config.get("new_decoder_architecture")
        ):
            return 1
        if self._config.get("multi_query") is True and self._type == "gpt_bigcode":
            return 1
        return self._find(*_KV_HEADS) or heads

    def _intermediate(self, hidden: int) -> int:
        return self._find("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim") or 4 * hidden

    def _tied(self) -> bool:
        told = self._config.get("tie_word_embeddings", self._outer.get("tie_word_embeddings"))
        return bool(told) if told is not None else self._type in _TIED_BY_DEFAULT

    def _value_bytes(self) -> int:
        for place in (self._config, self._outer):
            told = str(place.get("dtype") or place.get("torch_dtype") or "").removeprefix("torch.")
            if told in _FOUR_BYTES:
                return 4
            if told in _TWO_BYTES:
                return 2
        return 2

    def _longest(self) -> int | None:
        """The longest request, as vLLM derives it (`_get_and_verify_max_len`): YaRN counts from the original length."""
        longest = self._find(*_LENGTHS)
        scaling = self._config.get("rope_scaling") or self._config.get("rope_parameters")
        if not isinstance(scaling, Mapping) or longest is None:
            return longest
        factor, kind = scaling.get("factor"), scaling.get("rope_type", scaling.get("type"))
        if not isinstance(factor, (int, float)) or kind in (None, "default", "su", "longrope", "llama3", "mrope"):
            return longest
        original = scaling.get("original_max_position_embeddings") if kind == "yarn" else None
        return int((original if isinstance(original, int) else longest) * factor)

    def _mla(self) -> Mla | None:
        rank = self._find("kv_lora_rank")
        if rank is None:
            return None
        if self._type not in _MLA:
            raise _Missing("has latent attention of a kind which the memory model does not know")
        head = self._find("head_dim")
        return Mla(
            kv_rank=rank,
            q_rank=self._find("q_lora_rank"),
            rope_dim=self._need("qk_rope_head_dim"),
            nope_dim=self._need("qk_nope_head_dim"),
            v_dim=self._find("v_head_dim") or head or 128,
        )

    def _moe(self, layers: int) -> Moe | None:
        experts = self._find(*_EXPERTS)
        if experts is None or experts < 2:
            return None
        width = self._find("moe_intermediate_size", "expert_intermediate_size") or self._intermediate(0)
        copies = self._find("n_shared_experts", "moe_num_shared_experts") or 0
        shared = self._find("shared_expert_intermediate_size") or copies * width
        return Moe(
            layers=self._moe_layers(layers),
            experts=experts,
            active=self._find(*_ACTIVE) or 1,
            intermediate=width,
            shared_intermediate=shared,
        )

    def _moe_layers(self, layers: int) -> int:
        dense = self._find("first_k_dense_replace", "moe_layer_start_index") or 0
        plain = self._config.get("mlp_only_layers")
        dense += len(plain) if isinstance(plain, list) else 0
        step = self._find(*_MOE_STEPS) or 1
        return max(0, layers - dense) // step

    def _windowed(self, layers: int) -> int:
        """How many layers see a sliding window only, by `layer_types`, else by the pattern of the family."""
        types = self._config.get("layer_types")
        if isinstance(types, list) and any(one not in ("full_attention", "sliding_attention") for one in types):
            raise _Missing("names kinds of layers which the memory model does not know")
        used = self._config.get("use_sliding_window", not self._type.startswith("qwen"))
        if self._find("sliding_window") is None or not used:
            return 0
        if isinstance(types, list):
            return sum(one == "sliding_attention" for one in types)
        pattern = self._find("sliding_window_pattern") or (2 if self._type in ("gemma2", "gpt_oss") else 0)
        if pattern > 1:
            return layers - layers // pattern
        start = self._find("max_window_layers") if self._type.startswith("qwen") else None
        return layers if start is None else max(0, layers - start)
