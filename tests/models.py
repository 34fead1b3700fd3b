"""Configurations of models, as their `config.json` has them, with the sizes that their weights are known to have."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]


def qwen2_32b() -> Config:
    """DeepSeek-R1-Distill-Qwen-32B; 32,763,876,352 parameters."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 5120,
        "intermediate_size": 27648,
        "num_hidden_layers": 64,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "max_window_layers": 64,
        "sliding_window": 131072,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 152064,
    }


QWEN2_32B_BYTES = 65_527_752_704


def llama_8b() -> Config:
    """Llama-3.1-8B; 8,030,261,248 parameters."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
        "torch_dtype": "bfloat16",
        "vocab_size": 128256,
    }


LLAMA_8B_BYTES = 16_060_522_496


def llama_70b() -> Config:
    """Llama-3.1-70B; 70,553,706,496 parameters."""
    return llama_8b() | {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    }


def qwen2_half_b() -> Config:
    """Qwen2.5-0.5B, tied; 494,032,768 parameters."""
    return qwen2_32b() | {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
    }


def mixtral() -> Config:
    """Mixtral-8x7B; 46,702,792,704 parameters."""
    return llama_8b() | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
        "rope_scaling": None,
    }


def qwen3_30b_moe() -> Config:
    """Qwen3-30B-A3B; 30,532,122,624 parameters."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 151936,
    }


def qwen3_235b_moe_fp8() -> Config:
    """Qwen3-235B-A22B-FP8; 235,093,634,560 parameters."""
    return qwen3_30b_moe() | {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }


def deepseek_v3() -> Config:
    """DeepSeek-V3: MLA, experts, weights in fp8, one layer for multi-token prediction beside 671 billion parameters."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "moe_layer_freq": 1,
        "num_hidden_layers": 61,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "max_position_embeddings": 163840,
        "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 129280,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }


DEEPSEEK_V3_BYTES = 688_586_727_753


def deepseek_v2_lite() -> Config:
    """DeepSeek-V2-Lite; 15,706,484,224 parameters."""
    return {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "max_position_embeddings": 163840,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 102400,
    }


def gemma2_9b() -> Config:
    """Gemma-2-9B, tied, every other layer with a sliding window; 9,241,705,984 parameters."""
    return {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "hidden_size": 3584,
        "intermediate_size": 14336,
        "num_hidden_layers": 42,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "sliding_window": 4096,
        "max_position_embeddings": 8192,
        "torch_dtype": "float32",
        "vocab_size": 256000,
    }


def qwen2_7b_awq() -> Config:
    """Qwen2.5-7B-Instruct-AWQ: 4 bits in groups of 128; files of 5.58 GB."""
    return qwen2_32b() | {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "torch_dtype": "float16",
        "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
    }


def toy() -> Config:
    """As `scripts/build_toy_model.py` makes it: 4 KiB of KV cache a token."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 16384,
    }
