"""The load client's result file: recorded ones believed, the same ones refused under every fault."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from load_jobs import DATA, a_job, a_round

from sweep.errors import LoadFailed
from sweep.loadgen import REASONS, LoadOutcome, read_result
from sweep.metrics import summarize
from sweep.workload import Round

Fault = Callable[[dict[str, Any]], object]


def recorded(name: str = "good") -> dict[str, Any]:
    """A result of `vllm bench serve` 0.32.0: 24 requests at 8 a second, seed 3, 12 tokens each."""
    result: dict[str, Any] = json.loads((DATA / f"client_result_{name}.json").read_text())
    return result


def plan_of(result: dict[str, Any]) -> Round:
    return a_round(24, rate=8.0, seed=3, output=12, tokens=result["input_lens"])


def judge(folder: Path, result: object, **changes: Any) -> LoadOutcome:
    """What `read_result` makes of a file with that content (text as it is, otherwise as JSON)."""
    plan = changes.pop("plan", None) or plan_of(recorded())
    job = a_job(folder, plan, **changes)
    job.result_path.write_text(result if isinstance(result, str) else json.dumps(result))
    requests, duration_s, summary = read_result(job)
    return LoadOutcome(requests, duration_s, summary, 0.0, 0.0)


def test_a_good_file_is_believed(tmp_path: Path) -> None:
    result = recorded()
    outcome = judge(tmp_path, result)
    assert outcome.duration_s == result["duration"]
    assert len(outcome.requests) == 24
    first = outcome.requests[0]
    assert (first.prompt_id, first.round, first.index, first.error) == ("prompt-0", 0, 0, None)
    assert (first.output_tokens, first.asked_output_tokens) == (12, 12)
    for request, ttft, gaps in zip(outcome.requests, result["ttfts"], result["itls"], strict=True):
        assert request.ttft_ms == ttft * 1000
        assert request.e2el_ms == pytest.approx(ttft * 1000 + sum(request.itl_ms))
        assert len(request.itl_ms) == len(gaps)
    ours = summarize(outcome.requests, outcome.duration_s, percentiles=(99,), slo={"ttft": 24.0, "e2el": 77.0})
    assert outcome.summary["goodput_per_s"] == ours["goodput_per_s"]
    assert {name: outcome.summary[name] for name in ours} == pytest.approx(ours)


def test_sends_are_laid_on_the_plan(tmp_path: Path) -> None:
    outcome = judge(tmp_path, recorded())
    lags = [request.lag_ms for request in outcome.requests]
    assert outcome.requests[0].scheduled_s == 0.0
    assert all(lag is not None for lag in lags)
    known = [lag for lag in lags if lag is not None]
    assert min(known) == pytest.approx(0.0, abs=1e-6)
    assert max(known) < 50.0  # the real client, at 8 requests a second: it keeps its plan to milliseconds
    assert [request.scheduled_s for request in outcome.requests] == list(plan_of(recorded()).arrivals_s)


def test_failed_requests_have_their_error_and_no_latency(tmp_path: Path) -> None:
    outcome = judge(tmp_path, recorded("some_failed"), min_success_share=0.8)
    failed = [request for request in outcome.requests if request.error is not None]
    assert len(failed) == 4
    for request in failed:
        assert request.error == "Internal Server Error"
        assert (request.ttft_ms, request.e2el_ms, request.itl_ms, request.output_tokens) == (None, None, (), None)
    ours = summarize(outcome.requests, outcome.duration_s, percentiles=(99,), slo={})
    assert {name: outcome.summary[name] for name in ours} == pytest.approx(ours)


def test_only_the_last_line_of_a_traceback_is_kept(tmp_path: Path) -> None:
    result = recorded("some_failed")
    index = result["errors"].index("Internal Server Error")
    result["errors"][index] = "Traceback (most recent call last):\n  File ...\nOSError: " + "x" * 900 + "\n"
    error = judge(tmp_path, result, min_success_share=0.8).requests[index].error
    assert error is not None
    assert error.startswith("OSError: x")
    assert len(error) == 500


def test_a_file_of_an_old_client_is_read(tmp_path: Path) -> None:
    result = recorded()
    for key in ("failed", "latencies", "start_times", "queue_times"):
        del result[key]
    result["request_rate"] = "inf"
    outcome = judge(tmp_path, result)
    assert outcome.requests[0].e2el_ms == pytest.approx(recorded()["latencies"][0] * 1000)
    assert outcome.requests[0].start_s is None
    assert outcome.requests[0].lag_ms is None


def set_all(key: str, value: object) -> Fault:
    return lambda result: result.update({key: [value] * len(result[key])})


def put(key: str, value: object) -> Fault:
    return lambda result: result.update({key: value})


def one(key: str, value: object) -> Fault:
    return lambda result: result[key].__setitem__(5, value)


def first_token_only(result: dict[str, Any]) -> None:
    """What is left of an engine that died after the first token of each stream: nothing failed, splendid throughput."""
    result["output_lens"] = [1] * 24
    result["itls"] = [[] for _ in range(24)]
    result["latencies"] = list(result["ttfts"])
    result |= {name: 0.0 for name in result if name.endswith(("_tpot_ms", "_itl_ms"))}


def reorder(result: dict[str, Any]) -> None:
    result["input_lens"] = sorted(result["input_lens"])


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda _: "", "result_malformed"),
        (lambda _: "<html><body>502 Bad Gateway</body></html>", "result_malformed"),
        (lambda _: "{}", "result_malformed"),
        (lambda _: "[]", "result_malformed"),
        (lambda result: json.dumps(result)[:2000], "result_malformed"),
        (lambda result: json.dumps(result) + "\n" + json.dumps(result), "result_malformed"),
        (put("duration", 0.0), "result_malformed"),
        (put("duration", math.nan), "result_malformed"),
        (put("ttfts", None), "result_malformed"),
        (put("completed", 23), "result_malformed"),
        (put("failed", 3), "result_malformed"),
        (one("ttfts", None), "result_malformed"),
        (one("start_times", math.nan), "result_malformed"),
        (lambda result: result["itls"].pop(), "result_malformed"),
        (lambda result: result["latencies"].pop(), "result_malformed"),
        (one("ttfts", 0.0), "implausible_latency"),
        (one("ttfts", -0.1), "implausible_latency"),
        (one("ttfts", math.nan), "implausible_latency"),
        (one("ttfts", math.inf), "implausible_latency"),
        (one("itls", [0.1, -0.2]), "implausible_latency"),
        (one("itls", [math.nan]), "implausible_latency"),
        (one("latencies", 0.0), "implausible_latency"),
        (set_all("ttfts", 0.0), "implausible_latency"),
        (put("mean_tpot_ms", 0.0), "implausible_latency"),
        (put("p99_tpot_ms", math.nan), "implausible_latency"),
        (put("median_tpot_ms", -3.1), "implausible_latency"),
        (put("mean_tpot_ms", None), "implausible_latency"),
        (put("p99_ttft_ms", "fast"), "implausible_latency"),
        (set_all("output_lens", 0), "incomplete_outputs"),
        (set_all("output_lens", 1), "incomplete_outputs"),
        (first_token_only, "incomplete_outputs"),
        (one("output_lens", 3), "incomplete_outputs"),
        (reorder, "requests_differ"),
        (set_all("input_lens", 9000), "requests_differ"),
        (set_all("input_lens", 1), "requests_differ"),
    ],
)
def test_a_file_that_cannot_be_believed_is_refused(tmp_path: Path, fault: Fault, reason: str) -> None:
    result = recorded()
    changed = fault(result)
    with pytest.raises(LoadFailed) as caught:
        judge(tmp_path, changed if isinstance(changed, str) else result)
    assert caught.value.reason == reason
    assert reason in REASONS
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "share", "words"),
    [
        ("all_500", 0.99, "0 of 24 .* Internal Server Error"),
        ("all_500", 0.0, "0 of 24"),
        ("some_failed", 0.99, "20 of 24"),
        ("engine_died", 0.99, "5 of 24"),
    ],
)
def test_too_many_failures_are_refused(tmp_path: Path, name: str, share: float, words: str) -> None:
    with pytest.raises(LoadFailed, match=words) as caught:
        judge(tmp_path, recorded(name), min_success_share=share)
    assert caught.value.reason == "success_rate"


def test_an_error_without_words_is_still_an_error(tmp_path: Path) -> None:
    result = recorded("all_500")
    result["errors"] = [""] * 24
    with pytest.raises(LoadFailed, match="no answer") as caught:
        judge(tmp_path, result)
    assert caught.value.reason == "success_rate"


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed) as caught:
        read_result(a_job(tmp_path))
    assert caught.value.reason == "result_missing"


def test_another_number_of_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match="6 requests were planned") as caught:
        judge(tmp_path, recorded(), plan=a_round(6))
    assert caught.value.reason == "requests_differ"


def test_short_outputs_are_fine_where_the_model_may_stop(tmp_path: Path) -> None:
    result = recorded()
    result["output_lens"] = [3 + index % 9 for index in range(24)]
    assert all(request.error is None for request in judge(tmp_path, result, ignore_eos=False).requests)
    with pytest.raises(LoadFailed) as caught:
        judge(tmp_path, result, ignore_eos=True)
    assert caught.value.reason == "incomplete_outputs"


def test_stubs_are_refused_also_where_the_model_may_stop(tmp_path: Path) -> None:
    result = recorded()
    first_token_only(result)
    with pytest.raises(LoadFailed) as caught:
        judge(tmp_path, result, ignore_eos=False)
    assert caught.value.reason == "incomplete_outputs"


def test_a_few_cut_streams_within_the_floor_are_failed_requests(tmp_path: Path) -> None:
    result = recorded()
    result["output_lens"][5] = 3
    request = judge(tmp_path, result, min_success_share=0.9).requests[5]
    assert request.error == "stream ended after 3 of 12 tokens"
    assert (request.output_tokens, request.ttft_ms) == (3, None)


def test_a_round_of_one_token_outputs_has_no_tpot(tmp_path: Path) -> None:
    result = recorded()
    first_token_only(result)
    plan = a_round(24, rate=8.0, seed=3, output=1, tokens=result["input_lens"])
    outcome = judge(tmp_path, result, plan=plan)
    assert outcome.summary["mean_tpot_ms"] is None
    assert outcome.summary["mean_ttft_ms"] == result["mean_ttft_ms"]


def test_a_chat_template_around_each_prompt_is_no_difference(tmp_path: Path) -> None:
    result = recorded()
    plan = plan_of(result)
    result["input_lens"] = [tokens + 40 for tokens in result["input_lens"]]
    assert len(judge(tmp_path, result, plan=plan).requests) == 24
