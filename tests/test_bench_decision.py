"""The simulated studies of the decision bench: what they draw is what they say, and the command writes its keys."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import bench_decision  # noqa: E402
from decision_world import Layers, Noise, World, fit_noise  # noqa: E402
from stored_trials import changed, complete, store  # noqa: E402

from sweep.records import RequestRecord  # noqa: E402
from sweep.verdict import Launch  # noqa: E402

QUIET = Noise(
    name="quiet",
    source="made up",
    most_launches=4,
    rounds=2,
    requests=40,
    common_share=0.5,
    latencies={
        "ttft": Layers(100.0, 0.0, 0.01, 0.01, 0.2, 0.05),
        "tpot": Layers(30.0, 0.0, 0.01, 0.01, 0.1, 0.05),
    },
)
LOUD = dataclasses.replace(
    QUIET,
    requests=60,
    rounds=3,
    latencies={
        "ttft": Layers(100.0, 0.0, 0.2, 0.1, 0.4, 0.3),
        "tpot": Layers(30.0, 0.0, 0.05, 0.02, 0.1, 0.2),
    },
)


def test_the_noise_files_are_whole_and_read_back_as_written(tmp_path: Path) -> None:
    for path in bench_decision.NOISES:
        noise = Noise.load(path)
        (tmp_path / "noise.json").write_text(noise.dump())
        assert Noise.load(tmp_path / "noise.json") == noise
        assert set(noise.latencies) == {"ttft", "tpot"}


def test_a_quiet_study_finds_and_confirms_the_better_configuration() -> None:
    night = bench_decision.night(QUIET, "10 %", 5)
    assert (night.found, night.outcome, night.winner) == (True, "better", bench_decision.GOOD)
    assert night.covered
    assert night.best == bench_decision.GOOD


@pytest.mark.parametrize("seed", [2, 3])
def test_an_outlier_leads_the_search_or_one_launch_and_does_not_win(seed: int) -> None:
    night = bench_decision.night(QUIET, "outlier", seed)
    assert night.winner is None
    assert (night.best == bench_decision.GOOD) is (seed % 2 == 1)


def test_the_picker_of_the_single_best_always_claims_something() -> None:
    nights = [bench_decision.night(QUIET, kind, seed) for kind in bench_decision.KINDS for seed in (1, 2)]
    figures = bench_decision.summary(nights)
    assert figures["single_best_false_share"] == 1.0
    assert figures["aa_studies"] == 2
    assert figures["power_10pct"] == figures["power_10pct_one_look"] == 1.0
    assert figures["lucky_outlier_wins"] == 0


def test_one_candidate_is_judged_with_its_blocks_taken_out_from_two_degrees_of_freedom_on() -> None:
    """Blocks of this world differ by a half, launches within one by 1 %: left in, nothing could be told."""
    latencies = {stem: dataclasses.replace(layers, drift_sd=0.4) for stem, layers in QUIET.latencies.items()}
    drifting = dataclasses.replace(QUIET, latencies=latencies, most_launches=3)
    night = bench_decision.night(drifting, "10 %, one candidate", 1)
    assert (night.launches, night.winner) == (3, bench_decision.GOOD)
    assert night.covered
    assert bench_decision.night(drifting, "A/A, one candidate", 2).truth == 1.0


def test_the_layers_of_a_world_are_those_of_its_noise_file() -> None:
    world = World(LOUD, 1, {5: math.log(0.9)})
    assert world.truth(5) == pytest.approx(0.9)
    launches = world.block(range(400), 0)
    logs = np.array([[np.log(part.ttft_ms) for part in launch.rounds] for launch in launches])
    means = logs.mean(axis=2)
    assert np.var(means.mean(axis=1)) == pytest.approx(0.2**2 + 0.1**2 / 3, rel=0.25)
    left = means - means.mean(axis=1, keepdims=True) - means.mean(axis=0)
    assert left.var() * 3 / 2 == pytest.approx(0.1**2, rel=0.25)
    assert {launch.rounds[0].load for launch in launches} != {launch.rounds[0].load for launch in world.block([0], 1)}


def test_noise_is_estimated_from_launches_of_the_same_flags(tmp_path: Path) -> None:
    writer = store(tmp_path)
    for number, launch in enumerate(World(LOUD, 3, {}).block(range(24), 0)):
        writer.append(changed(complete(number), requests=records(launch)), engine_summary={}, telemetry=())
    found = fit_noise(tmp_path)
    assert (found.rounds, found.requests) == (3, 60)
    for stem, layers in LOUD.latencies.items():
        for name in ("server_sd", "prompt_sd", "request_sd"):
            assert getattr(found.latencies[stem], name) == pytest.approx(getattr(layers, name), rel=0.4), (stem, name)
        assert found.latencies[stem].median_ms == pytest.approx(layers.median_ms, rel=0.2)
    assert found.latencies["ttft"].round_sd == pytest.approx(0.1, rel=0.4)


def test_in_an_aa_study_all_flags_are_one_setting_and_blocks_drift(tmp_path: Path) -> None:
    writer = store(tmp_path)
    latencies = {stem: dataclasses.replace(layers, drift_sd=0.5) for stem, layers in LOUD.latencies.items()}
    world = World(dataclasses.replace(LOUD, latencies=latencies), 3, {})
    numbers = iter(range(100))
    for block in range(12):
        for flags, launch in zip(
            ({"max-num-seqs": 32}, {"max-num-seqs": 33}), world.block(range(2), block), strict=True
        ):
            trial = complete(next(numbers))
            spec = dataclasses.replace(trial.spec, flags=flags, block=block)
            writer.append(changed(trial, requests=records(launch), spec=spec), engine_summary={}, telemetry=())
    with pytest.raises(ValueError, match="launched twice"):
        fit_noise(tmp_path)
    found = fit_noise(tmp_path, alike=True)
    assert found.latencies["ttft"].drift_sd == pytest.approx(0.5, rel=0.5)
    assert found.latencies["ttft"].server_sd == pytest.approx(0.2, rel=0.5)
    assert found.latencies["tpot"].drift_sd == pytest.approx(0.5, rel=0.5)


def test_a_study_that_launched_nothing_twice_tells_no_noise(tmp_path: Path) -> None:
    store(tmp_path).append(complete(0), engine_summary={}, telemetry=())
    with pytest.raises(ValueError, match="launched twice"):
        fit_noise(tmp_path)


def test_the_command_writes_its_keys(tmp_path: Path) -> None:
    noise = tmp_path / "noise.json"
    noise.write_text(dataclasses.replace(QUIET, requests=15, most_launches=3).dump())
    command = [sys.executable, str(ROOT / "scripts" / "bench_decision.py"), "--studies", "4", "--noise", str(noise)]
    done = subprocess.run([*command, "--json", str(tmp_path / "out.json")], capture_output=True, text=True, check=True)
    assert "interval holds the truth" in done.stdout
    found = json.loads((tmp_path / "out.json").read_text())
    wanted = ("aa_false_better_share", "aa_studies", "power_10pct", "coverage_95", "lucky_outlier_wins")
    for key in (*wanted, "single_best_false_share"):
        assert found[key] == found["levels"]["quiet"][key]
        assert isinstance(found[key], int | float)


def records(launch: Launch) -> tuple[RequestRecord, ...]:
    return tuple(
        RequestRecord(
            round=number,
            index=at,
            prompt_id=f"{number}-{at}",
            scheduled_s=0.0,
            start_s=0.0,
            input_tokens=10,
            output_tokens=int(part.output_tokens[at]),
            asked_output_tokens=None,
            ttft_ms=float(part.ttft_ms[at]),
            itl_ms=(),
            e2el_ms=float(part.e2el_ms[at]),
            error=None,
        )
        for number, part in enumerate(launch.rounds)
        for at in range(len(part.ttft_ms))
    )
