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


def test_what_the_twin_is_off_by_carries_over_to_near_settings() -> None:
    found = Residuals.of([SMALL, SMALL], [0.28, 0.32], FAR, 0.02, distance)
    here, near, far = (found.at(one) for one in (SMALL, NEAR, FAR))
    assert 0.25 < here[0] < 0.3, "pulled to nothing a little"
    assert 0.2 < near[0] < here[0]
    assert abs(far[0]) < 0.02
    assert here[1] < near[1]
    # What today's flags are off by is in the score of every setting, of those far from both as well.
    other = Engine(max_num_seqs=8, max_num_batched_tokens=256 * 2048)
    assert 0.05 < found.at(other)[0] < near[0]
    assert found.between(SMALL, SMALL) == pytest.approx(0.0, abs=1e-9)
    assert 0.0 < found.between(SMALL, NEAR) < found.between(SMALL, other)


def test_it_is_a_normal_distribution_given_what_was_measured() -> None:
    """By hand for one launch: covariances of f - f0 and the noise of both launches."""
    found = Residuals.of([SMALL], [0.2], FAR, 0.05, distance)
    apart = 1.0 - math.exp(-0.5 * (distance(SMALL, FAR) / 2.0) ** 2)
    shared = found.size**2 * 2.0 * apart + found.noise**2
    measured = shared + found.noise**2
    assert found.at(SMALL)[0] == pytest.approx(0.2 * shared / measured)
    assert found.at(SMALL)[1] == pytest.approx(shared - shared**2 / measured)
    # Today's flags were measured, too: where others are all worse their launch was a lucky one, perhaps.
    assert found.at(FAR)[0] == pytest.approx(0.2 * found.noise**2 / measured)


def test_noise_neither_proves_the_twin_nor_disproves_it() -> None:
    """Three scores off by 20 %: with launches as noisy as that the twin may be right or not, without noise it is not;
    and three that are as it says show more where launches are quiet."""
    engines = [
        Engine(max_num_seqs=seats, max_num_batched_tokens=tokens) for seats, tokens in ((4, 64), (64, 512), (8, 8192))
    ]
    known = {
        (off, noise): Residuals.of(engines, [off, -off, off], FAR, noise, distance).size
        for off in (0.01, 0.2)
        for noise in (0.02, 0.2)
    }
    unknown = Residuals.of([], [], FAR, 0.02, distance).size
    assert known[0.01, 0.02] < 0.6 * unknown
    assert known[0.2, 0.02] > 1.5 * unknown
    assert 0.6 * unknown < known[0.01, 0.2] < known[0.2, 0.2] < 1.5 * unknown


def test_the_same_setting_launched_again_shows_the_noise() -> None:
    quiet = Residuals.of([SMALL, SMALL, FAR], [0.2, 0.21, 0.0], FAR, 0.05, distance)
    loud = Residuals.of([SMALL, SMALL, FAR], [0.2, 0.0, -0.2], FAR, 0.05, distance)
    assert quiet.noise < 0.05 < loud.noise


def test_nothing_measured_is_nothing_known() -> None:
    found = Residuals.of([], [], FAR, 0.05, distance)
    assert found.at(SMALL)[0] == 0.0
    assert found.at(SMALL)[1] > found.at(FAR)[1] == pytest.approx(found.noise**2)


def test_a_launch_that_members_disagree_about_tells_more() -> None:
    rng = np.random.default_rng(0)
    agreed, unlike = (1.0 + size * rng.standard_normal((8, 3)) for size in (0.001, 0.3))
    assert information(np.log(np.abs(unlike)), 0.05) > 5 * information(np.log(np.abs(agreed)), 0.05) >= 0.0
    assert information(np.full((8, 3), np.nan), 0.05) == 0.0
    # Two independent figures of one deviation each, by hand: log(1 + 1 / 0.25) of each, halved.
    corners = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]) * math.sqrt(3.0 / 4.0)
    assert information(corners, 0.5) == pytest.approx(2 * 0.5 * math.log(5.0))
