"""The margin and the estimate of noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from race_records import BALANCED, records, rounds

from sweep.racing import GPU_NOISE, Noise, Round, estimate_noise, measure, subset_margin


def test_margin_is_that_of_gupta() -> None:
    assert subset_margin(2, 0.01, math.inf) == pytest.approx(math.sqrt(2) * 2.32635, abs=2e-3)
    assert subset_margin(10, 0.05, math.inf) == pytest.approx(3.4182, abs=2e-3)  # his table of 1965, k = 10


@pytest.mark.parametrize(("many", "error", "df"), [(2, 0.05, 5.0), (12, 0.05, 10.0), (40, 0.02, 10.0)])
def test_margin_keeps_the_best_as_often_as_it_says(many: int, error: float, df: float) -> None:
    rng = np.random.default_rng(many)
    means = rng.normal(size=(60_000, many))
    sd = np.sqrt(rng.chisquare(df, 60_000) / df)
    lost = float(np.mean(means[:, 0] - means.min(axis=1) > subset_margin(many, error, df) * sd))
    assert lost == pytest.approx(error, rel=0.15)


@pytest.mark.parametrize(("many", "error"), [(1, 0.01), (5, 0.0), (5, 0.5)])
def test_no_margin_for_nonsense(many: int, error: float) -> None:
    with pytest.raises(ValueError, match="no margin"):
        subset_margin(many, error, 10.0)


def test_noise_is_above_zero() -> None:
    with pytest.raises(ValueError, match="above zero"):
        Noise(0.0, 0.1, 5.0)


def test_noise_is_learned_from_launches_of_equal_flags() -> None:
    rng = np.random.default_rng(5)
    baseline = measure(rounds(), BALANCED)
    launches = []
    for seed in range(30):
        server = float(np.exp(rng.normal(0.0, 0.25)))
        launches.append(
            [
                Round.of(records(slow=server * float(np.exp(rng.normal(0.0, 0.08))), number=k, seed=seed, count=60))
                for k in range(3)
            ]
        )
    found = estimate_noise(launches, BALANCED, baseline, Noise(0.06, 0.03, 1.0))
    assert found.server_sd == pytest.approx(0.25, rel=0.4)
    assert found.round_sd == pytest.approx(0.08, rel=0.4)
    assert found.df == 30.0
    held = estimate_noise(launches[:2], BALANCED, baseline, GPU_NOISE)
    assert held.df == GPU_NOISE.df + 1
    assert GPU_NOISE.server_sd / 2 < held.server_sd < found.server_sd


def test_without_repeated_launches_the_prior_stays() -> None:
    baseline = measure(rounds(), BALANCED)
    assert estimate_noise([], BALANCED, baseline, GPU_NOISE) is GPU_NOISE
    assert estimate_noise([rounds()], BALANCED, baseline, GPU_NOISE) is GPU_NOISE
    assert estimate_noise([rounds(), rounds(1)], BALANCED, baseline, GPU_NOISE) is GPU_NOISE
    single = estimate_noise([rounds(1), rounds(1, slow=1.5)], BALANCED, baseline, GPU_NOISE)
    assert single.server_sd > GPU_NOISE.server_sd
    assert single.round_sd == GPU_NOISE.round_sd
