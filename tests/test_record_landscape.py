"""The recording of a landscape: which launches, in which order, and what of it is handed on."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import recordings

from sweep.config import load
from sweep.replay import read_recording
from sweep.search_space import SearchSpace, flags_key
from sweep.store import read_launches, read_metadata, read_trials

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "record_landscape.py"))
STUDY = ROOT / "scripts" / "landscape_cpu.yaml"


def design_of(seed: int = 7) -> Any:
    config = load(STUDY)
    space = SearchSpace.from_config(config.search_space, config.serve.flags)
    return SCRIPT["Design"].of(space, config.baseline_flags(), seed), space, config


def test_every_point_is_launched_and_a_third_of_them_three_times() -> None:
    design, space, config = design_of()
    keys = [flags_key(flags) for flags in design.launches]
    assert len(set(keys)) == space.feasible_size() >= 40
    assert len(keys) >= 70
    counts = {key: keys.count(key) for key in keys}
    assert set(counts.values()) == {1, 3}
    assert sum(count == 3 for count in counts.values()) >= len(counts) / 3
    assert keys[0] == flags_key(config.baseline_flags())
    assert counts[keys[0]] == 3


def test_repeats_are_spread_and_the_order_is_that_of_the_seed() -> None:
    design, space, _ = design_of()
    points = space.feasible_size() or 0
    keys = [flags_key(flags) for flags in design.launches]
    repeats = (len(keys) - points) // 2
    first, second, third = keys[:points], keys[points : points + repeats], keys[points + repeats :]
    assert len(set(first)) == points
    assert set(second) == set(third)
    assert second != third
    assert design == design_of()[0]
    assert design != design_of(seed=8)[0]


def test_it_goes_on_after_what_is_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    design, _, config = design_of()
    recordings.write(tmp_path / config.study.name, design.launches[:1])
    known = {one.number: one for one in read_trials(tmp_path / config.study.name)}
    specs = list(design.specs(known))
    assert [spec.number for spec in specs] == list(range(1, len(design.launches)))
    assert specs[0].baseline_metrics == known[0].metrics
    recordings.write(
        tmp_path / "moved", [design.launches[0], {**design.launches[1], "block-size": 96}, design.launches[3]]
    )
    moved = {one.number: one for one in read_trials(tmp_path / "moved")}  # values of the space were changed meanwhile
    specs = list(design.specs(moved))
    assert [spec.number for spec in specs] == list(range(3, len(design.launches) + 1))
    assert [spec.flags for spec in specs[:2]] == [design.launches[1], design.launches[2]]
    sys.argv = ["record_landscape.py", str(STUDY), "--results", str(tmp_path), "--plan"]
    assert SCRIPT["main"]() == 0
    assert len(capsys.readouterr().out.splitlines()) == len(design.launches) - 1


def test_what_is_exported_names_no_place_of_this_machine(tmp_path: Path) -> None:
    folder = recordings.write(tmp_path / "night", recordings.points()[10:14])
    (folder / "fingerprint.json").write_text(json.dumps({"model": f"{Path.home()}/models/toy", "vllm": "0.32.0"}))
    (folder / "study.json").write_text(json.dumps({"study": {"name": "night"}, "path": str(folder.absolute())}))
    SCRIPT["export"](folder, tmp_path / "out", STUDY, "python scripts/record_landscape.py x.yaml")
    about = json.loads((tmp_path / "out" / "recording.json").read_text())
    assert about["launches"] == about["configurations"] == 4
    assert about["fingerprint"]["model"] == "toy"
    assert about["settings"]["path"] == "night"
    assert about["fingerprint"]["hostname"] is None
    assert read_metadata(tmp_path / "out")["hostname"] == "not told"
    assert read_metadata(tmp_path / "out")["recorded_by"] == "python scripts/record_landscape.py x.yaml"
    assert len(read_launches(tmp_path / "out")) == 4
    assert read_recording(tmp_path / "out").launches == 4
    assert not (tmp_path / "out" / "telemetry.parquet").exists()
