"""Whole studies in one process whose search is the twin's, on a recording whose truth is known."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from predicted import flags, trial, truth, write

from sweep.alone import Alone
from sweep.config import load
from sweep.objective import Objective
from sweep.replayed import prepare_replay
from sweep.search_space import flags_key

pytestmark = pytest.mark.night  # numba compiles for half a minute

SEATS, TOKENS, SHARES = (4, 16, 64), (256, 2048), (0.7, 0.9)
NAMES = ("max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization")
WEIGHTS = {"p95_ttft_ms": 0.5, "p95_tpot_ms": 0.5}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every point once, the baseline first."""
    points = sorted(itertools.product(SEATS, TOKENS, SHARES), key=lambda point: point != (4, 2048, 0.9))
    results = [trial(number, flags(*point), noise=0.02) for number, point in enumerate(points)]
    return write(tmp_path_factory.mktemp("recordings") / "known", results)


def study(folder: Path, recording: Path, **study_section: Any) -> Alone:
    content = {
        "study": {"name": "again", "engine": "replay", "sampler": "twin", "trials": 12, **study_section},
        "replay": {"path": str(recording)},
        "model": {"path": "m"},
        "search_space": {
            "parameters": {
                "max-num-seqs": {"type": "choice", "values": list(SEATS)},
                "max-num-batched-tokens": {"type": "choice", "values": list(TOKENS)},
                "gpu-memory-utilization": {"type": "choice", "values": list(SHARES)},
            }
        },
        "objective": {"weights": WEIGHTS},
        "serve": {"flags": {"max-model-len": 4096, "dtype": "bfloat16"}},
        "baseline": {"max-num-seqs": 4, "max-num-batched-tokens": 2048, "gpu-memory-utilization": 0.9},
        "confirm": {"candidates": 0, "drift": False, "second_looks": 0},
    }
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(content))
    return Alone(prepare_replay(load(path), path, folder / "results" / "again"))


def test_a_few_launches_find_the_best_and_the_search_ends_by_itself(tmp_path: Path, recording: Path) -> None:
    found = study(tmp_path, recording)
    found.run()
    base = truth(flags(4, 2048, 0.9))
    objective = Objective.of(None, WEIGHTS, {})
    every = {
        point: objective.score(truth(flags(*point)), base).value for point in itertools.product(SEATS, TOKENS, SHARES)
    }
    tried = [outcome.result.spec.flags for outcome in found.outcomes.values()]
    values = {flags_key(dict(zip(NAMES, point, strict=True))): value for point, value in every.items()}
    scores = [values[flags_key(point)] for point in tried]
    assert found.stop_reason is not None
    assert "promises more than" in found.stop_reason
    assert len(scores) < 8
    assert min(s for s in scores if s is not None) < 1.03 * min(s for s in every.values() if s is not None)
    again = study(tmp_path, recording)
    again.run()
    assert [one.result.spec.flags for one in again.outcomes.values()] == tried


def test_what_the_twin_computes_is_never_a_trials_value(tmp_path: Path, recording: Path) -> None:
    found = study(tmp_path, recording)
    found.run()
    for outcome in found.outcomes.values():
        assert outcome.result.stood_in == "replayed"
        assert all(not hasattr(one, "simulated") for one in outcome.result.requests)
