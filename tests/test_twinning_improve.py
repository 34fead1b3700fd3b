"""What is promising: expected improvement, what the twin is off by, what a launch tells."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sweep.twin import Engine
from sweep.twinning.basis import distance
from sweep.twinning.improve import Residuals, expected_improvement, information

SMALL, NEAR, FAR = Engine(max_num_seqs=8), Engine(max_num_seqs=10), Engine(max_num_seqs=512)


@pytest.mark.parametrize(("mean", "deviation", "best"), [(0.0, 0.2, 1.0), (-0.1, 0.05, 1.0), (0.3, 0.1, 1.2)])
def test_expected_improvement_is_the_mean_of_what_is_below(mean: float, deviation: float, best: float) -> None:
    values = np.exp(mean + deviation * np.random.default_rng(0).standard_normal(400_000))
    drawn = float(np.maximum(best - values, 0.0).mean())
    assert expected_improvement(mean, deviation**2, best) == pytest.approx(drawn, rel=0.03, abs=1e-5)


def test_without_doubt_it_is_the_difference() -> None:
    assert expected_improvement(math.log(0.8), 0.0, 1.0) == pytest.approx(0.2)
    assert expected_improvement(math.log(1.2), 0.0, 1.0) == 0.0


def test_what_the_twin_is_off_by_carries_over_to_near_settings_alone() -> None:
    found = Residuals.of([SMALL, SMALL], [0.2, 0.24], 0.05, distance)
    here, near, far = (found.at(one) for one in (SMALL, NEAR, FAR))
    assert 0.15 < here[0] < 0.22, "pulled to nothing a little"
    assert 0.1 < near[0] < here[0]
    assert abs(far[0]) < 0.01
    assert here[1] < near[1] < far[1] <= found.size**2


def test_nothing_measured_is_nothing_known() -> None:
    found = Residuals.of([], [], 0.05, distance)
    assert found.at(SMALL) == (0.0, found.size**2)


def test_a_launch_that_members_disagree_about_tells_more() -> None:
    rng = np.random.default_rng(0)
    agreed, unlike = (1.0 + size * rng.standard_normal((8, 3)) for size in (0.001, 0.3))
    assert information(np.log(np.abs(unlike)), 0.05) > 5 * information(np.log(np.abs(agreed)), 0.05) >= 0.0
    assert information(np.full((8, 3), np.nan), 0.05) == 0.0
    # Two independent figures of one deviation each, by hand: log(1 + 1 / 0.25) of each, halved.
    corners = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]) * math.sqrt(3.0 / 4.0)
    assert information(corners, 0.5) == pytest.approx(2 * 0.5 * math.log(5.0))
