"""Flags: refused by argparse, by the configuration checks, or by every attention backend.

Sentences of `vllm/engine/arg_utils.py`, `vllm/config/`, `vllm/platforms/`, `vllm/v1/attention/`, of pydantic and
argparse, and of older versions. Families come last: a message of a kind nobody has written down yet is still a refused
flag when a configuration check says it (tier GENERAL).
"""

from __future__ import annotations

import re

from sweep.diagnosis.rule import CLIENT_SIDE, STARTING, Kind, Rule, Tier, sentence
from sweep.diagnosis.values import FailureClass as Class

_BLOCK_ADVICE = (
    "No attention backend here takes this block size: keep to the sizes the message names (usually 16 or 32)."
)
_FLAG_ADVICE = "The server refuses this combination of flags; the message says which."
_ARGPARSE = r"[\w./<>\[\]| -]{1,200}: error: (?:argument|unrecognized|the following|ambiguous|invalid|expected|too few)"
_NAME = r"[`'\w.][\w`'., -]{0,70}"
_BOUND = (
    r"(?:must be (?:a |an |greater|less|larger|smaller|at least|at most|divisible|positive|set|between|in |<|>|=)"
    r"|must evenly divide|must not be|is (?:smaller|larger|greater) than|cannot be (?:greater|less|larger|smaller|set)"
    r"|should be (?:greater|less|larger|smaller|divisible|set)|exceeds )"
)
_KNOWN_FLAGS = (
    r"max_model_len|max_num_seqs|max_num_batched_tokens|gpu_memory_utilization|(?:tensor|pipeline|data)_parallel_size"
    r"|kv_cache_dtype|enable_chunked_prefill|enable_prefix_caching|num_speculative_tokens|speculative_config|swap_space"
    r"|cpu_offload_gb|max_num_partial_prefills|cudagraph_mode|(?:max_)?cudagraph_capture_sizes?|max_loras|max_lora_rank"
    r"|attention_backend|num_scheduler_steps|max_seq_len_to_capture|cuda_graph_sizes|async_scheduling"
)
# How a check speaks of things that do not go together, or of a value that is none of the known ones.
_GRAMMAR = (
    r".{0,200}?(?:(?:is|are) (?:only |not |currently |yet |not currently |currently not |not yet )+"
    r"(?:supported|compatible|allowed|implemented|applicable|valid)\b"
    r"|\bnot (?:yet|currently) (?:supported|compatible|implemented)\b"
    r"|(?:do|does) not (?:yet )?support\b|only supports?\b|\bincompatible with\b|mutually exclusive"
    r"|cannot be (?:used|combined|enabled|set|both)|can only (?:be|contain)|cannot both"
    r"|must (?:only )?(?:be|have|contain|match|use)\b|should (?:only )?be (?:set|used|one)"
    r"|(?:^|\. )(?:Unknown|Invalid|Unsupported|Unrecognized) [\w ]{2,40}"
    r".*(?:[Vv]alid|[Ss]upported|[Ee]xpected|[Mm]ust be|one of)"
    r"|\brequires? (?:\S+=|--|`--|that |full |prefix |chunked |tensor |pipeline |expert |data |exactly |at least ))"
)
_CHECKS = frozenset({"ValueError", "AssertionError", "NotImplementedError", "ValidationError", "ArgumentTypeError"})

RULES = (
    # argparse
    Rule(
        sentence(r"[\w./<>\[\]| -]{0,120}\bbench\w*\b[\w./<>\[\]| -]{0,80}: error: "),
        Class.CLIENT_ERROR,
        "The load client does not know an option it was given: its version is another than expected.",
    ),
    Rule(
        sentence(_ARGPARSE),
        Class.CLIENT_ERROR,
        "The load client does not know an option it was given: its version is another than expected.",
        phases=CLIENT_SIDE,
    ),
    Rule(
        sentence(r"[\w./<>\[\]| -]{1,200}: error: argument --block[-_]size\b"),
        Class.UNSUPPORTED_BLOCK_SIZE,
        _BLOCK_ADVICE,
    ),
    Rule(
        sentence(_ARGPARSE), Class.INVALID_FLAGS, "The installed vLLM does not take this flag or value; see its --help."
    ),
    # block sizes
    Rule(
        sentence(
            r"Unsupported block[ _]size",
            r"No common block size for \d+",
            r"[Bb]lock[_ ]size must be (?:a )?(?:multiple|divisible|power|one|at|greater|positive|a positive)",
            r"Paged KV cache block size must be",
            r"page(?:d)?[_ ](?:block[_ ])?size must be",
            r"CUDA Paged Attention kernel only supports block sizes",
            r"There is a bug in FlashInfer block_size",
            r"Aligned KV cache block size \d+ is not supported",
            r"The attention backends share no supported KV cache block size",
            r"\w+ requires --block-size in",
            r"\w+ needs \d+-token kernel blocks",
            r"FlexAttention currently requires the cache block size",
            r"Block_size\(\d+\) should be",
            r"(?:\w+ )?kv_manager_block_size\b",
            r"b12x requires runtime page size",
            r"Error in function '\w*paged\w*'.*\b(?:numTokensPerPage|page[_ ]size)\b",
            r"Unexpected FlashInfer page size",
        ),
        Class.UNSUPPORTED_BLOCK_SIZE,
        _BLOCK_ADVICE,
    ),
    Rule(
        sentence(
            r"No valid (?:\w+ )*attention backend found", r"Selected backend \S+ is not valid for this configuration"
        ),
        Class.INVALID_FLAGS,
        "No attention backend takes this combination of flags on this device; the message gives each one's reason.",
        kind=Kind.ATTENTION,
    ),
    # pydantic
    Rule(
        sentence(r"Input should be .*\[type=\w+, input_value="),
        Class.INVALID_FLAGS,
        "A flag has a value outside its range; the line above names it.",
        kind=Kind.FIELD,
        phases=STARTING,
    ),
    Rule(
        sentence(r"\d+ validation errors? for \w*(?:Config|Args)\b"),
        Class.INVALID_FLAGS,
        _FLAG_ADVICE,
        tier=Tier.GENERAL,
        phases=STARTING,
    ),
    # sentences of configuration checks
    Rule(
        sentence(
            r"max_num_batched_tokens \(\d+\)",
            r"User-specified max_model_len \(",
            r"World size \(\d+\) is larger than",
            r"Total number of attention heads \(",
            r"GPU memory utilization must be less than",
            r"Bfloat16 is only supported on GPUs",
            r"The quantization method \S+ is (?:not supported|deprecated)",
            r"Quantization method specified in the model config",
            r"Unknown quantization method",
            r"\(?'?Quantization scheme is not supported",
            r"\w+ does not support weight_bits",
            r"\S+ quantization is currently not supported",
            r"\S+ is not supported for quantization method",
            # of `ensure_divisibility` and of the asserts of models: heads, experts and vocabularies that are split
            r"\d+ is not divisible by \d+$",
            r"assert .{0,120}% ?[\w.]*\b_?(?:tp|ep|pp|dp|world|parallel)_?\w* ?== ?0",
            r".*\bis not divisible by (?:weight quantization|group_size|min_thread|the tensor|number of experts)",
            r"The (?:input|output)_size .* is not divisible by",
            r"The (?:input|output) size is not aligned with the quantized weight shape",
            r"(?:[tT]ensor|[pP]ipeline) parallelism? .*not supported",
            r"Invalid attention backend",
            r"(?:Invalid|Unknown|Unsupported) (?:kv[_ ]cache )?d?type\b",
            r"(?:type )?fp8e4nv (?:data type )?(?:is )?not supported",
            r"(?:FP8|fp8|nvfp4|FP4|bfloat16) KV cache (?:is|requires)",
            r"FlashAttention does not support \S+ kv-cache",
            r"The model type '?\S+ does not support float16",
            r"Too large swap space",
            r"The number of required GPUs exceeds the total number",
            r"CUDA error: invalid device ordinal",
            r"Unrecognized distributed executor backend",
            r"Invalid data[- ]parallel",
            r"No valid cudagraph sizes after rounding",
            r"CUDAGraphMode\.\w+ is not supported with",
            r"Chunked prefill (?:is not supported|cannot|requires)",
            r"Prefix caching (?:is not supported|cannot|requires)",
            r"Speculative decoding (?:is not|with|does not|requires)",
            r"Model Runner V\d (?:does not (?:yet )?support|requires)",
            r"Hybrid KV cache manager (?:was explicitly enabled but is not supported|is disabled but failed)",
            r"VllmConfig does not have enough slots",
            r"max_num_scheduled_tokens is set to",
            r"LoRA rank \d+ is greater than",
        ),
        Class.INVALID_FLAGS,
        _FLAG_ADVICE,
        phases=STARTING,
    ),
    # families
    Rule(
        sentence(
            r".{0,120}\bblock[_ -]sizes?\b.{0,80}(?:multiple|divisible|support|power of|must be|invalid)",
            r".{0,60}(?:[Ii]nvalid|[Uu]nsupported|only supports?) .{0,30}\bblock[_ -]sizes?\b",
        ),
        Class.UNSUPPORTED_BLOCK_SIZE,
        _BLOCK_ADVICE,
        tier=Tier.GENERAL,
        phases=STARTING,
        raised=_CHECKS | {"RuntimeError"},
    ),
    Rule(
        re.compile(_GRAMMAR),
        Class.INVALID_FLAGS,
        _FLAG_ADVICE,
        tier=Tier.GENERAL,
        phases=STARTING,
        raised=_CHECKS,
    ),
    Rule(
        sentence(
            rf"{_NAME}(?:\([^()]{{1,40}}\) |=\S{{1,40}} ){_BOUND}",
            rf"{_NAME} {_BOUND}",
            r".{0,300}(?<![\w-])--(?!shm-size|ipc|gpus)[a-z][a-z0-9]*-[a-z0-9-]+",
            rf".{{0,200}}\b(?:{_KNOWN_FLAGS})\b",
        ),
        Class.INVALID_FLAGS,
        _FLAG_ADVICE,
        tier=Tier.GENERAL,
        phases=STARTING,
        raised=_CHECKS,
    ),
)
