"""One trial, without Ray, on the executable fake: a good one, and each way to fail."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fake_study
import pytest
from waiting import alive

from sweep.config import load
from sweep.gpu import Gpus
from sweep.journal import read_events
from sweep.prepare import prepare
from sweep.redact import Redactor
from sweep.runner import TrialOutcome, TrialSetup, run_trial
from sweep.server import port_free
from sweep.trial import Phase, TrialKind, TrialSpec, TrialStatus

FLAGS = {"max-num-seqs": 64, "gpu-memory-utilization": 0.8}
PROMPTS = 12


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialSetup]:
    """The setup of a study of the fake, prepared once."""
    folder = tmp_path_factory.mktemp("runner")
    with pytest.MonkeyPatch.context() as patch, Gpus() as gpus:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        path = fake_study.write(folder / "study.yaml", fake_study.study(folder))
        yield prepare(load(path), path, folder / "results" / "night", gpus).setup


@dataclasses.dataclass
class Bench:
    """Runs trials of the fake in a folder of its own, and looks that nothing is left of them."""

    folder: Path
    setup: TrialSetup

    def run(self, fake: Mapping[str, Any] | None = None, **changes: Any) -> TrialOutcome:
        """One trial; `changes` are fields of the setup. Retries are off unless asked for."""
        behaviour = {"ttft_ms": 2, "itl_ms": 0.2, "seed": 1, "dump_argv": str(self.folder / "argv.json"), **(fake or {})}
        setup = dataclasses.replace(
            self.setup,
            **{
                "folder": self.folder,
                "served_name": self.folder.name,
                "server_env": {"FAKE_VLLM": json.dumps(behaviour)},
                "client_env": {"FAKE_VLLM": json.dumps(behaviour)},
                "max_retries": 0,
                **changes,
            },
        )
        spec = TrialSpec(0, TrialKind.BASELINE, FLAGS)
        with Gpus() as gpus:
            outcome = run_trial(spec, setup, redactor=Redactor({}), gpus=gpus)
        self.assert_nothing_left()
        return outcome

    def assert_nothing_left(self) -> None:
        assert fake_study.processes_with(self.folder.name) == []
        assert list((self.folder / "processes").glob("*")) == []
        argv = json.loads((self.folder / "argv.json").read_text())
        assert port_free(argv[argv.index("--host") + 1], int(argv[argv.index("--port") + 1]))


@pytest.fixture
def bench(tmp_path: Path, shared: TrialSetup) -> Bench:
    # The name occurs on the command lines of server and client, and nowhere else.
    folder = tmp_path / f"trial-{tmp_path.name}-{id(tmp_path):x}"
    folder.mkdir()
    return Bench(folder, shared)


def assert_failed(outcome: TrialOutcome) -> None:
    """No metrics, no score, a cause: what every failed trial has."""
    result = outcome.result
    assert result.status is not TrialStatus.COMPLETE
    assert result.metrics is None
    assert result.score is None
    assert result.requests == ()
    assert result.failure is not None
    assert result.failure.advice
    assert [event.kind for event in result.events].count("failed") == result.attempts


def test_good_trial(bench: Bench) -> None:
    outcome = bench.run()
    result = outcome.result
    assert result.status is TrialStatus.COMPLETE
    assert result.failure is None
    assert result.attempts == 1
    assert len(result.requests) == PROMPTS
    assert all(request.error is None and request.output_tokens == 4 for request in result.requests)
    assert all(request.ttft_ms is not None and request.ttft_ms >= 2 for request in result.requests)
    assert result.score is not None
    assert result.score.value == pytest.approx(1.0)  # the baseline against itself
    assert result.metrics is not None
    ttfts = sorted(request.ttft_ms or 0.0 for request in result.requests)
    assert result.metrics["p50_ttft_ms"] == pytest.approx((ttfts[5] + ttfts[6]) / 2)
    assert result.load_s is not None
    assert result.metrics["request_throughput_per_s"] == pytest.approx(PROMPTS / result.load_s)
    phases = [event.phase for event in result.events if event.kind == "phase"]
    assert phases == [Phase.HOST, Phase.START, Phase.READY, Phase.WARMUP, Phase.LOAD, Phase.STOP]
    assert read_events(bench.folder / "logs" / "0000") == result.events


def test_engine_own_view(bench: Bench) -> None:
    result = bench.run({"prefix_caching": True}).result
    assert result.engine_config.block_size is not None
    assert result.engine_config.kv_tokens is not None
    before, after = result.engine[0], result.engine[-1]
    assert before.requests_finished is not None
    assert after.requests_finished is not None
    # The one completion of readiness, the warm-up and the measured load; nothing else is sent.
    assert after.requests_finished == 1 + 2 + PROMPTS
    assert after.generation_tokens == 1 + 2 * 4 + PROMPTS * 4


def test_command_is_what_a_person_would_type(bench: Bench) -> None:
    command = bench.run().result.command
    words = command.split()
    assert words[:3] == [sys.executable, fake_study.FAKE, "serve"]
    assert "--max-num-seqs 64" in command
    assert "--gpu-memory-utilization 0.8" in command
    assert f"--served-model-name {bench.folder.name}" in command
    assert "--port" not in words
    assert "--host" not in words
    real = json.loads((bench.folder / "argv.json").read_text())
    assert words[3:] == [word for word in real if word in words[3:]]
    assert real[real.index("--host") + 1] == "127.0.0.1"


# What the fake does, changes of the setup, and the class and status that it must come to.
INFEASIBLE, FAILED = TrialStatus.INFEASIBLE, TrialStatus.FAILED
FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], str | None, TrialStatus]] = {
    "every request 500": ({"all_500": True}, {}, "client_error", FAILED),
    "server exits in mid-load": ({"die_at_request": 9, "die_code": 0}, {}, "engine_died", FAILED),
    "server killed in mid-load": ({"die_at_request": 9, "die_signal": 9}, {}, "engine_died", FAILED),
    "server dies in mid-stream": ({"die_mid_stream": 4}, {}, "engine_died", FAILED),
    "engine dies after the first token of each stream": ({"one_token_from": 1}, {}, "load_oom", INFEASIBLE),
    "engine dies out of memory under load": ({"engine_dies_at": 6}, {}, "load_oom", INFEASIBLE),
    "server dies out of memory under load": (
        {"die_at_request": 6, "die_log": "@oom_load"},
        {},
        "load_oom",
        INFEASIBLE,
    ),
    "no result": ({"client": {"result": "none"}}, {}, "client_error", FAILED),
    "empty result": ({"client": {"result": "empty"}}, {}, "client_error", FAILED),
    "result is HTML": ({"client": {"result": "html"}}, {}, "client_error", FAILED),
    "result is {}": ({"client": {"result": "braces"}}, {}, "client_error", FAILED),
    "result cut short": ({"client": {"result": "truncated"}}, {}, "client_error", FAILED),
    "latencies NaN": ({"client": {"result": "nan"}}, {}, "client_error", FAILED),
    "latencies zero": ({"client": {"result": "zero"}}, {}, "client_error", FAILED),
    "latencies negative": ({"client": {"result": "negative"}}, {}, "client_error", FAILED),
    "latencies null": ({"client": {"result": "null"}}, {}, "client_error", FAILED),
    "client fails": ({"client": {"exit_code": 1}}, {}, "client_error", FAILED),
    "a stream that never ends": ({"endless_stream_at": 5, "itl_ms": 50}, {"request_timeout_s": 1.0}, "client_error", FAILED),
    "a request without an answer": ({"hang_at": 5}, {"request_timeout_s": 1.0}, "client_error", FAILED),
    "start ends with an exit code": ({"exit_code": 3}, {}, "unknown", FAILED),
    "start refused by its flags": (
        {"exit_code": 2, "log": "vllm: error: unrecognized arguments: --max-num-seq 4"},
        {},
        "invalid_flags",
        INFEASIBLE,
    ),
    "start out of memory": ({"exit_code": 1, "log": "@oom_start"}, {}, "startup_oom", INFEASIBLE),
    "start without room for KV cache": ({"exit_code": 1, "log": "@no_kv"}, {}, "kv_cache_too_small", INFEASIBLE),
    "block size refused": ({"exit_code": 1, "log": "@block_size"}, {}, "unsupported_block_size", INFEASIBLE),
    "start killed": ({"exit_signal": 9}, {}, None, FAILED),
    "never healthy": ({"never_healthy": True}, {"startup_timeout_s": 1.5}, "health_timeout", FAILED),
    "never listens": ({"no_listen": True}, {"startup_timeout_s": 1.5}, "health_timeout", FAILED),
    "healthy but its engine is dead": ({"engine_dead": True}, {"startup_timeout_s": 1.5}, None, FAILED),
    "another server's key": ({"api_key": "another"}, {"startup_timeout_s": 1.5}, None, FAILED),
    "open to everybody": ({"api_key": None}, {"startup_timeout_s": 1.5}, None, FAILED),
    "deaf to SIGTERM and failed": ({"ignore_sigterm": True, "all_500": True}, {"stop_timeout_s": 0.5}, None, FAILED),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_a_failed_trial(bench: Bench, name: str) -> None:
    fake, changes, failure_class, status = FAULTS[name]
    outcome = bench.run(fake, **changes)
    assert_failed(outcome)
    failure = outcome.result.failure
    assert failure is not None
    assert outcome.result.status is status
    assert failure.informative_for_search is (status is INFEASIBLE)
    if failure_class is not None:
        assert failure.failure_class == failure_class
