"""What `--help` of the fake prints: argparse's format, a good part of vLLM 0.32's flags."""

from __future__ import annotations

import argparse

_SERVE: dict[str, str] = {
    "Frontend": "host port:int uvicorn-log-level allowed-origins api-key chat-template chat-template-content-format "
    "response-role root-path disable-uvicorn-access-log? enable-auto-tool-choice? tool-call-parser "
    "enable-prompt-tokens-details? disable-log-stats? enable-log-requests? config headless? api-server-count:int",
    "ModelConfig": "model tokenizer tokenizer-mode trust-remote-code? dtype seed:int hf-config-path revision "
    "max-model-len quantization enforce-eager? max-logprobs:int served-model-name* generation-config "
    "override-generation-config enable-sleep-mode? skip-tokenizer-init?",
    "LoadConfig": "load-format download-dir ignore-patterns* model-loader-extra-config use-tqdm-on-load?",
    "ParallelConfig": "distributed-executor-backend tensor-parallel-size:int pipeline-parallel-size:int "
    "data-parallel-size:int decode-context-parallel-size:int enable-expert-parallel? disable-custom-all-reduce? "
    "max-parallel-loading-workers:int nnodes:int",
    "CacheConfig": "block-size:int gpu-memory-utilization:float kv-cache-memory-bytes kv-cache-dtype "
    "num-gpu-blocks-override:int enable-prefix-caching? prefix-caching-hash-algo cpu-offload-gb:float "
    "calculate-kv-scales?",
    "SchedulerConfig": "max-num-batched-tokens max-num-seqs:int max-num-partial-prefills:int "
    "max-long-partial-prefills:int long-prefill-token-threshold:int scheduling-policy enable-chunked-prefill? "
    "disable-chunked-mm-input? async-scheduling? stream-interval:int scheduler-reserve-full-isl?",
    "CompilationConfig": "cudagraph-capture-sizes* max-cudagraph-capture-size:int compilation-config",
    "LoRAConfig": "enable-lora? max-loras:int max-lora-rank:int lora-modules*",
    "SpeculativeConfig": "speculative-config",
    "AttentionConfig": "attention-backend",
}

_BENCH: dict[str, str] = {
    "options": "append-result! backend base-url burstiness:float dataset-name dataset-path disable-shuffle! "
    "disable-tqdm! endpoint extra-body goodput* header* host ignore-eos! input-len:int insecure! label logprobs:int "
    "max-concurrency:int metadata* metric-percentiles model no-oversample! no-stream! num-prompts:int num-warmups:int "
    "output-len:int percentile-metrics port:int profile! ready-check-timeout-sec:int request-id-prefix "
    "request-rate:float result-dir result-filename save-detailed! save-result! seed:int served-model-name "
    "skip-chat-template! skip-tokenizer-init! tokenizer tokenizer-mode trust-remote-code! use-beam-search!",
    "custom dataset options": "custom-output-len:int",
    "sharegpt dataset options": "sharegpt-output-len:int",
    "random dataset options": "random-input-len:int random-output-len:int random-range-ratio",
    "sampling parameters": "frequency-penalty:float min-p:float presence-penalty:float repetition-penalty:float "
    "temperature:float top-k:int top-p:float",
}

_GROUPS_ONLY = """usage: vllm serve [model_tag] [options]

Config Groups:
  positional arguments
  options
{groups}

For full list:            vllm serve --help=all
For a section:            vllm serve --help=ModelConfig    (case-insensitive)
For a flag:               vllm serve --help=max-model-len  (_ or - accepted)
"""


def _words(command: str) -> dict[str, str]:
    return _SERVE if command == "serve" else _BENCH


def known(command: str) -> set[str]:
    """Names of the flags of `serve` or `bench`, without dashes."""
    words = " ".join(_words(command).values()).split()
    return {word.rstrip("?*!").partition(":")[0] for word in words}


def text(command: str, *, all_flags: bool) -> str:
    """As in vLLM: `serve --help` lists groups alone, `serve --help=all` and `bench serve --help` the flags."""
    if command == "serve" and not all_flags:
        return _GROUPS_ONLY.format(groups="\n".join(f"  {group}" for group in _SERVE))
    usage = "vllm serve [model_tag] [options]" if command == "serve" else "vllm bench serve [options]"
    parser = argparse.ArgumentParser(usage=usage, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    if command == "serve":
        parser.add_argument("model_tag", nargs="?", help="The model tag to serve (optional if specified in config)")
    for title, words in _words(command).items():
        group = parser if title == "options" else parser.add_argument_group(title)
        for word in words.split():
            _add(group, word)
    return parser.format_help()


def _add(group: argparse._ActionsContainer, word: str) -> None:
    name, _, kind = word.rstrip("?*!").partition(":")
    explanation = f"Sets {name.replace('-', ' ')}."
    if word.endswith("?"):
        group.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=explanation)
    elif word.endswith("!"):
        group.add_argument(f"--{name}", action="store_true", help=explanation)
    elif word.endswith("*"):
        group.add_argument(f"--{name}", nargs="+", help=explanation)
    elif name == "tensor-parallel-size":
        group.add_argument(f"--{name}", "-tp", type=int, default=1, help=explanation)
    elif name == "dtype":
        choices = ["auto", "bfloat16", "float", "float16", "float32", "half"]
        group.add_argument(f"--{name}", choices=choices, default="auto", help=explanation)
    else:
        group.add_argument(f"--{name}", type={"int": int, "float": float}.get(kind, str), help=explanation)
