"""Drives vLLM's own scheduler with scripted requests, on a virtual clock: a step takes one second.

    python tests/twin_driver.py < scenarios.json > traces.json

Run as a command by tests/test_twin_vllm.py, so that what the CPU build of vLLM needs stays out of the test process.
The loop is that of vLLM's engine core: one step at a time, or, with asynchronous scheduling, one planned ahead.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from sweep import vllm_cpu  # noqa: E402

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 128,
    "max_position_embeddings": 8192,
    "torch_dtype": "float32",
}
# Steps after which a scenario is given up: far more than any needs.
TOO_MANY = 100_000


def base_config(folder: Path) -> Any:
    """A vLLM configuration whose scheduler and cache parts the scenarios change."""
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig

    (folder / "config.json").write_text(json.dumps(CONFIG))
    model = ModelConfig(model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=8192)
    return VllmConfig(
        model_config=model,
        scheduler_config=SchedulerConfig.default_factory(max_model_len=8192, max_num_batched_tokens=8192),
        cache_config=CacheConfig(block_size=32),
        device_config=DeviceConfig(device="cpu"),
    )


def build(config: Any, scenario: dict[str, Any]) -> Any:
    """The scheduler of a scenario."""
    import torch
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    engine = scenario["engine"]
    part = config.scheduler_config
    part.max_num_seqs = engine["max_num_seqs"]
    part.max_num_batched_tokens = engine["max_num_batched_tokens"]
    part.enable_chunked_prefill = engine["chunked_prefill"]
    part.long_prefill_token_threshold = engine["long_prefill_tokens"]
    part.long_prefill_token_threshold_adaptive = engine["long_prefill_adaptive"]
    part.policy = "priority" if engine["by_priority"] else "fcfs"
    part.scheduler_reserve_full_isl = engine["whole_prompt"]
    part.watermark = engine["watermark_share"]
    part.async_scheduling = engine["asynchronous"]
    size, blocks = engine["block_size"], engine["kv_blocks"] + 1
    config.cache_config.block_size = size
    config.cache_config.enable_prefix_caching = engine["prefix_caching"]
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return (AsyncScheduler if engine["asynchronous"] else Scheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=size,
        log_stats=False,
    )


def build_requests(scenario: dict[str, Any]) -> list[Any]:
    """The requests of a scenario, in order of arrival. No two share a token but those of a group their prefix."""
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(scenario["engine"]["block_size"], sha256)
    requests = []
    for i, row in enumerate(scenario["requests"]):
        shared = row["prefix_tokens"] if row["prefix_group"] >= 0 else 0
        tokens = [-1 - row["prefix_group"] * 10_000 - at for at in range(shared)]
        tokens += [i * 10_000 + at for at in range(shared, row["input_tokens"])]
        requests.append(
            Request(
                request_id=f"{i:06d}",
                prompt_token_ids=tokens,
                sampling_params=SamplingParams(max_tokens=row["output_tokens"], ignore_eos=True),
                pooling_params=None,
                arrival_time=row["arrival_s"],
                priority=row["priority"],
                block_hasher=hasher,
            )
        )
    return requests


def drive(config: Any, scenario: dict[str, Any]) -> dict[str, Any]:
    """Steps as [[request, tokens], ...] with [request, -1] for the preempted, and when each request's tokens came."""
    scheduler, requests = build(config, scenario), build_requests(scenario)
    depth = 2 if scenario["engine"]["asynchronous"] else 1
    flying: deque[tuple[Any, float, set[str]]] = deque()
    steps: list[list[list[int]]] = []
    preempted: list[list[int]] = []
    came: list[list[float]] = [[] for _ in requests]
    now_s, free_s, arrived, fresh_token = 0.0, 0.0, 0, itertools.count(1_000_000)
    for _ in range(TOO_MANY):
        while arrived < len(requests) and requests[arrived].arrival_time <= now_s:
            scheduler.add_request(requests[arrived])
            arrived += 1
        if scheduler.has_unfinished_requests():
            plan = scheduler.schedule()
            counts = plan.num_scheduled_tokens
            preempted += [[int(name), -1] for name in sorted(plan.preempted_req_ids or ())]
            if counts:
                steps.append(preempted + [[int(name), tokens] for name, tokens in counts.items()])
                preempted = []
                free_s = max(now_s, free_s) + 1.0
            emits = {name for name in counts if not scheduler.requests[name].is_prefill_chunk}
            flying.appendleft((plan, free_s if counts else now_s, emits))
            if len(flying) < depth:
                continue
            if not any(batch[0].num_scheduled_tokens for batch in flying) and not plan.preempted_req_ids:
                # Nothing can change before somebody arrives.
                now_s = requests[arrived].arrival_time
        elif not flying:
            if arrived == len(requests):
                return {"steps": steps, "came": came}
            now_s = requests[arrived].arrival_time
            continue
        plan, end_s, emits = flying.pop()
        now_s = max(now_s, end_s)
        _update(scheduler, plan, emits, fresh_token)
        for name in emits:
            came[int(name)].append(now_s)
    raise SystemExit(f"a scenario did not end: {scenario}")


def _update(scheduler: Any, plan: Any, emits: set[str], fresh_token: Any) -> None:
    from vllm.v1.outputs import ModelRunnerOutput

    names = list(plan.num_scheduled_tokens)
    scheduler.update_from_output(
        plan,
        ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[[next(fresh_token)] if name in emits else [] for name in names],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        ),
    )


def main() -> None:
    """Scenarios from standard input, traces to standard output."""
    vllm_cpu.adapt()
    # vLLM logs to standard output, which is the answer's here.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    vllm_cpu.inspect_models_here()
    scenarios = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        config = base_config(Path(folder))
        traces = [drive(config, scenario) for scenario in scenarios]
    with answer:
        json.dump(traces, answer)


if __name__ == "__main__":
    main()
