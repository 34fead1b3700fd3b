"""The replay: its keys, its world, its promise on a few studies."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from sweep.racing import measure

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import bench_racing  # noqa: E402
import racing_night  # noqa: E402
import racing_world as world  # noqa: E402

DIFFERENCES: world.Numbers = np.linspace(1.0, 20.0, 20)


def test_keys_and_repeatability(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for name in ("a.json", "b.json"):
        options = ["--quick", "--studies", "2", "--jobs", "1", "--json", str(tmp_path / name)]
        assert bench_racing.main(options) == 0
        found.append(json.loads((tmp_path / name).read_text()))
    assert found[0] == found[1]
    assert found[0]["studies"] == 2
    assert found[0]["winner_stopped_share"] == 0
    assert 0.1 < found[0]["load_time_saved_share"] < 0.9
    assert found[0]["wilcoxon"]["studies"] == 2
    assert "GPU machine" in capsys.readouterr().out


def test_the_world_has_a_plateau_and_cliffs() -> None:
    rng = np.random.default_rng(3)
    load = world.make_load(rng, 100, None)
    points = [world.BASELINE, *(world.draw_flags(rng) for _ in range(60))]
    balanced = bench_racing.OBJECTIVES[0]
    every = [measure(launch.rounds(), balanced) for launch in world.run(load, points, None, rng)]
    scores = np.array([balanced.score(metrics, every[0]).value for metrics in every], dtype=np.float64)
    assert 0.4 < np.mean(scores < 1.3) < 0.75
    assert np.mean(scores > 2) > 0.2


def test_launches_of_equal_flags_share_load_and_differ_by_the_noise() -> None:
    rng = np.random.default_rng(4)
    load = world.make_load(rng, 60, None)
    many = world.run(load, [world.BASELINE] * 40, world.read_scatter(ROOT / "scripts" / "noise_gpu.json"), rng)
    logs = [np.log(np.median(launch.end_s - load.arrival_s)) for launch in many]
    assert 0.02 < np.std(logs) < 0.15
    assert all(np.array_equal(launch.round(0).start_s, load.arrival_s[0]) for launch in many)


def test_the_engine_of_the_world_counts_its_requests() -> None:
    rng = np.random.default_rng(5)
    load = world.make_load(rng, 80, None)
    (launch,) = world.run(load, [world.Flags(seqs=6, utilization=0.9, batched_tokens=2048)], None, rng)
    last = launch.samples(0)[-1]
    assert last.requests_finished == 80
    assert last.waiting == last.running == 0
    assert launch.most_waiting(0) >= max(sample.waiting or 0 for sample in launch.samples(0)) > 10


def test_recorded_lengths_are_read(tmp_path: Path) -> None:
    rows = [{"input_toks": 100 + n, "output_toks": 400, "queued_ts": 1.0} for n in range(5)]
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lengths = world.read_lengths(tmp_path / "requests.jsonl")
    load = world.make_load(np.random.default_rng(0), 50, lengths)
    assert set(np.unique(load.output_tokens)) == {220.0}
    assert load.input_tokens.min() >= 100


def test_rank_p_is_that_of_wilcoxon() -> None:
    """Twenty differences, all positive: z = (210 - 105) / sqrt(717.5) = 3.92."""
    assert racing_night.rank_p(DIFFERENCES) == pytest.approx(4.4e-5, rel=0.02)
    assert racing_night.rank_p(-DIFFERENCES) > 0.99
    shared = ROOT.parent / "shared" / "data" / "gpu_runs"
    if shared.exists():
        assert all(len(world.read_lengths(path)) == 300 for path in shared.glob("*/requests.jsonl"))
