"""The studies in virtual time that `scripts/bench_scale.py` plays."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from scale_world import BASELINE, BEST, long_night, night, truth


def test_a_night_runs_all_its_trials_in_the_time_they_take_and_the_drivers() -> None:
    one = night(9, 1, 5.0, seed=1)
    assert one.trials == 9
    assert one.virtual_s == pytest.approx(9 * 5.0 + one.driver_s)
    assert one.driver_s > 0
    four = night(9, 4, 5.0, seed=1)
    assert four.virtual_s == pytest.approx(5.0 + 2 * 5.0, abs=1.0), "the baseline alone, then two times four"


def test_what_ray_costs_is_the_drivers_time() -> None:
    slow = night(9, 1, 5.0, seed=1, ray_s=2.0)
    assert slow.virtual_s == pytest.approx(9 * (5.0 + 2.0), abs=1.0)


def test_the_truth_has_its_optimum_where_it_says() -> None:
    assert truth(BASELINE) == 1.0
    assert min(truth({**BASELINE, "max-num-seqs": seqs}) for seqs in (8, 64, 512)) > BEST
    assert night(30, 2, 5.0, seed=3).best < 1.0


def test_a_long_record_is_asked_for_its_next_trial() -> None:
    took_ms, rss_gib = long_night(40, 2)
    assert took_ms > 0
    assert rss_gib > 0
