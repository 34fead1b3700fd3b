"""Percentiles over drawn owners, against numpy on what each draw holds written out."""

from __future__ import annotations

import numpy as np
import pytest

from sweep.verdict.resampled import Ranks


@pytest.mark.parametrize("percentile", [0.5, 50.0, 95.0, 99.0, 99.9])
@pytest.mark.parametrize(
    ("owners", "values", "ties"), [(1, 1, False), (3, 7, False), (40, 900, True), (60, 5_000, False)]
)
def test_it_is_numpys_percentile_of_every_draw(owners: int, values: int, ties: bool, percentile: float) -> None:
    rng = np.random.default_rng([owners, values])
    numbers = rng.integers(1, 9, values).astype(float) if ties else rng.lognormal(3.0, 1.0, values)
    whose = rng.integers(0, owners, values)
    draws = rng.multinomial(owners, [1 / owners] * owners, size=20).astype(np.int32)
    found = Ranks.of(numbers, whose, draws).percentile(percentile)
    for row, value in zip(draws, found, strict=True):
        drawn = np.repeat(numbers, row[whose])
        if len(drawn):
            assert value == pytest.approx(np.percentile(drawn, percentile), rel=1e-12)
        else:
            assert np.isnan(value)
