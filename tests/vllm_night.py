"""A study on real vLLM servers, on the CPU build and a toy model: its file, and what it left."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_study

from sweep.store import StoredTrial, read_trials
from sweep.trial import TrialStatus

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
                "dtype": "bfloat16",  # slow enough for the load client: a late one is measured against the median TTFT
                "gpu-memory-utilization": 0.1,
                "max-num-batched-tokens": 1024,
            },
            "env": {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "SWEEP_CPU_ENGINE": "fork"},
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


def run_study(folder: Path) -> Study:
    """Through `python -m sweep.tune`, with a model built for it."""
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
        XDG_CACHE_HOME=str(folder / "cache"),
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
