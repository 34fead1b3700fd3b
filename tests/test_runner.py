"""One trial, without Ray, on the executable fake: a good one, and each way to fail."""

from __future__ import annotations

import dataclasses
import json
import os
import re
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
from sweep.runner.cpus import cores_of, parse_cpus, shares, spelled
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
        self.folder.mkdir(exist_ok=True)
        behaviour = {
            "ttft_ms": 2,
            "itl_ms": 0.2,
            "seed": 1,
            "dump_argv": str(self.folder / "argv.json"),
            **(fake or {}),
        }
        settings: dict[str, Any] = {
            "folder": self.folder,
            "served_name": self.folder.name,
            "server_env": {"FAKE_VLLM": json.dumps(behaviour)},
            "client_env": {"FAKE_VLLM": json.dumps(behaviour)},
            "max_retries": 0,
            **changes,
        }
        spec = TrialSpec(0, TrialKind.BASELINE, FLAGS)
        with Gpus() as gpus:
            outcome = run_trial(spec, dataclasses.replace(self.setup, **settings), redactor=Redactor({}), gpus=gpus)
        self.assert_nothing_left()
        return outcome

    def assert_nothing_left(self) -> None:
        """No process, no record of one, and a free port."""
        # The folder's name stands on the command lines of server and client, and nowhere else.
        assert fake_study.processes_with(self.folder.name) == []
        assert list((self.folder / "processes").glob("*")) == []
        assert port_free("127.0.0.1", int(self.argument("--port")))

    def argument(self, flag: str) -> str:
        """The value the last server was started with."""
        argv: list[str] = json.loads((self.folder / "argv.json").read_text())
        return argv[argv.index(flag) + 1]

    def log(self, name: str) -> str:
        """One of the trial's logs."""
        return (self.folder / "logs" / "0000" / name).read_text()


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory, shared: TrialSetup) -> Bench:
    folder = tmp_path_factory.mktemp("trial")
    return Bench(folder / f"trial-{folder.parent.name}-{folder.name}", shared)


def assert_failed(outcome: TrialOutcome) -> None:
    """No metrics, no score, a cause: what every failed trial has."""
    result = outcome.result
    assert result.status is not TrialStatus.COMPLETE
    assert result.metrics is None
    assert result.score is None
    assert result.requests == ()
    assert result.failure is not None
    assert result.failure.advice
    # Both stand in one line for a person: nothing is said twice.
    assert result.failure.line is None or result.failure.line not in result.failure.advice
    assert [event.kind for event in result.events].count("failed") == result.attempts


def test_cpus_of_its_own(bench: Bench) -> None:
    seen = bench.folder.parent / "cpus.json"
    script = f"import json, os, sys; open({str(seen)!r}, 'w').write(json.dumps(sorted(os.sched_getaffinity(0))))"
    words = (sys.executable, "-c", f"{script}; os.execv(sys.argv[1], sys.argv[1:])")
    count = len(cores_of(os.sched_getaffinity(0)))
    result = bench.run(cpu_shares=count, server_command=(*words, *bench.setup.server_command)).result
    assert result.status is TrialStatus.COMPLETE
    (noted,) = (event.detail for event in result.events if event.kind == "cpus")
    assert set(json.loads(seen.read_text())) == parse_cpus(noted)
    assert noted == spelled(shares(cores_of(os.sched_getaffinity(0)), count)[0])


def test_good_trial(bench: Bench) -> None:
    result = bench.run().result
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
    (sampled,) = [event.detail for event in result.events if event.kind == "sampled"]
    looks = re.fullmatch(r"(\d+) looks at devices and host, \S+ ms each, the longest \S+ ms", sampled)
    assert looks is not None
    assert int(looks[1]) >= 1
    # The engine's own view: one completion of readiness, the warm-up and the measured load; nothing else is sent.
    assert result.engine_config.block_size is not None
    assert result.engine_config.kv_tokens is not None
    assert result.engine[-1].requests_finished == 1 + 2 + PROMPTS
    assert result.engine[-1].generation_tokens == 1 + 2 * 4 + PROMPTS * 4
    # The command is one to paste: no address of ours.
    shown = f"--gpu-memory-utilization 0.8 --served-model-name {bench.folder.name}"
    environment, command = result.command.split(f" {sys.executable} ")
    assert environment.startswith("FAKE_VLLM='{")
    assert command == (f"{fake_study.FAKE} serve {bench.setup.model} --max-model-len 4096 --max-num-seqs 64 {shown}")
    assert bench.argument("--host") == "127.0.0.1"


# What the fake does, changes of the setup, and the class and status that it must come to.
INFEASIBLE, FAILED = TrialStatus.INFEASIBLE, TrialStatus.FAILED
ENGINE_DIED = "ERROR [core_client.py:600] Engine core proc EngineCore died unexpectedly, shutting down."
FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], str | None, TrialStatus]] = {
    "every request 500": ({"all_500": True}, {}, "client_error", FAILED),
    "server exits in mid-load": ({"die_at_request": 9, "die_code": 0}, {}, "engine_died", FAILED),
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
    "latencies NaN": ({"client": {"result": "nan"}}, {}, "client_error", FAILED),
    "latencies zero": ({"client": {"result": "zero"}}, {}, "client_error", FAILED),
    "latencies negative": ({"client": {"result": "negative"}}, {}, "client_error", FAILED),
    "client fails": ({"client": {"exit_code": 1}}, {}, "client_error", FAILED),
    "client fails, and the engine ends first when both are told to": (
        {"client": {"exit_code": 1}, "last_words": ENGINE_DIED},
        {},
        "client_error",
        FAILED,
    ),
    "a stream that never ends": (
        {"endless_stream_at": 5, "itl_ms": 50},
        {"request_timeout_s": 1.0},
        "client_error",
        FAILED,
    ),
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
    "start killed": ({"exit_signal": 9}, {}, None, FAILED),
    "never healthy": ({"never_healthy": True}, {"startup_timeout_s": 1.5}, "health_timeout", FAILED),
    "never listens": ({"no_listen": True}, {"startup_timeout_s": 1.5}, "health_timeout", FAILED),
    "healthy but its engine is dead": ({"engine_dead": True}, {"startup_timeout_s": 1.5}, None, FAILED),
    "another server's key": ({"api_key": "another"}, {"startup_timeout_s": 1.5}, None, FAILED),
    "open to everybody": ({"api_key": None}, {"startup_timeout_s": 1.5}, None, FAILED),
    "deaf to SIGTERM and failed": ({"ignore_sigterm": True, "all_500": True}, {"stop_timeout_s": 0.5}, None, FAILED),
}


# Close to others of the table; tests/test_loadgen_result.py has what a client may leave without a launch.
ALIKE = (
    *("server dies out of memory under load", "another server's key", "empty result", "result is HTML"),
    *("result is {}", "latencies zero", "latencies negative"),
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.night) if name in ALIKE else name for name in FAULTS]
)
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


def test_start_that_dies_is_noticed_at_once(bench: Bench) -> None:
    result = bench.run({"exit_code": 1, "start_delay_s": 0.5}, startup_timeout_s=600.0).result
    began = next(event.at_s for event in result.events if event.phase == Phase.START)
    failed = next(event.at_s for event in result.events if event.kind == "failed")
    assert 0.5 < failed - began < 10.0  # the interpreter's own start, on a busy machine; far from 600
    assert result.failure is not None
    assert result.failure.exit_code == 1


def test_passing_fault_is_tried_again(bench: Bench) -> None:
    launches = bench.folder.parent / "launches"
    result = bench.run({"fail_first_launches": 2, "state": str(launches)}, max_retries=2).result
    assert result.status is TrialStatus.COMPLETE
    assert result.attempts == 3
    assert launches.stat().st_size == 3
    failed = [event.attempt for event in result.events if event.kind == "failed"]
    assert failed == [1, 2]
    assert len(result.requests) == PROMPTS
    assert sorted(path.name for path in (bench.folder / "logs" / "0000").glob("server-*")) == [
        "server-1.log",
        "server-2.log",
        "server-3.log",
    ]


@pytest.mark.parametrize("number", [9, *(pytest.param(number, marks=pytest.mark.night) for number in (2, 15))])
def test_killed_load_client_is_a_fault_of_the_client_and_tried_again(bench: Bench, number: int) -> None:
    outcome = bench.run({"client": {"exit_signal": number}}, max_retries=1)
    assert_failed(outcome)
    failure = outcome.result.failure
    assert failure is not None
    assert outcome.result.attempts == 2
    assert (failure.failure_class, failure.policy, failure.phase) == ("client_error", "retry", "client")
    assert not failure.informative_for_search


def test_fault_of_the_flags_is_not_tried_again(bench: Bench) -> None:
    launches = bench.folder.parent / "launches"
    result = bench.run({"exit_code": 1, "log": "@oom_start", "state": str(launches)}, max_retries=5).result
    assert result.attempts == 1
    assert launches.stat().st_size == 1


def test_failed_requests_above_the_floor_count_only_against_success(bench: Bench) -> None:
    result = bench.run({"fail_share": 0.3, "seed": 4}, min_success_share=0.3).result
    assert result.status is TrialStatus.COMPLETE
    failed = [request for request in result.requests if request.error is not None]
    assert 0 < len(failed) < PROMPTS
    assert all(request.ttft_ms is None and request.e2el_ms is None and request.itl_ms == () for request in failed)
    assert result.metrics is not None
    assert result.load_s is not None
    assert result.metrics["request_throughput_per_s"] == pytest.approx((PROMPTS - len(failed)) / result.load_s)


def test_failed_requests_below_the_floor_fail_the_trial(bench: Bench) -> None:
    outcome = bench.run({"fail_share": 0.3, "seed": 4})
    assert_failed(outcome)
    assert outcome.result.failure is not None
    assert outcome.result.failure.failure_class == "client_error"


def test_server_deaf_to_sigterm_is_killed(bench: Bench) -> None:
    result = bench.run({"ignore_sigterm": True}, stop_timeout_s=0.5).result
    assert result.status is TrialStatus.COMPLETE
    stopped = next(event for event in result.events if event.kind == "stopped")
    assert "killed" in stopped.detail


@pytest.mark.parametrize("fake", [{}, {"exit_code": 1}], ids=["good trial", "failed start"])
def test_grandchildren_do_not_survive(bench: Bench, fake: dict[str, Any]) -> None:
    pid_file = bench.folder.parent / "pids.json"
    spec = {"count": 2, "setsid": True, "ignore_sigterm": True, "clear_env": True, "pid_file": str(pid_file)}
    result = bench.run({"grandchild": spec, **fake}, stop_timeout_s=0.5).result
    assert (result.status is TrialStatus.COMPLETE) is (not fake)
    pids = json.loads(pid_file.read_text())
    assert len(pids) == 2
    assert alive(pids) == []


def test_prompt_file_that_cannot_be_written_is_not_blamed_on_flags_or_devices(bench: Bench) -> None:
    (bench.folder / "load" / "round-0.json").mkdir(parents=True)  # in the place of the file
    outcome = bench.run()
    assert_failed(outcome)
    assert outcome.result.status is FAILED
    assert outcome.result.failure is not None
    assert outcome.result.failure.failure_class in ("other", "unknown")
    assert "round-0.json" in next(event.detail for event in outcome.result.events if event.kind == "failed")


STALE = """
import os, subprocess, sys
# A server of an earlier night takes the port as soon as it is known; ours then never gets to answer.
old = dict(os.environ, FAKE_VLLM='{"ttft_ms": 0}', VLLM_API_KEY="of-another-night")
subprocess.Popen(sys.argv[1:], env=old, start_new_session=True)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_disk_that_fills_up_neither_keeps_the_server_nor_takes_the_measurement(bench: Bench) -> None:
    logs = bench.folder / "logs" / "0000"
    logs.mkdir(parents=True)
    (logs / "progress.tmp").symlink_to("/dev/full")
    outcome = bench.run()
    assert outcome.result.status is TrialStatus.COMPLETE
    assert [event.phase for event in outcome.result.events if event.kind == "phase"][-2:] == ["load", "stop"]
    failed = bench.run({"log": "", "exit_code": 1})
    assert failed.result.failure is not None
    assert failed.result.failure.policy == "host"
    assert failed.result.failure.line == "[Errno 28] No space left on device"
    assert "The disk is full" in failed.result.failure.advice
    row = next(event for event in failed.result.events if event.kind == "failed")
    assert re.search(r"exit code 1 \(disk 0\.0 GiB free, /dev/shm \d+\.\d GiB free\)$", row.detail)
    assert (row.failure_class, row.exit_code, row.retryable) == ("other", 1, False)


def test_stale_server_is_never_measured(bench: Bench, shared: TrialSetup) -> None:
    script = bench.folder.parent / "stale.py"
    script.write_text(STALE)
    outcome = bench.run(
        {"no_listen": True},
        server_command=(sys.executable, str(script), *shared.server_command),
        startup_timeout_s=2.0,
    )
    assert_failed(outcome)
    assert "another server" in next(event.detail for event in outcome.result.events if event.kind == "failed")
    assert not (bench.folder / "logs" / "0000" / "client-1.log").exists()


PLAIN = """
import sys
from pathlib import Path
from sweep.config import load
from sweep.gpu import Gpus
from sweep.prepare import prepare
from sweep.redact import Redactor
from sweep.runner import run_trial
from sweep.trial import TrialKind, TrialSpec
path = Path(sys.argv[1])
with Gpus() as gpus:
    setup = prepare(load(path), path, path.parent / "alone", gpus).setup
    spec = TrialSpec(0, TrialKind.BASELINE, {"max-num-seqs": 64, "gpu-memory-utilization": 0.8})
    outcome = run_trial(spec, setup, redactor=Redactor({}), gpus=gpus)
print(outcome.result.status, "ray" in sys.modules, "optuna" in sys.modules)
"""


def test_a_plain_script_runs_a_trial_without_ray(tmp_path: Path) -> None:
    path = fake_study.write(tmp_path / "study.yaml", fake_study.study(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(path)],
        env=fake_study.environment(XDG_CACHE_HOME=str(tmp_path / "cache")),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.stdout.split() == ["complete", "False", "False"], done.stderr
