"""`engine: simulated`: a study file tried without GPU, vLLM or a model, and marked so everywhere."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweep.config import load
from sweep.engines import prepare_study
from sweep.errors import ConfigError
from sweep.gpu import Gpus
from sweep.prepare import Prepared
from sweep.simulated import WORD
from sweep.trial import TrialKind, TrialResult, TrialSpec, TrialStatus

CONTENT: dict[str, Any] = {
    "study": {"name": "rehearsal", "engine": "simulated", "sampler": "tpe", "trials": 5, "seed": 4},
    "model": {"path": "somebody/Some-14B-Instruct"},
    "serve": {"flags": {"tensor-parallel-size": 2, "max-model-len": 4096}},
    "search_space": {
        "parameters": {
            "max-num-seqs": {"type": "choice", "values": [4, 32, 256]},
            "gpu-memory-utilization": {"type": "choice", "values": [0.3, 0.9]},
        }
    },
    "load": {"num_prompts": 24, "rounds": 2, "request_rate": 8, "warmup_prompts": 0},
    "objective": {"weights": {"p95_ttft_ms": 1}},
    "baseline": {"max-num-seqs": 32, "gpu-memory-utilization": 0.9},
    "confirm": {"candidates": 0},
}


def prepared(folder: Path, **changes: dict[str, Any]) -> Prepared:
    content = {**CONTENT, **{name: {**CONTENT.get(name, {}), **change} for name, change in changes.items()}}
    content["study"] = {**content["study"], "results": str(folder / "results")}
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(content))
    with Gpus() as gpus:
        return prepare_study(load(path), path, folder / "results" / "rehearsal", gpus)


def run(study: Prepared, number: int, **flags: Any) -> TrialResult:
    assert study.stand_in is not None
    spec = TrialSpec(number, TrialKind.SEARCH if number else TrialKind.BASELINE, {**study.config.baseline, **flags})
    return study.stand_in.run(spec, study.setup).result


def test_it_needs_neither_vllm_nor_the_model_and_says_what_it_is(tmp_path: Path) -> None:
    study = prepared(tmp_path)
    assert study.stand_in is not None
    assert study.stand_in.word == WORD
    assert "14 billion weights on 2 x RTX A6000" in study.stand_in.described
    assert study.fingerprint.vllm == "simulated, no server"
    assert any(line.startswith("simulated: nothing is launched and nothing here is measured") for line in study.notices)
    assert any("a token is taken for 4 characters" in line for line in study.notices)
    assert not study.setup.uses_gpus


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"simulated": {"card": "Voodoo 2"}}, "'Voodoo 2' is not in the table"),
        ({"model": {"path": "somebody/model"}}, "simulated.billions"),
        ({"objective": {"weights": {"p95_ttft_ms": 1}, "slo": {"p95_nothing_ms": 1}}}, "p95_nothing_ms"),
    ],
)
def test_what_it_cannot_do_is_one_line(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as mistake:
        prepared(tmp_path, **changes)
    assert words in str(mistake.value)
    assert "\n" not in str(mistake.value)


def test_a_size_that_is_said_counts(tmp_path: Path) -> None:
    study = prepared(tmp_path, model={"path": "somebody/model"}, simulated={"billions": 8.0, "card": "H100"})
    assert study.stand_in is not None
    assert "8 billion weights on 2 x H100" in study.stand_in.described


@pytest.mark.night  # numba compiles for half a minute
def test_a_trial_is_whole_and_marked_and_the_same_again(tmp_path: Path) -> None:
    study = prepared(tmp_path)
    result = run(study, 0)
    assert (result.status, result.stood_in) == (TrialStatus.COMPLETE, WORD)
    assert [len(part.prompts) for part in study.setup.plan.rounds] == [one.completed for one in result.rounds]
    sent = [prompt.prompt_id for part in study.setup.plan.rounds for prompt in part.prompts]
    assert [one.prompt_id for one in result.requests] == sent
    assert result.score is not None
    assert result.score.value == pytest.approx(1.0)
    for one in result.requests:
        assert one.e2el_ms == pytest.approx((one.ttft_ms or 0.0) + sum(one.itl_ms))
        assert len(one.itl_ms) == (one.output_tokens or 0) - 1
    again = run(study, 0)
    assert dataclasses.replace(again, started_wall_s=0, events=()) == dataclasses.replace(
        result, started_wall_s=0, events=()
    )
    assert run(study, 1).metrics != result.metrics, "another launch of the same flags"


@pytest.mark.night  # numba compiles for half a minute
def test_few_seats_queue_and_little_memory_does_not_start(tmp_path: Path) -> None:
    study = prepared(tmp_path)
    wide, narrow = run(study, 0), run(study, 1, **{"max-num-seqs": 4})
    assert wide.metrics is not None
    assert narrow.metrics is not None
    assert (narrow.metrics["p95_ttft_ms"] or 0.0) > 2 * (wide.metrics["p95_ttft_ms"] or 0.0)
    dead = run(study, 2, **{"gpu-memory-utilization": 0.3})
    assert (dead.status, dead.stood_in, dead.metrics) == (TrialStatus.INFEASIBLE, WORD, None)
    assert dead.failure is not None
    assert dead.failure.failure_class == "kv_cache_too_small"
    assert dead.requests == ()
