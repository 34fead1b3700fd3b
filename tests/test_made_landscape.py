"""The made landscape has the shape of a recorded one, and says that nobody recorded it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sweep.search_space import flags_key
from sweep.store import read_launches

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import bench_search
import made_landscape
import search_methods
from search_world import Landscape, landscapes

pytestmark = pytest.mark.night  # numba compiles for half a minute

STUDY = Path(__file__).parents[1] / "scripts" / "landscape_cpu.yaml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_landscape.make(STUDY, tmp_path_factory.mktemp("made") / "made", 1)


@pytest.fixture(scope="module")
def found(folder: Path) -> list[Landscape]:
    return landscapes(folder)


def test_it_has_the_launches_of_the_real_one_and_a_third_of_its_points_fail(
    folder: Path, found: list[Landscape]
) -> None:
    launches = read_launches(folder)
    assert len(launches) == 74
    causes = {one.trial.failure.failure_class for one in launches if one.trial.failure is not None}
    assert causes == {"kv_cache_too_small", "unsupported_block_size", "invalid_flags"}
    assert [one.name for one in found] == ["made, 3/s", "made, 6/s", "made, 3/s and 6/s"]
    assert all((len(one.points), one.failing) == (44, 18) for one in found)
    assert json.loads((folder / "fingerprint.json").read_text())["model"] == "made, not recorded"


def test_it_has_cliffs_and_a_plateau(found: list[Landscape]) -> None:
    both = found[2]
    assert max(both.truth.values()) > 3 * both.best
    page = {"gpu-memory-utilization": 0.13, "max-num-batched-tokens": 256}
    for seqs in (4, 8, 16):
        pair = [both.truth[flags_key({**page, "max-num-seqs": seqs, "block-size": size})] for size in (32, 64)]
        assert max(pair) < 1.15 * min(pair)


def test_another_seed_is_another_landscape_and_the_same_seed_the_same(folder: Path, tmp_path: Path) -> None:
    again = read_launches(made_landscape.make(STUDY, tmp_path / "again", 1))
    other = read_launches(made_landscape.make(STUDY, tmp_path / "other", 2))
    first = read_launches(folder)
    assert [one.trial.total_s for one in again] == [one.trial.total_s for one in first]
    assert [one.trial.total_s for one in other] != [one.trial.total_s for one in first]


def test_the_twin_needs_a_few_launches_of_it(found: list[Landscape]) -> None:
    run = bench_search.Run.of(found[2], search_methods.ours(found[2], 0, {"study": {"sampler": "auto"}}))
    assert run.found_s is not None
    assert run.failed_until == 0
    assert run.found_s < 0.25 * found[2].budget_s
