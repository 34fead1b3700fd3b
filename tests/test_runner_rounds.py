"""A trial's load in rounds: what each leaves, who may stop it between and within them, and what spoils one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_study
import pytest
from fake_engine import Fault

from sweep.config import load
from sweep.gpu import Gpus
from sweep.metrics import summarize
from sweep.objective import Objective
from sweep.prepare import prepare
from sweep.redact import Redactor
from sweep.runner import RoundProgress, RoundReport, TrialSetup, run_trial
from sweep.trial import Phase, TrialKind, TrialResult, TrialSpec, TrialStatus
from sweep.workload import LoadPlan, Round, arrival_times

FLAGS = {"max-num-seqs": 64, "gpu-memory-utilization": 0.8}
ROUNDS, PROMPTS = 3, 14
SIZES = [5, 5, 4]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialSetup]:
    """The setup of a study of three rounds, with prompts held out, prepared once."""
    folder = tmp_path_factory.mktemp("rounds")
    changes = {"rounds": ROUNDS, "num_prompts": PROMPTS, "held_out_share": 0.3}
    with pytest.MonkeyPatch.context() as patch, Gpus() as gpus:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        path = fake_study.write(
            folder / "study.yaml", fake_study.study(folder, load=changes, confirm={"candidates": 1})
        )
        yield prepare(load(path), path, folder / "results" / "night", gpus).setup


Run = Callable[..., TrialResult]


@pytest.fixture
def run(tmp_path: Path, shared: TrialSetup) -> Run:
    """Run a trial of the fake; `hooks` go to `run_trial`, all else into the setup."""

    def one(
        fake: dict[str, Any] | None = None,
        *,
        block: int | None = None,
        hooks: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        **changes: Any,
    ) -> TrialResult:
        behaviour = json.dumps({"ttft_ms": 2, "itl_ms": 0.2, "seed": 1, **(fake or {})})
        settings: dict[str, Any] = {
            "folder": tmp_path,
            "server_env": {"FAKE_VLLM": behaviour, **(env or {})},
            "client_env": {"FAKE_VLLM": behaviour},
            "max_retries": 0,
            **changes,
        }
        setup = dataclasses.replace(shared, **settings)
        spec = TrialSpec(0, TrialKind.BASELINE, FLAGS, block=block)
        with Gpus() as gpus:
            return run_trial(spec, setup, redactor=Redactor({}), gpus=gpus, **(hooks or {})).result

    return one


def prompts_of(plan: LoadPlan) -> list[str]:
    return [prompt.prompt_id for one in plan.rounds for prompt in one.prompts]


def test_rounds_on_one_server(run: Run, shared: TrialSetup) -> None:
    result = run()
    assert result.status is TrialStatus.COMPLETE
    assert [one.prompts for one in result.rounds] == [one.completed for one in result.rounds] == SIZES
    assert [one.round for one in result.rounds] == [0, 1, 2]
    assert [request.round for request in result.requests] == [0] * 5 + [1] * 5 + [2] * 4
    assert [request.prompt_id for request in result.requests] == prompts_of(shared.plan)
    # One server: its counters cover the readiness check, the warm-up and all rounds.
    assert [event.phase for event in result.events if event.kind == "phase"].count(Phase.START) == 1
    assert result.engine[-1].requests_finished == 1 + 2 + PROMPTS
    assert [event.detail.split(" requests")[0] for event in result.events if event.kind == "round"] == [
        "round 1: 5 of 5",
        "round 2: 5 of 5",
        "round 3: 4 of 4",
    ]


def test_metrics_pool_the_rounds(run: Run, shared: TrialSetup) -> None:
    result = run()
    assert result.load_s == pytest.approx(sum(one.duration_s for one in result.rounds))
    assert result.load_s is not None
    assert result.metrics is not None
    pooled = summarize(result.requests, result.load_s, percentiles=(95,), slo={})
    assert {name: result.metrics[name] for name in pooled} == pooled
    assert result.metrics["request_throughput_per_s"] == pytest.approx(PROMPTS / result.load_s)
    assert result.score is not None
    assert result.score.value == pytest.approx(1.0)  # the pooled baseline against itself
    for one, score in zip(result.rounds, result.round_scores, strict=True):
        own = [request for request in result.requests if request.round == one.round]
        figures = summarize(own, one.duration_s, percentiles=(95, 99), slo={})
        assert score == pytest.approx(shared.objective.score(figures, result.metrics).value)


def test_each_request_rate_has_metrics_of_its_own(run: Run, shared: TrialSetup) -> None:
    rates = (100.0, 200.0, 100.0)
    turns = tuple(one.at(rate) for one, rate in zip(shared.plan.rounds, rates, strict=True))
    goal = Objective.of("balanced", {}, {"p95_ttft_ms": 1e6}, rates=(100.0, 200.0))
    result = run(plan=dataclasses.replace(shared.plan, rounds=turns), objective=goal)
    assert result.metrics is not None
    assert result.score is not None
    own = [request for request in result.requests if request.round == 1]
    figures = summarize(own, result.rounds[1].duration_s, percentiles=(95, 99), slo={"p95_ttft_ms": 1e6})
    assert {name: result.metrics[f"{name}@200"] for name in figures} == figures
    assert set(result.score.violations) == {"p95_ttft_ms@100", "p95_ttft_ms@200"}
    assert result.score.value == pytest.approx(1.0)
    # Of the rate that has one round, that round is all there is.
    assert result.round_scores[1] == pytest.approx(1.0)
    assert len(result.round_scores) == 3
    assert None not in result.round_scores


def test_what_a_round_leaves(run: Run) -> None:
    rounds = run().rounds
    for one in rounds:
        assert one.attempt == 1
        assert one.took_s > one.duration_s > 0
        assert one.request_rate_per_s is None
        assert one.output_tokens == 4 * one.completed
        assert one.failed == 0
        assert one.prefix_cache_reset is True
        assert one.prefix_hit_share == 0.0
        assert one.preemptions == 0
        assert one.mean_queue_time_ms is not None
        assert one.p99_lag_ms is not None
        assert one.max_lag_ms is not None
        assert 0 <= one.p99_lag_ms <= one.max_lag_ms
        assert one.p50_ttft_ms is not None
        assert one.p95_e2el_ms is not None
        assert 2 <= one.p50_ttft_ms < one.p95_e2el_ms
    assert [one.began_at_s for one in rounds] == sorted(one.began_at_s for one in rounds)
    assert rounds[1].began_at_s > rounds[0].began_at_s + rounds[0].duration_s


def test_a_block_is_a_load_of_its_own(run: Run, shared: TrialSetup, tmp_path: Path) -> None:
    assert len(shared.confirmation) > 3
    sent = [request.prompt_id for request in run(block=1).requests]
    assert sent == prompts_of(shared.confirmation[1])
    assert not set(sent) & set(prompts_of(shared.plan))
    assert (tmp_path / "load" / "block-1-round-0.json").exists()
    assert (
        shared.plan_for(TrialSpec(1, TrialKind.CONFIRM, {}, block=len(shared.confirmation) + 1))
        is shared.confirmation[1]
    )
    with pytest.raises(ValueError, match="held out"):
        dataclasses.replace(shared, confirmation=()).plan_for(TrialSpec(1, TrialKind.CONFIRM, {}, block=0))


# Stopping early


def test_a_trial_is_stopped_after_a_round(run: Run) -> None:
    asked: list[RoundReport] = []

    def hopeless(report: RoundReport) -> str | None:
        asked.append(report)
        return "twice as slow as the best so far" if report.round == 1 else None

    result = run(hooks={"after_round": hopeless})
    assert result.status is TrialStatus.CENSORED
    assert result.stopped_because == "twice as slow as the best so far"
    assert result.failure is None
    assert [one.round for one in result.rounds] == [0, 1]
    assert len(result.requests) == 10
    assert result.metrics is not None
    assert result.load_s is not None
    assert result.metrics["request_throughput_per_s"] == pytest.approx(10 / result.load_s)
    assert len(result.round_scores) == 2
    assert [(report.round, report.planned) for report in asked] == [(0, 3), (1, 3)]
    assert [len(part) for part in asked[1].requests] == [5, 5]
    assert asked[1].rounds == tuple(dataclasses.replace(one, client_cpu_percent=None) for one in result.rounds)
    assert asked[1].engine[-1].requests_finished == 1 + 2 + 10
    assert asked[1].elapsed_s > asked[0].elapsed_s
    (event,) = [event for event in result.events if event.kind == "stopped early"]
    assert event.detail == "2 of 3 rounds: twice as slow as the best so far"


def test_nobody_is_asked_after_the_last_round(run: Run) -> None:
    asked: list[int] = []
    result = run(hooks={"after_round": lambda report: asked.append(report.round)})
    assert result.status is TrialStatus.COMPLETE
    assert asked == [0, 1]


def test_a_round_is_cut_at_once_and_its_requests_are_lost(run: Run) -> None:
    seen: list[RoundProgress] = []

    def stalled(progress: RoundProgress) -> str | None:
        seen.append(progress)
        return "the queue grows without end" if progress.round == 1 else None

    # The third request of round 2 is never answered.
    result = run({"hang_at": 8}, hooks={"during_round": stalled}, request_timeout_s=60.0)
    assert (result.status, result.stopped_because) == (TrialStatus.CENSORED, "the queue grows without end")
    assert [one.round for one in result.rounds] == [0]
    assert len(result.requests) == 5
    last = seen[-1]
    assert (last.number, last.round, last.planned, last.total) == (0, 1, 3, 5)
    assert 0 <= last.done < 5
    assert [len(part) for part in last.requests] == [5]
    assert result.rounds[0].began_at_s < last.began_at_s
    assert last.engine[-1].at_s > result.rounds[0].began_at_s


def test_a_trial_cut_in_its_first_round_has_no_numbers(run: Run) -> None:
    result = run({"hang_at": 1}, hooks={"during_round": lambda _progress: "nothing moves"}, request_timeout_s=60.0)
    assert result.status is TrialStatus.CENSORED
    assert (result.rounds, result.requests) == ((), ())
    assert result.metrics is not None
    assert set(result.metrics.values()) == {None}
    assert result.score is not None
    assert result.score.value is None


# The prefix cache


def twice_the_same(shared: TrialSetup) -> LoadPlan:
    first = shared.plan.rounds[0]
    return dataclasses.replace(shared.plan, rounds=(first, first))


def test_a_round_finds_the_prefix_cache_empty(run: Run, shared: TrialSetup) -> None:
    result = run(plan=twice_the_same(shared))
    assert [one.prefix_hit_share for one in result.rounds] == [0.0, 0.0]
    assert not any("prefix" in remark for remark in result.remarks)


def test_a_cache_that_cannot_be_emptied_is_said_once(run: Run, shared: TrialSetup) -> None:
    result = run(plan=twice_the_same(shared), env={"VLLM_SERVER_DEV_MODE": "0"})
    assert result.status is TrialStatus.COMPLETE
    assert [one.prefix_cache_reset for one in result.rounds] == [False, False]
    assert [one.prefix_hit_share for one in result.rounds] == [0.0, 1.0]
    (event,) = [event for event in result.events if event.kind == "prefix cache"]
    assert "404" in event.detail
    (remark,) = [remark for remark in result.remarks if "prefix" in remark]
    assert "from 0% in round 1 to 100% in round 2" in remark


@pytest.mark.parametrize(
    ("host", "env", "mode"),
    [
        ("127.0.0.1", {}, "1"),
        ("::1", {}, "1"),
        ("localhost", {}, "1"),
        ("0.0.0.0", {}, None),
        ("10.0.0.7", {}, None),
        ("gpu-7", {}, None),
        ("127.0.0.1", {"VLLM_SERVER_DEV_MODE": "0"}, "0"),
        ("0.0.0.0", {"VLLM_SERVER_DEV_MODE": "1"}, "1"),
    ],
)
def test_development_endpoints_are_open_to_this_machine_alone(
    shared: TrialSetup, host: str, env: dict[str, str], mode: str | None
) -> None:
    setup = dataclasses.replace(shared, host=host, server_env=env)
    assert setup.launch_env().get("VLLM_SERVER_DEV_MODE") == mode
    assert "DEV_MODE" not in dataclasses.replace(setup, server_env={}).command_line({})


# What spoils a round


def at_rate(plan: LoadPlan, rate: float) -> LoadPlan:
    def one(part: Round) -> Round:
        times = arrival_times(len(part.prompts), request_rate=rate, burstiness=1.0, seed=part.seed)
        return dataclasses.replace(
            part, request_rate=rate, arrivals_s=tuple(time - times[0] for time in times), lead_s=times[0]
        )

    return dataclasses.replace(plan, rounds=tuple(map(one, plan.rounds)))


@pytest.mark.night
def test_a_client_that_sends_late_spoils_the_trial(run: Run, shared: TrialSetup) -> None:
    two = dataclasses.replace(shared.plan, rounds=shared.plan.rounds[1:])
    late, rated = {"client": {"late_ms": 400}}, at_rate(two, 200.0)
    result = run(late, plan=rated)
    assert result.attempts == 2  # once more, as after any other disturbance
    assert result.status is TrialStatus.COMPLETE
    assert [text.split(" sends")[0] for text in result.disturbances] == [
        f"round {number}: the load client" for number in (1, 2)
    ]
    for one in result.rounds:
        assert one.request_rate_per_s == 200
        assert one.p99_lag_ms is not None
        assert one.p99_lag_ms > 250
        assert len(one.disturbed) == 1
    # Its slots, not the client, are what a request waits for under a limit; and a burst has no plan to be late by.
    assert run(late, plan=rated, max_concurrency=64).disturbances == ()
    assert run(late, plan=two).disturbances == ()


# Success and warm-up


def failing(share: float, failures: list[int]) -> dict[str, Any]:
    """A fake that refuses just so many requests in each round."""
    for seed in range(10_000):
        config = {"fail_share": share, "seed": seed}
        refused = [Fault.of(config, number).refuse for number in range(1, PROMPTS + 1)]
        if [sum(refused[:5]), sum(refused[5:10]), sum(refused[10:])] == failures:
            return config
    raise AssertionError("no seed refuses these")


def test_the_share_that_must_succeed_is_that_of_the_trial(run: Run) -> None:
    # 0.8 of 14 are 12: two may fail, wherever.
    result = run(failing(0.15, [0, 2, 0]), min_success_share=0.8)
    assert result.status is TrialStatus.COMPLETE
    assert [one.failed for one in result.rounds] == [0, 2, 0]
    assert run(failing(0.2, [0, 2, 1]), min_success_share=0.8).status is TrialStatus.FAILED


@pytest.mark.parametrize(("limit", "at_once"), [(None, 12), pytest.param(5, 5, marks=pytest.mark.night)])
def test_warm_up_is_as_concurrent_as_the_load(run: Run, shared: TrialSetup, limit: int | None, at_once: int) -> None:
    warmup, first = shared.plan.warmup, shared.plan.rounds[0]
    assert warmup is not None
    prompts = tuple(prompt for one in shared.confirmation[0].rounds for prompt in one.prompts)[:12]
    plan = LoadPlan(
        dataclasses.replace(warmup, prompts=prompts),
        (dataclasses.replace(first, prompts=first.prompts[:1], arrivals_s=(0.0,)),),
    )
    # The engine is looked at once a second, so each request takes longer than that.
    result = run({"ttft_ms": 1300}, plan=plan, max_concurrency=limit)
    assert max(sample.running or 0 for sample in result.engine if sample.phase == Phase.WARMUP) == at_once
