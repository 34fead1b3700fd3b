"""The benchmark of the twin on runs made by the twin itself: what it must find there is known."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from sweep.twin import Costs, Engine, Load, Observation, simulate

pytestmark = pytest.mark.night  # numba compiles for half a minute

SCRIPTS = Path(__file__).parents[1] / "scripts"
TRUTH = Costs(0.02, 1e-4, 1e-4, 5e-8, 1e-8, 0.004)


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(SCRIPTS))
    return importlib.import_module("bench_twin")


@pytest.fixture(scope="module")
def recording() -> ModuleType:
    sys.path.insert(0, str(SCRIPTS))
    return importlib.import_module("twin_recording")


def load(n: int, seed: int = 0) -> Load:
    rng = np.random.default_rng(seed)
    return Load.of(np.cumsum(rng.exponential(0.2, n)), rng.integers(10, 800, n), rng.integers(2, 150, n))


def write_run(folder: Path, blocks: int | None) -> Engine:
    """A run in the format of the benchmark, on clocks of its own."""
    folder.mkdir(parents=True)
    engine = Engine(max_num_seqs=32, max_num_batched_tokens=1024, kv_blocks=None if blocks is None else blocks - 1)
    requests = load(150)
    run = simulate(requests, engine, TRUTH)
    rows = [
        {
            "input_toks": int(requests.input_tokens[i]),
            "output_toks": int(requests.output_tokens[i]),
            "arrival_time": 1.7e9 + float(requests.arrival_s[i]),
            "queued_ts": 500.0 + float(requests.arrival_s[i]) + (0.0 if i == 0 else 0.002),
            "first_token_ts": 500.0 + float(run.sent_s[i] + run.ttft_s[i]),
            "last_token_ts": 500.0 + float(run.sent_s[i] + run.e2el_s[i]),
        }
        for i in range(150)
    ]
    (folder / "requests.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    meta: dict[str, Any] = {"engine_kwargs": {"max_num_seqs": 32, "max_num_batched_tokens": 1024}}
    if blocks is not None:
        meta["kv_cache"] = {"num_gpu_blocks": blocks, "block_size": 16, "enable_prefix_caching": True}
    (folder / "meta.json").write_text(json.dumps(meta))
    return engine


def test_a_run_is_read_as_it_was(bench: ModuleType, tmp_path: Path) -> None:
    engine = write_run(tmp_path / "one", 700)
    requests, found, ttft_s, e2el_s = bench.read_gpu_run(tmp_path / "one")
    run = simulate(requests, engine, TRUTH)
    assert found == engine
    assert ttft_s == pytest.approx(run.ttft_s, abs=1e-5)
    assert e2el_s == pytest.approx(run.e2el_s, abs=1e-5)


def test_a_run_whose_costs_fit_exactly_has_no_error_to_speak_of(bench: ModuleType, tmp_path: Path) -> None:
    write_run(tmp_path / "one", None)
    keys, rows = bench.bench_gpu(tmp_path)
    assert len(rows) == 1
    assert 0 <= keys["gpu_run_error_max"] < 0.03
    assert 0 <= keys["gpu_holdout_error_median"] < 0.1


def test_what_is_not_there_is_null_and_said(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, rows = bench.bench_gpu(tmp_path)

    assert rows == []
    assert set(keys.values()) == {None}
    said = capsys.readouterr().out
    assert "no GPU runs in" in said


def test_a_recording_is_scored_by_settings_that_were_not_fitted(recording: ModuleType) -> None:
    rng = np.random.default_rng(0)
    launches = []
    for seats in (4, 8, 16, 32, 64):
        engine = Engine(max_num_seqs=seats, asynchronous=False)
        for _ in range(2):
            run = simulate(load(40), engine, TRUTH.times(float(np.exp(0.1 * rng.standard_normal()))))
            rounds = (Observation.of(load(40), engine, run.ttft_s, run.e2el_s),)
            launches.append(recording.Launch((("max-num-seqs", str(seats)),), rounds))
    keys, details = recording.score([recording.Recording("made", tuple(launches))], 1)
    assert set(details["fitted_on"]) == {1, 2, 3}
    assert 0 < details["pair_difference_median"] < 1
    assert 0 < keys["cpu_error_over_pair_difference"] < 5
    assert 0 < keys["cpu_error_vs_means_from_3"] < 0.5
    assert 0.5 < keys["interval_coverage_90"] <= 1
