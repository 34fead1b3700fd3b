"""The shipped demo file: reproducible, small, and as long as real conversations."""

from __future__ import annotations

import csv
import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from sweep.workload import DEMO_FILE

ROOT = Path(__file__).parents[1]
MEASURED = ROOT.parent / "shared" / "data" / "sharegpt_lengths.csv"


def lengths() -> tuple[list[int], list[int]]:
    rows = json.loads(DEMO_FILE.read_text())
    turns = [[len(turn["value"]) for turn in row["conversations"]] for row in rows]
    return [turn[0] for turn in turns], [turn[1] for turn in turns]


def test_generating_it_again_gives_the_same_bytes() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "make_demo_dataset.py"))
    assert script["dataset"]() == DEMO_FILE.read_bytes()


def test_it_is_a_small_sharegpt_file_of_distinct_prompts() -> None:
    rows = json.loads(DEMO_FILE.read_text())
    assert DEMO_FILE.stat().st_size < 3_000_000
    assert len({row["id"] for row in rows}) == len({row["conversations"][0]["value"] for row in rows}) == 1000
    assert all([turn["from"] for turn in row["conversations"]] == ["human", "gpt"] for row in rows)


def test_its_lengths_follow_the_measured_ones() -> None:
    if not MEASURED.exists():
        pytest.skip(f"{MEASURED} is not here")
    with MEASURED.open() as file:
        measured = [(int(row["prompt_chars"]), int(row["reply_chars"])) for row in csv.DictReader(file)]
    shares = range(5, 100, 5)
    for ours, theirs in zip(lengths(), zip(*measured, strict=True), strict=True):
        # The sample of 8,000 differs from the 17,400 behind the script's table by up to 7 % itself.
        assert np.percentile(ours, shares) == pytest.approx(np.percentile(theirs, shares), rel=0.1, abs=3)
