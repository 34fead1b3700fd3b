"""The load client: its command in each spelling, its result file under every fault, its process watched and ended."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from waiting import alive

from sweep.errors import FlagError, HostError, LoadFailed
from sweep.flags import CommandHelp, parse_help, printable
from sweep.loadgen import (
    REASONS,
    LoadJob,
    LoadOutcome,
    check_load_flags,
    client_argv,
    read_result,
    run,
    time_limit_s,
)
from sweep.loadgen.progress import ProgressBar, RequestClock
from sweep.metrics import summarize
from sweep.server import Launch, VllmServer, child_environment, new_api_key, reserve_port
from sweep.vllm_cpu import installed
from sweep.workload import ClientFile, Prompt, Round, arrival_times, write_round

DATA = Path(__file__).with_name("data")
FAKE = (sys.executable, str(Path(__file__).with_name("fake_vllm.py")))
NEW = parse_help((DATA / "help_bench_0.32.txt").read_text())
# What matters of 0.10.1: another name for the backend, no warm-up, and a test request that cannot be switched off.
OLD = parse_help(
    """usage: vllm bench serve [options]

options:
  --endpoint-type {tgi,vllm,openai,openai-chat,openai-audio}
  --base-url BASE_URL
  --endpoint ENDPOINT
  --model MODEL
  --served-model-name SERVED_MODEL_NAME
  --tokenizer TOKENIZER
  --num-prompts NUM_PROMPTS
  --save-result
"""
)
Fault = Callable[[dict[str, Any]], object]


def prompt(index: int, tokens: int, output: int) -> Prompt:
    # Four characters are one token of the fake's; no two prompts are alike.
    return Prompt(f"prompt-{index}", f"{index:04d}" + " abc" * (tokens - 1), tokens, output, reply="ok, done.")


def a_round(
    count: int = 6, *, rate: float | None = None, seed: int = 3, output: int = 8, tokens: list[int] | None = None
) -> Round:
    times = arrival_times(count, request_rate=rate, burstiness=1.0, seed=seed)
    lengths = tokens or [10 + 7 * (index * 5 % count) for index in range(count)]
    return Round(
        prompts=tuple(prompt(index, lengths[index], output) for index in range(count)),
        arrivals_s=tuple(time - times[0] for time in times),
        lead_s=times[0],
        seed=seed,
        request_rate=rate,
        burstiness=1.0,
        output_tokens=output,
        client_format="sharegpt",
    )


def a_job(folder: Path, plan: Round | None = None, **changes: Any) -> LoadJob:
    plan = plan or a_round()
    job = LoadJob(
        command=(*FAKE, "bench", "serve"),
        help=NEW,
        base_url="http://127.0.0.1:9",
        model="/models/toy",
        served_name="served",
        tokenizer="/models/tokens",
        number=0,
        plan=plan,
        file=ClientFile(folder / "round-0.json", ("--num-prompts", str(len(plan.prompts)))),
        env={**os.environ, "OPENAI_API_KEY": "secret-of-this-trial"},
        folder=folder,
        name="round-0",
        log_path=folder / "client.log",
        record_path=folder / "records" / "client.json",
        max_concurrency=None,
        ignore_eos=True,
        percentiles=(50.0, 95.0, 99.0),
        request_timeout_s=30.0,
        min_success_share=0.99,
    )
    return dataclasses.replace(job, **changes)


# The command.


def options(argv: tuple[str, ...]) -> dict[str, str]:
    """Values by flag; a flag given twice is an error."""
    found: dict[str, str] = {}
    for index, word in enumerate(argv):
        if word.startswith("--"):
            assert word not in found, f"{word} twice"
            following = argv[index + 1 : index + 2]
            found[word] = following[0] if following and not following[0].startswith("--") else ""
    return found


def test_the_command_says_everything(tmp_path: Path) -> None:
    argv = client_argv(a_job(tmp_path, max_concurrency=4, percentiles=(50.0, 99.9)))
    assert argv[:4] == (*FAKE, "bench", "serve")
    said = options(argv)
    assert (said["--model"], said["--served-model-name"], said["--tokenizer"]) == (
        "/models/toy",
        "served",
        "/models/tokens",
    )
    assert (said["--backend"], said["--endpoint"]) == ("openai-chat", "/v1/chat/completions")
    assert said["--base-url"] == "http://127.0.0.1:9"
    assert said["--max-concurrency"] == "4"
    assert said["--percentile-metrics"] == "ttft,tpot,itl,e2el"
    assert said["--metric-percentiles"] == "50,99.9"
    # The client's own test request and warm-up would send the first measured prompt ahead of the load.
    assert (said["--ready-check-timeout-sec"], said["--num-warmups"]) == ("0", "0")
    assert {"--ignore-eos", "--save-result", "--save-detailed", "--num-prompts"} <= set(said)
    assert (said["--result-dir"], said["--result-filename"]) == (str(tmp_path), "round-0.result.json")
    assert "--trust-remote-code" not in said
    assert "secret" not in printable(argv)


def test_ignore_eos_is_a_choice(tmp_path: Path) -> None:
    assert "--ignore-eos" not in client_argv(a_job(tmp_path, ignore_eos=False))
    assert "--max-concurrency" not in client_argv(a_job(tmp_path))


def test_an_old_client_is_spoken_to_in_its_words(tmp_path: Path) -> None:
    said = options(client_argv(a_job(tmp_path, help=OLD)))
    assert said["--endpoint-type"] == "openai-chat"
    assert not {"--backend", "--num-warmups", "--ready-check-timeout-sec"} & set(said)
    assert {"--model", "--served-model-name", "--tokenizer"} <= set(said)


def test_an_unknown_client_is_taken_for_a_recent_one(tmp_path: Path) -> None:
    said = options(client_argv(a_job(tmp_path, help=None)))
    assert said["--backend"] == "openai-chat"
    assert "--ready-check-timeout-sec" not in said


def test_zero_is_not_said_where_it_means_give_up_at_once(tmp_path: Path) -> None:
    text = "  --ready-check-timeout-sec READY_CHECK_TIMEOUT_SEC\n      Maximum time to wait (default: 600)\n"
    assert "--ready-check-timeout-sec" not in client_argv(a_job(tmp_path, help=parse_help(text)))


@pytest.mark.parametrize(
    ("help_", "flags", "spelled", "endpoint"),
    [
        (NEW, {"backend": "openai"}, ("--backend", "openai"), "/v1/completions"),
        (NEW, {"endpoint_type": "vllm"}, ("--backend", "vllm"), "/v1/completions"),
        (OLD, {"backend": "openai"}, ("--endpoint-type", "openai"), "/v1/completions"),
        (NEW, {"endpoint": "/v2/chat/completions"}, ("--backend", "openai-chat"), "/v2/chat/completions"),
    ],
)
def test_the_user_may_choose_the_endpoint(
    tmp_path: Path, help_: CommandHelp, flags: dict[str, Any], spelled: tuple[str, str], endpoint: str
) -> None:
    said = options(client_argv(a_job(tmp_path, help=help_, flags=flags)))
    assert said[spelled[0]] == spelled[1]
    assert said["--endpoint"] == endpoint
    assert len({"--backend", "--endpoint-type"} & set(said)) == 1


def test_further_flags_are_passed_on(tmp_path: Path) -> None:
    flags = {"temperature": 0.0, "trust_remote_code": True, "goodput": ["ttft:500", "e2el:9000"]}
    argv = client_argv(a_job(tmp_path, flags=flags))
    assert "--temperature 0 --trust-remote-code --goodput ttft:500 e2el:9000" in printable(argv)


@pytest.mark.parametrize("name", ["model", "num_prompts", "--seed", "result-dir", "num-warmups", "output-len", "host"])
def test_what_the_study_decides_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FlagError, match=rf"^load\.flags: '{name}' cannot be set here; use "):
        client_argv(a_job(tmp_path, flags={name: 1}))
    check_load_flags(["temperature", "goodput", "extra-body"], what="load.flags")


def test_an_unknown_backend_needs_an_endpoint(tmp_path: Path) -> None:
    with pytest.raises(FlagError, match="endpoint"):
        client_argv(a_job(tmp_path, flags={"backend": "odd"}))


def test_the_key_is_not_shown(tmp_path: Path) -> None:
    assert "secret" not in repr(a_job(tmp_path))


# The result file.


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
    return LoadOutcome(requests, duration_s, summary, 0.0)


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


# Time.


def test_the_time_limit_follows_from_the_load() -> None:
    plan = a_round(10, rate=2.0)
    assert plan.last_send_s == pytest.approx(5.0)
    assert time_limit_s(plan, request_timeout_s=60.0, max_concurrency=None, startup_allowance_s=100.0) == (
        pytest.approx(165.0)
    )
    assert time_limit_s(plan, request_timeout_s=60.0, max_concurrency=4, startup_allowance_s=100.0) == (
        pytest.approx(285.0)
    )


def test_the_clock_sees_a_stall_and_a_straggler() -> None:
    plan = a_round(4)  # all at once
    clock = RequestClock(plan, began_at=100.0, max_concurrency=None, limit_s=10.0)
    assert clock.overdue(105.0, 2) is None
    assert clock.overdue(109.9, 3) is None
    assert clock.overdue(110.5, 3) == "timeout_load"
    stalled = RequestClock(plan, began_at=100.0, max_concurrency=None, limit_s=10.0)
    assert stalled.overdue(101.0, 0) is None
    assert stalled.overdue(112.0, 0) == "no_progress"
    done = RequestClock(plan, began_at=100.0, max_concurrency=None, limit_s=10.0)
    assert done.overdue(101.0, 4) is None
    assert done.overdue(500.0, 4) is None


def test_the_clock_knows_what_was_not_sent_yet() -> None:
    plan = dataclasses.replace(a_round(3), arrivals_s=(0.0, 100.0, 200.0), lead_s=5.0)
    clock = RequestClock(plan, began_at=0.0, max_concurrency=None, limit_s=10.0)
    for now, finished in ((4.0, 0), (14.0, 0), (15.1, 1), (90.0, 1), (114.0, 1)):
        assert clock.overdue(now, finished) is None
    assert clock.overdue(116.0, 1) == "no_progress"


def test_the_clock_knows_what_waits_for_a_slot() -> None:
    # Two at a time, each 6 s: the last pair ends at 18 s and nothing is late, although all were due at once.
    clock = RequestClock(a_round(6), began_at=0.0, max_concurrency=2, limit_s=10.0)
    assert all(clock.overdue(now, 2 * (now // 6)) is None for now in range(1, 30))
    # One of the first two never ends: the other slot goes on alone, and the clock tells.
    clock = RequestClock(a_round(6), began_at=0.0, max_concurrency=2, limit_s=10.0)
    verdicts = [clock.overdue(now, min(5, now // 3)) for now in range(1, 40)]
    assert verdicts[9] is None
    assert next(verdict for verdict in verdicts if verdict) in ("timeout_load", "no_progress")


def test_the_bar_is_read_from_where_the_log_ends(tmp_path: Path) -> None:
    log = tmp_path / "client.log"
    log.write_bytes(b"99%| 5/6 [of an earlier attempt")
    bar = ProgressBar(log, 6)
    assert not bar.update()
    with log.open("ab") as file:
        for text, begun, done in (
            (b"Starting main benchmark run...\n", True, None),
            (b"\r  0%|          | 0/6 [00:00<?, ?it/s]", True, 0),
            (b"\r 33%|###       | 2/", True, 0),
            (b"6 [00:01<00:02,  1.9it/s] 7/60 [ 12/24 [", True, 2),
        ):
            file.write(text)
            file.flush()
            bar.update()
            assert (bar.begun, bar.done) == (begun, done)
    assert not bar.update()


# The process.

Client = Callable[..., LoadOutcome]


@contextmanager
def a_server(folder: Path, fake: dict[str, Any]) -> Iterator[VllmServer]:
    """A fake server, started through the real `server` and ready."""
    with reserve_port() as port:
        key = new_api_key()
        env = child_environment(os.environ, visible_devices=None, extra={}, api_key=key)
        launch = Launch(
            argv=(*FAKE, "serve", "m", "--port", str(port.port), "--served-model-name", "served"),
            env={**env, "FAKE_VLLM": json.dumps({"ttft_ms": 5, "itl_ms": 1, **fake})},
            log_path=folder / "server.log",
            record_path=folder / "server.json",
            host="127.0.0.1",
            port=port.port,
            served_name="served",
            api_key=key,
            startup_timeout_s=30.0,
            stop_timeout_s=2.0,
        )
        server = VllmServer.start(launch)
        try:
            server.wait_ready()
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="module")
def good_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with a_server(tmp_path_factory.mktemp("server"), {}) as server:
        yield server


@pytest.fixture
def load(tmp_path: Path, good_server: VllmServer) -> Client:
    """Send a round through the fake client, to a good server or to one with a fault."""

    def send(fake: dict[str, Any] | None = None, client: dict[str, Any] | None = None, **changes: Any) -> LoadOutcome:
        with a_server(tmp_path, fake) if fake else nullcontext(good_server) as server:
            watch = {name: changes.pop(name) for name in ("on_tick", "on_progress") if name in changes}
            plan = changes.pop("plan", None) or a_round()
            key = server.launch.api_key
            extra = {"FAKE_VLLM": json.dumps({"client": client or {}})}
            job = a_job(
                tmp_path,
                plan,
                env=child_environment(os.environ, visible_devices="", extra=extra, api_key=key),
                base_url=server.base_url,
                file=write_round(plan, tmp_path, name="round-0"),
                stop_timeout_s=0.5,
                **changes,
            )
            return run(job, still_alive=lambda: server.exit_code() is None, **watch)

    return send


def refused(load: Client, *args: Any, **changes: Any) -> LoadFailed:
    with pytest.raises(LoadFailed) as caught:
        load(*args, **changes)
    assert caught.value.reason in REASONS
    return caught.value


def test_a_load_from_end_to_end(load: Client, tmp_path: Path) -> None:
    ticks: list[None] = []
    seen: list[tuple[int, int]] = []
    outcome = load(
        plan=a_round(8, rate=20.0),
        on_tick=lambda: ticks.append(None),
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert [request.prompt_id for request in outcome.requests] == [f"prompt-{index}" for index in range(8)]
    assert {request.error for request in outcome.requests} == {None}
    assert {request.output_tokens for request in outcome.requests} == {8}
    assert outcome.remarks == ()
    assert outcome.took_s >= outcome.duration_s
    ours = summarize(outcome.requests, outcome.duration_s, percentiles=(50, 95, 99), slo={})
    assert {name: outcome.summary[name] for name in ours} == pytest.approx(ours)
    assert ticks
    assert seen[-1] == (8, 8)
    assert seen == sorted(set(seen))
    assert not list((tmp_path / "records").iterdir())


def test_a_result_left_by_another_run_is_never_taken(load: Client, tmp_path: Path) -> None:
    load()
    assert (tmp_path / "round-0.result.json").exists()
    assert refused(load, None, {"result": "none"}).reason == "result_missing"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("none", "result_missing"),
        ("html", "result_malformed"),
        ("negative", "implausible_latency"),
        ("null", "implausible_latency"),
    ],
)
def test_a_client_that_ends_well_with_a_bad_file(load: Client, fault: str, reason: str) -> None:
    failure = refused(load, None, {"result": fault})
    assert (failure.reason, failure.exit_code) == (reason, 0)


@pytest.mark.parametrize(("client", "code"), [({"exit_code": 3}, 3), ({"exit_signal": 9}, -9)])
def test_a_client_that_ends_badly(load: Client, client: dict[str, Any], code: int) -> None:
    failure = refused(load, None, client)
    assert (failure.reason, failure.exit_code) == ("client_exit", code)


@pytest.mark.parametrize(
    ("fake", "reason"),
    [
        ({"all_500": True}, "success_rate"),
        ({"engine_dies_at": 2}, "incomplete_outputs"),
        ({"die_mid_stream": 4, "itl_ms": 20}, "server_died"),
        ({"die_at_request": 4}, "server_died"),
        ({"stop_after": 1}, "incomplete_outputs"),
    ],
)
def test_a_server_that_fails_under_load(load: Client, fake: dict[str, Any], reason: str) -> None:
    assert refused(load, fake, ignore_eos=False).reason == reason


@pytest.mark.parametrize("fake", [{"endless_stream_at": 4, "itl_ms": 20}, {"hang_at": 4}])
def test_a_request_that_never_ends_is_cut(load: Client, fake: dict[str, Any]) -> None:
    # Case 23: the client itself would wait for six hours and write nothing.
    failure = refused(load, fake, request_timeout_s=0.5)
    assert failure.reason in ("no_progress", "timeout_load")
    assert "unfinished after 0.5 s" in str(failure)


def test_a_client_that_sends_nothing_is_cut(load: Client) -> None:
    failure = refused(load, None, {"hang": True, "ignore_sigterm": True}, startup_allowance_s=0.6)
    assert failure.reason == "timeout_load"
    assert "sent nothing" in str(failure)


def test_without_a_bar_the_whole_load_has_its_limit(load: Client) -> None:
    failure = refused(
        load, {"hang_at": 4}, request_timeout_s=1.0, startup_allowance_s=1.0, flags={"disable-tqdm": True}
    )
    assert failure.reason == "timeout_load"
    assert "not over after 2 s" in str(failure)


def test_no_client_outlives_an_error_of_its_caller(load: Client, tmp_path: Path) -> None:
    record = tmp_path / "records" / "client.json"
    pids: list[int] = []

    def fail() -> None:
        pids.append(json.loads(record.read_text())["child"][0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(None, {"hang": True}, on_tick=fail)
    assert len(pids) == 1
    assert not alive(pids)


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="/absent/vllm"):
        run(a_job(tmp_path, command=("/absent/vllm", "bench", "serve")), still_alive=lambda: True)


def test_a_client_that_sends_its_first_prompt_ahead_is_remarked(load: Client) -> None:
    # The fake takes any flags; what is looked at is its help.
    help_ = parse_help("\n".join(f"  --{name}" for name in NEW.options if name != "ready-check-timeout-sec"))
    (remark,) = load(None, help=help_).remarks
    assert "first prompt" in remark


@pytest.mark.vllm
def test_the_real_client_sends_the_plan(tmp_path: Path, load: Client) -> None:
    """`vllm bench serve` itself against the fake server: its numbers, its requests, its arrival times."""
    found = installed()
    if found is None:
        pytest.skip("no vLLM is installed")
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    # One word, one token: enough of a tokenizer for the client.
    words = {word: index for index, word in enumerate(["?", "abc", "ok,", "done.", *(f"{i:04d}" for i in range(8))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "?"}')
    plan = a_round(8, rate=4.0, seed=11)
    outcome = load(
        plan=plan,
        command=found.client_command,
        model=str(folder),
        tokenizer=str(folder),
        percentiles=(50.0, 95.0, 99.9),
    )
    assert [request.error for request in outcome.requests] == [None] * 8
    # The server counts prompts by its own rule, four characters a token, to which our prompts keep.
    assert [request.input_tokens for request in outcome.requests] == [one.input_tokens for one in plan.prompts]
    assert {request.output_tokens for request in outcome.requests} == {8}
    starts = [request.start_s for request in outcome.requests if request.start_s is not None]
    assert starts == sorted(starts)
    assert len(starts) == 8
    assert all(start >= due - 1e-6 for start, due in zip(starts, plan.arrivals_s, strict=True))
    ours = summarize(outcome.requests, outcome.duration_s, percentiles=(50, 95, 99.9), slo={})
    theirs = {name: value for name, value in outcome.summary.items() if name in ours}
    assert len(theirs) == 4 * 6 + 3 + 1
    assert {name: ours[name] for name in theirs} == pytest.approx(theirs)
