"""The result file of the fake load client, with the keys and formulas of vLLM's own."""

from __future__ import annotations

import math
import statistics
import time
from typing import TYPE_CHECKING, Any

from fake_vllm import Flags

if TYPE_CHECKING:
    from fake_client import Outcome


def percentile(values: list[float], share: float) -> float:
    """Linear interpolation between the closest ranks, as NumPy's default; 0 for no values, as the client has it."""
    if not values:
        return 0.0
    ordered = sorted(values)
    at = share / 100.0 * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def summary(flags: Flags, outcomes: list[Outcome], duration_s: float) -> dict[str, Any]:
    """Everything `--save-result --save-detailed` writes; also printed as the client prints it."""
    good = [outcome for outcome in outcomes if outcome.success]
    for outcome in good:
        outcome.output_tokens = outcome.output_tokens or max(1, len(outcome.text.split()))
    total_in, total_out = sum(row.prompt_len for row in good), sum(row.output_tokens for row in good)
    rate = flags.get("request-rate", "inf")
    result: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": flags["backend"],
        "backend": flags["backend"],
        "label": flags.get("label"),
        "model_id": flags.get("model"),
        "tokenizer_id": flags.get("tokenizer") or flags.get("model"),
        "num_prompts": int(flags.get("num-prompts", 1000)),
        "request_rate": "inf" if math.isinf(float(rate)) else float(rate),
        "burstiness": float(flags.get("burstiness", 1.0)),
        "max_concurrency": flags.get("max-concurrency"),
        "duration": duration_s,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "total_input_tokens": total_in,
        "total_output_tokens": total_out,
        "request_throughput": len(good) / duration_s,
        "request_goodput": None,
        "output_throughput": total_out / duration_s,
        "total_token_throughput": (total_in + total_out) / duration_s,
    }
    if flags.get("save-detailed"):
        result |= _detailed(outcomes)
    result |= {
        "latencies": [row.latency for row in outcomes],
        "queue_times": [row.queue_time for row in outcomes],
        "max_output_tokens_per_s": total_out / max(1, math.ceil(duration_s)),
        "max_concurrent_requests": len(good),
        "rtfx": 0.0,
    }
    _add_latencies(flags, good, result)
    print("============ Serving Benchmark Result ============")
    for title, key in (
        ("Successful requests:", "completed"),
        ("Failed requests:", "failed"),
        ("Benchmark duration (s):", "duration"),
    ):
        print(f"{title:<40} {result[key]:<10}")
    print("=" * 50, flush=True)
    return result


def _detailed(outcomes: list[Outcome]) -> dict[str, Any]:
    return {
        "input_lens": [row.prompt_len for row in outcomes],
        "output_lens": [row.output_tokens if row.success else 0 for row in outcomes],
        "ttfts": [row.ttft for row in outcomes],
        "itls": [row.itl for row in outcomes],
        "start_times": [row.start_time for row in outcomes],
        "generated_texts": [row.text for row in outcomes],
        "errors": [row.error for row in outcomes],
    }


def _add_latencies(flags: Flags, good: list[Outcome], result: dict[str, Any]) -> None:
    pools = {
        "ttft": [row.ttft for row in good],
        "tpot": [(row.latency - row.ttft) / (row.output_tokens - 1) for row in good if row.output_tokens > 1],
        "itl": [gap for row in good for gap in row.itl],
        "e2el": [row.latency for row in good],
    }
    shares = [float(word) for word in str(flags.get("metric-percentiles", "99")).strip('"').split(",")]
    for name in str(flags.get("percentile-metrics", "ttft,tpot,itl")).split(","):
        pool = pools.get(name)
        if pool is None:
            continue
        result[f"mean_{name}_ms"] = statistics.fmean(pool or [0.0]) * 1000
        result[f"median_{name}_ms"] = percentile(pool, 50.0) * 1000
        result[f"std_{name}_ms"] = statistics.pstdev(pool or [0.0]) * 1000
        for share in shares:
            word = str(int(share)) if share == int(share) else str(share)
            result[f"p{word}_{name}_ms"] = percentile(pool, share) * 1000
