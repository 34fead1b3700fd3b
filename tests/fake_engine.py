"""The engine behind `fake_server`: queue, timing by flags, counters in vLLM's names."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from fake_vllm import Config, Flags, factor, rng, tokens_of

_WORDS = (" the", " of", " and", " a", " to", " in", " is", " you", " that", " it")


@dataclass
class Fault:
    """What goes wrong with one streamed request."""

    refuse: bool = False
    exit_before: bool = False
    exit_within: bool = False
    engine_dies: bool = False
    endless: bool = False
    hang: bool = False

    @classmethod
    def of(cls, config: Config, number: int) -> Fault:
        """The fault of the streamed request of that number, counted from 1."""
        never = math.inf
        refused = config.get("all_500") or rng(config, {}, f"fail {number}").random() < config.get("fail_share", 0.0)
        return cls(
            refuse=bool(refused),
            exit_before=number >= config.get("die_at_request", never),
            exit_within=number >= config.get("die_mid_stream", never),
            engine_dies=number >= min(config.get("engine_dies_at", never), config.get("one_token_from", never)),
            endless=number == config.get("endless_stream_at", never),
            hang=number == config.get("hang_at", never),
        )


class Engine:
    """Admits `max-num-seqs` requests at a time and yields their tokens at the configured pace."""

    def __init__(self, config: Config, flags: Flags) -> None:
        self.config, self.flags = config, flags
        self.slots = asyncio.Semaphore(int(flags.get("max-num-seqs") or 256))
        self.ttft_s = config.get("ttft_ms", 3.0) / 1000.0 * factor(config, flags, "ttft")
        self.prefill_s = config.get("prefill_ms_per_token", 0.0) / 1000.0 * factor(config, flags, "ttft")
        self.itl_s = config.get("itl_ms", 1.0) / 1000.0 * factor(config, flags, "itl")
        self.random = rng(config, flags, "jitter")
        self.caching = flags.get("enable-prefix-caching", True) is not False
        self.utilization = float(flags.get("gpu-memory-utilization") or 0.92)
        self.block_size = int(flags.get("block-size") or 16)
        self.room_tokens = int(config.get("kv_tokens", 400_000 * self.utilization))
        self.seen: set[str] = set()
        self.running = self.waiting = 0
        self.held_tokens = 0
        self.totals: dict[str, float] = dict.fromkeys(
            ("preempted", "hits", "queries", "prompt", "generated", "finished", "queue_s", "queued"), 0.0
        )

    def exact(self) -> dict[str, Any]:
        """The latencies to report, in seconds, where they are not to be measured."""
        exact = self.config.get("exact")
        if not exact:
            return {}
        scaled = [exact[f"{kind}_ms"] / 1000.0 * factor(self.config, self.flags, kind) for kind in ("ttft", "itl")]
        return {"exact": scaled}

    async def generate(self, prompt: str, wanted: float, fault: Fault) -> AsyncIterator[str]:
        """Up to `wanted` tokens of the answer."""
        loop = asyncio.get_running_loop()
        self.waiting += 1
        arrived = loop.time()
        async with self.slots:
            self.waiting -= 1
            self.running += 1
            self.totals["queue_s"] += loop.time() - arrived
            self.totals["queued"] += 1
            length = tokens_of(prompt)
            held = length + (0 if math.isinf(wanted) else int(wanted))
            self.held_tokens += held
            try:
                await self._prefill(prompt, length, fault)
                async for token in self._decode(wanted):
                    yield token
                self.totals["finished"] += 1
            finally:
                self.held_tokens -= held
                self.running -= 1

    async def _prefill(self, prompt: str, length: int, fault: Fault) -> None:
        if fault.hang:
            await asyncio.sleep(3600)
        hit = self.caching and prompt in self.seen
        self.seen.add(prompt)
        self.totals["queries"] += length if self.caching else 0
        self.totals["hits"] += length if hit else 0
        self.totals["prompt"] += length
        if self.held_tokens > self.room_tokens:
            self.totals["preempted"] += 1
            await asyncio.sleep(2 * self.ttft_s)
        await asyncio.sleep((self.ttft_s if not hit else self.ttft_s / 4) + (0 if hit else self.prefill_s * length))

    async def _decode(self, wanted: float) -> AsyncIterator[str]:
        count = 0
        while count < wanted:
            if count:
                crowd = 1.0 + self.config.get("contention", 0.0) * (self.running - 1)
                jitter = math.exp(self.config.get("jitter", 0.0) * self.random.gauss(0.0, 1.0))
                await asyncio.sleep(self.itl_s * crowd * jitter)
            count += 1
            self.totals["generated"] += 1
            yield _WORDS[count % len(_WORDS)]

    def usage(self, prompt: str, count: int) -> dict[str, Any]:
        """The usage object of the API."""
        length = tokens_of(prompt)
        return {"prompt_tokens": length, "total_tokens": length + count, "completion_tokens": count}

    def start_log(self) -> Iterator[str]:
        """The lines of vLLM's log that tell what the flags became."""
        length = int(self.flags.get("max-model-len") or 4096)
        yield f"INFO 11-30 06:00:02 [kv_cache_utils.py:1087] GPU KV cache size: {self.room_tokens:,} tokens"
        yield (
            f"INFO 11-30 06:00:02 [kv_cache_utils.py:1091] Maximum concurrency for {length:,} tokens per request: "
            f"{self.room_tokens / length:.2f}x"
        )

    def metrics(self, model: str) -> str:
        """The text of `/metrics`."""
        labels = f'engine="0",model_name="{model}"'
        rows: list[str] = []

        def add(name: str, kind: str, value: float, more: str = "", family: str = "") -> None:
            family = family or name
            if f"# TYPE {family} {kind}" not in rows:
                rows.extend((f"# HELP {family} As vLLM names it.", f"# TYPE {family} {kind}"))
            rows.append(f"{name}{{{labels}{more}}} {float(value)}")

        totals = self.totals
        add("vllm:num_requests_running", "gauge", self.running)
        add("vllm:num_requests_waiting", "gauge", self.waiting)
        add("vllm:kv_cache_usage_perc", "gauge", min(1.0, self.held_tokens / self.room_tokens))
        add("vllm:prefix_cache_queries_total", "counter", totals["queries"])
        add("vllm:prefix_cache_hits_total", "counter", totals["hits"])
        add("vllm:num_preemptions_total", "counter", totals["preempted"])
        add("vllm:prompt_tokens_total", "counter", totals["prompt"])
        add("vllm:generation_tokens_total", "counter", totals["generated"])
        for reason in ("stop", "length", "abort"):
            done = totals["finished"] if reason == "length" else 0
            add("vllm:request_success_total", "counter", done, f',finished_reason="{reason}"')
        family = "vllm:request_queue_time_seconds"
        for bound in ("0.3", "0.5", "0.8", "1.0", "+Inf"):
            add(f"{family}_bucket", "histogram", totals["queued"], f',le="{bound}"', family)
        add(f"{family}_count", "histogram", totals["queued"], family=family)
        add(f"{family}_sum", "histogram", totals["queue_s"], family=family)
        info = {
            "block_size": self.block_size,
            "cache_dtype": self.flags.get("kv-cache-dtype", "auto"),
            "enable_prefix_caching": self.caching,
            "engine": "0",
            "gpu_memory_utilization": self.utilization,
            "num_cpu_blocks": None,
            "num_gpu_blocks": self.room_tokens // self.block_size,
        }
        text = ",".join(f'{name}="{value}"' for name, value in info.items())
        rows += [
            "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig",
            "# TYPE vllm:cache_config_info gauge",
            f"vllm:cache_config_info{{{text}}} 1.0",
        ]
        return "\n".join(rows) + "\n"
