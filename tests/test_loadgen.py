"""The load client's process: watched, timed and ended, against the executable fake and once for real."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from load_jobs import FAKE, NEW, a_job, a_round
from waiting import alive

from sweep.errors import HostError, LoadFailed
from sweep.flags import parse_help
from sweep.loadgen import REASONS, LoadOutcome, run, time_limit_s
from sweep.loadgen.progress import ProgressBar, RequestClock
from sweep.metrics import summarize
from sweep.server import Launch, VllmServer, child_environment, new_api_key, reserve_port
from sweep.vllm_cpu import installed
from sweep.workload import write_round


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
            startup_timeout_s=300.0,
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
            watch = {name: changes.pop(name) for name in ("on_begin", "on_tick", "on_progress") if name in changes}
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
    begun: list[float] = []
    ticks: list[None] = []
    seen: list[tuple[int, int]] = []
    outcome = load(
        plan=a_round(8, rate=8.0),
        on_begin=lambda: begun.append(time.monotonic()),
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
    # Seen a quarter of a second late at most, and on a busy machine some more.
    assert begun == [pytest.approx(outcome.began_s, abs=0.05)]
    assert outcome.began_s + outcome.duration_s < time.monotonic() + 1.0
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
