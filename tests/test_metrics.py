"""Metrics: on the same requests, the load client's own numbers; what nothing defines is None."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from sweep.errors import ConfigError
from sweep.metrics import (
    engine_config_from_log,
    enough_samples,
    parse_engine_config,
    parse_engine_sample,
    samples_needed,
    summarize,
    summarize_engine,
    thin_percentiles,
    with_client_view,
)
from sweep.records import EngineConfig, EngineSample, EngineSummary, RequestRecord

DATA = Path(__file__).with_name("data")
OLD_METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:gpu_prefix_cache_queries_total{engine="0",model_name="m"} 100.0
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="m"} 20.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="False",engine="0",num_gpu_blocks="1000",\
num_gpu_blocks_override="None",gpu_memory_utilization="0.9",sliding_window="None"} 1.0
"""


def recorded(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((DATA / f"client_result_{name}.json").read_text())
    return result


def requests_of(result: dict[str, Any]) -> list[RequestRecord]:
    return [
        RequestRecord(
            round=0,
            index=index,
            prompt_id=str(index),
            scheduled_s=None,
            start_s=None,
            input_tokens=result["input_lens"][index],
            output_tokens=result["output_lens"][index],
            asked_output_tokens=None,
            ttft_ms=None if error else result["ttfts"][index] * 1000,
            itl_ms=() if error else tuple(gap * 1000 for gap in result["itls"][index]),
            e2el_ms=None if error else result["latencies"][index] * 1000,
            error=error or None,
        )
        for index, error in enumerate(result["errors"])
    ]


@pytest.mark.parametrize("name", ["good", "some_failed"])
def test_the_numbers_are_those_of_the_load_client(name: str) -> None:
    # Both files are from `vllm bench serve` 0.32.0; the first with --goodput ttft:24 e2el:77, the second without.
    result = recorded(name)
    ours = summarize(
        requests_of(result),
        result["duration"],
        percentiles=(50, 90, 95, 99, 99.9),
        slo={"p95_ttft_ms": 24, "p99_e2el_ms": 77} if name == "good" else {},
    )
    theirs = {key: value for key, value in result.items() if key.endswith("_ms")}
    assert len(theirs) == 4 * 8
    theirs |= {
        "request_throughput_per_s": result["request_throughput"],
        "output_throughput_tokens_per_s": result["output_throughput"],
        "total_throughput_tokens_per_s": result["total_token_throughput"],
        "goodput_per_s": result["request_goodput"],
    }
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        assert ours[key] == (None if value is None else pytest.approx(value, rel=1e-9)), key
    if name == "good":
        goodput = ours["goodput_per_s"]
        assert goodput is not None
        assert 0 < goodput < theirs["request_throughput_per_s"]


def request(ttft: float | None, *gaps: float, tokens: int = 0, error: str | None = None) -> RequestRecord:
    e2el = None if ttft is None else ttft + sum(gaps)
    return RequestRecord(0, 0, "p", 0.0, 0.0, 10, tokens or len(gaps) + 1, None, ttft, gaps, e2el, error)


def test_nothing_completed_is_none_not_zero() -> None:
    ours = summarize([request(None, error="500")], 2.0, percentiles=(95,), slo={"p95_ttft_ms": 1})
    latencies = {name: value for name, value in ours.items() if name.endswith("_ms")}
    assert len(latencies) == 16
    assert set(latencies.values()) == {None}
    assert ours["request_throughput_per_s"] == 0.0
    assert ours["goodput_per_s"] == 0.0


def test_outputs_of_one_token_have_no_tpot() -> None:
    ours = summarize([request(5.0), request(7.0)], 1.0, percentiles=(95,), slo={"tpot": 1.0})
    assert ours["mean_ttft_ms"] == 6.0
    assert ours["mean_e2el_ms"] == 6.0
    assert (ours["mean_tpot_ms"], ours["p95_tpot_ms"], ours["median_itl_ms"]) == (None, None, None)
    assert ours["goodput_per_s"] == 2.0  # as for the client, which takes their TPOT for 0 here


def test_formulas_by_hand() -> None:
    rows = [request(10.0, 2.0, 4.0), request(30.0, 6.0), request(500.0), request(None, error="boom")]
    ours = summarize(rows, 4.0, percentiles=(50,), slo={"p99_ttft_ms": 400, "mean_tpot_ms": 5, "p95_itl_ms": 0})
    assert ours["mean_ttft_ms"] == 180.0
    assert ours["mean_tpot_ms"] == pytest.approx((3.0 + 6.0) / 2)
    assert ours["mean_itl_ms"] == 4.0
    assert ours["median_e2el_ms"] == ours["p50_e2el_ms"] == 36.0
    assert ours["std_itl_ms"] == pytest.approx((8 / 3) ** 0.5)
    assert ours["request_throughput_per_s"] == 0.75
    assert ours["output_throughput_tokens_per_s"] == 6 / 4
    assert ours["total_throughput_tokens_per_s"] == 36 / 4
    assert ours["goodput_per_s"] == 0.25


def test_the_loosest_limit_of_a_latency_makes_a_request_good() -> None:
    rows = [request(10.0), request(20.0), request(30.0)]
    assert summarize(rows, 1.0, percentiles=(), slo={"p50_ttft_ms": 10, "p99_ttft_ms": 20})["goodput_per_s"] == 2.0
    assert summarize(rows, 1.0, percentiles=(), slo={"p95_itl_ms": 1, "std_ttft_ms": 1})["goodput_per_s"] is None


def test_further_names_are_computed_and_unknown_ones_refused() -> None:
    rows = [request(10.0, 2.0), request(20.0, 2.0)]
    assert summarize(rows, 1.0, percentiles=(), slo={}, extra_names=("p75_ttft_ms",))["p75_ttft_ms"] == 17.5
    with pytest.raises(ConfigError, match="p95_ttft_ms"):
        summarize(rows, 1.0, percentiles=(), slo={}, extra_names=("p95_tttf_ms",))


def test_no_duration_no_rates() -> None:
    ours = summarize([request(10.0)], 0.0, percentiles=(), slo={})
    assert (ours["request_throughput_per_s"], ours["mean_ttft_ms"]) == (None, 10.0)


@pytest.mark.parametrize(("percentile", "needed"), [(50, 20), (90, 100), (95, 200), (99, 1000), (99.9, 10_000)])
def test_samples_of_a_percentile(percentile: float, needed: int) -> None:
    assert samples_needed(percentile) == needed
    assert enough_samples(percentile, needed)
    assert not enough_samples(percentile, needed - 1)


def test_percentiles_that_rest_on_too_few() -> None:
    assert thin_percentiles((99, 50, 95.0, 99.9), 200) == ("p99", "p99.9")
    assert thin_percentiles((50, 95), 1000) == ()


def test_metrics_of_a_real_engine() -> None:
    # From a vLLM 0.32.0 on a CPU, after 24 requests of 16 output tokens; histogram buckets left out.
    text = (DATA / "metrics_0.32.txt").read_text()
    sample = parse_engine_sample(text, at_s=12.5, phase="load")
    assert (sample.at_s, sample.phase) == (12.5, "load")
    assert (sample.requests_finished, sample.generation_tokens, sample.prompt_tokens) == (24.0, 384.0, 4998.0)
    assert (sample.prefix_queries_tokens, sample.prefix_hits_tokens, sample.preemptions) == (4998.0, 0.0, 0.0)
    assert (sample.running, sample.waiting, sample.kv_usage_share) == (0.0, 0.0, 0.0)
    assert sample.queue_time_count == 24.0
    assert sample.queue_time_sum_s == pytest.approx(0.00066, rel=0.01)
    assert parse_engine_config(text) == EngineConfig(
        block_size=32,
        gpu_blocks=4096,
        kv_tokens=131_072,
        gpu_memory_utilization=0.92,
        enable_prefix_caching=True,
        cache_dtype="auto",
    )


def test_metrics_under_their_old_names() -> None:
    sample = parse_engine_sample(OLD_METRICS, at_s=0.0, phase="load")
    assert (sample.running, sample.kv_usage_share) == (3.0, 0.25)
    assert (sample.prefix_queries_tokens, sample.prefix_hits_tokens) == (100.0, 20.0)
    assert sample.preemptions is None
    config = parse_engine_config(OLD_METRICS)
    assert (config.block_size, config.gpu_blocks, config.kv_tokens) == (16, 1000, 16_000)
    assert config.enable_prefix_caching is False


def test_a_value_under_two_names_is_counted_once() -> None:
    text = OLD_METRICS + 'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:prefix_cache_hits_total{engine="0"} 20.0\n'
    sample = parse_engine_sample(text, at_s=0.0, phase="load")
    assert (sample.kv_usage_share, sample.prefix_hits_tokens) == (0.25, 20.0)


def test_engines_of_a_data_parallel_server_are_added_up() -> None:
    one = """\
vllm:num_requests_running{engine="%d"} %d
vllm:kv_cache_usage_perc{engine="%d"} %f
vllm:cache_config_info{block_size="16",engine="%d",num_gpu_blocks="3000",kv_cache_size_tokens="None"} 1
"""
    text = one % (0, 3, 0, 0.5, 0) + one % (1, 4, 1, 0.75, 1)
    sample = parse_engine_sample(text, at_s=0.0, phase="load")
    assert (sample.running, sample.kv_usage_share) == (7.0, 0.75)
    # vLLM itself has added up the blocks of both.
    config = parse_engine_config(text)
    assert (config.gpu_blocks, config.kv_tokens) == (1500, 24_000)


@pytest.mark.parametrize(
    "text", ["", "<html><body>502</body></html>", '{"detail":"Not Found"}', "vllm:num_requests_running{", "\0"]
)
def test_no_metrics_are_none(text: str) -> None:
    sample = parse_engine_sample(text, at_s=1.0, phase="load")
    assert sample == EngineSample(at_s=1.0, phase="load")
    assert parse_engine_config(text) == EngineConfig()


def test_a_broken_line_costs_itself_alone() -> None:
    text = 'vllm:num_requests_waiting{engine="0} x\nvllm:num_preemptions_total NaN\nvllm:num_requests_running 2\n'
    sample = parse_engine_sample(text, at_s=0.0, phase="load")
    assert (sample.waiting, sample.preemptions, sample.running) == (None, None, 2.0)


def test_configuration_from_logs() -> None:
    new = [
        "INFO [api_utils.py:286] non-default args: {'model': 'm', 'block_size': 32, 'max_num_seqs': 8}",
        "INFO [scheduler.py:308] Chunked prefill is enabled with max_num_batched_tokens=2048.",
        "INFO [kv_cache_utils.py:2327] CPU KV cache size: 131,072 tokens, Maximum concurrency for 2,048 tokens per "
        "request: 64.00x",
    ]
    assert engine_config_from_log(new) == EngineConfig(
        block_size=32, kv_tokens=131_072, max_num_batched_tokens=2048, max_num_seqs=8
    )
    old = ["INFO [kv_cache_utils.py:849] GPU KV cache size: 380,192 tokens", "# GPU blocks: 23762, # CPU blocks: 2048"]
    assert engine_config_from_log(old) == EngineConfig(gpu_blocks=23762, kv_tokens=380_192)
    blocks = ["after num_gpu_blocks is: 100", "'mamba_block_size': 7, 'block_size': 16"]
    assert engine_config_from_log(blocks) == EngineConfig(block_size=16, gpu_blocks=100, kv_tokens=1600)
    assert engine_config_from_log(["Maximum concurrency for 65,536 tokens per request: 5.80x"]) == EngineConfig()


def test_summary_of_the_engine() -> None:
    before = EngineSample(0.0, "load", 0, 0, 0.0, 1, 100, 1000, queue_time_sum_s=1.0, queue_time_count=10)
    middle = EngineSample(1.0, "load", 8, 3, 0.9)
    after = EngineSample(2.0, "load", 0, 0, 0.1, 4, 350, 2000, queue_time_sum_s=3.0, queue_time_count=30)
    summary = summarize_engine([before, middle, after])
    assert dataclasses.asdict(summary) == {
        "preemptions": 3,
        "prefix_hit_share": 0.25,
        "peak_running": 8,
        "peak_waiting": 3,
        "peak_kv_usage_share": 0.9,
        "mean_queue_time_ms": 100.0,
        "largest_step_tokens": None,
        "peak_in_flight": None,
        "peak_in_flight_tokens": None,
        "longest_prompt_tokens": None,
        "load_tokens": None,
    }


def steps(*counts: int, engine: int = 0) -> str:
    """The histogram of steps by their tokens, as vLLM 0.32 writes it."""
    name, edges = "vllm:iteration_tokens_total", ("1.0", "512.0", "2048.0", "+Inf")
    rows = [
        f'{name}_bucket{{engine="{engine}",le="{edge}",model_name="m"}} {float(count)}'
        for edge, count in zip(edges, counts, strict=True)
    ]
    total = f'{name}_count{{engine="{engine}",model_name="m"}} {float(counts[-1])}'
    return "\n".join([f"# TYPE {name} histogram", *rows, total, ""])


def test_the_largest_step_of_a_load_is_that_of_its_own_steps() -> None:
    def largest(*texts: str) -> float | None:
        samples = [parse_engine_sample(text, at_s=float(at), phase="load") for at, text in enumerate(texts)]
        return summarize_engine(samples).largest_step_tokens

    warm = steps(0, 3, 7, 7)  # a larger step before the load does not count
    assert largest(warm, steps(0, 5, 9, 9), steps(2, 13, 17, 17)) == 512
    assert largest(warm, steps(0, 3, 8, 8)) == 2048
    assert largest(warm, steps(0, 3, 7, 8)) == math.inf
    assert largest(warm, steps(1, 4, 8, 8)) == 1
    two = warm + steps(0, 1, 1, 1, engine=1)
    assert largest(two, steps(0, 3, 8, 8) + steps(0, 2, 2, 2, engine=1)) == 2048
    assert largest(warm, warm) is None  # no step
    assert largest(warm, steps(0, 1, 2, 2)) is None  # another server
    assert largest(warm) is None
    assert largest("", "") is None


def sent(
    index: int, start_s: float | None, e2el_ms: float | None, tokens: int = 10, in_round: int = 0
) -> RequestRecord:
    return RequestRecord(in_round, index, "p", 0.0, start_s, tokens, 5, 5, 1.0, (), e2el_ms, None)


def test_requests_and_tokens_in_flight_at_once() -> None:
    summary = EngineSummary(preemptions=2.0)
    found = with_client_view(
        summary,
        [
            sent(0, 0.0, 1000.0),
            sent(1, 0.5, 1000.0, tokens=100),
            sent(2, 1.0, 1000.0),  # at the very moment that the first one ends
            sent(0, 0.2, 9000.0, tokens=300, in_round=1),
        ],
    )
    assert found.preemptions == 2
    assert (found.peak_in_flight, found.peak_in_flight_tokens) == (3, 305)
    assert (found.longest_prompt_tokens, found.load_tokens) == (300, 440)
    assert with_client_view(summary, []) == summary
    assert with_client_view(summary, [sent(0, 0.0, 10.0), sent(1, 0.0, None)]) == summary
    assert with_client_view(summary, [sent(0, None, 10.0)]) == summary


def test_summary_of_nothing_is_none() -> None:
    for samples in ([], [EngineSample(0.0, "load")], [EngineSample(0.0, "load", preemptions=3)]):
        assert set(dataclasses.asdict(summarize_engine(samples)).values()) == {None}
    # No queries in between: no share, and not 0 / 0.
    idle = EngineSample(0.0, "load", prefix_hits_tokens=1, prefix_queries_tokens=5)
    assert summarize_engine([idle, idle]).prefix_hit_share is None
    # Another server's counters.
    lost = [EngineSample(0.0, "load", preemptions=9), EngineSample(1.0, "load", preemptions=2)]
    assert summarize_engine(lost).preemptions is None
