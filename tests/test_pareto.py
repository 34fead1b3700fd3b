"""Which points no other dominates."""

from __future__ import annotations

import random

import pytest

from sweep.errors import ConfigError
from sweep.pareto import check_front, front_of

LATENCIES = ("p95_ttft_ms", "p95_tpot_ms", "p99_itl_ms")


def test_a_front_by_hand() -> None:
    points = {0: (1.0, 9.0), 1: (2.0, 5.0), 2: (2.0, 6.0), 3: (3.0, 5.0), 4: (8.0, 1.0), 5: (2.0, 5.0)}
    assert front_of(points, LATENCIES[:2]) == (0, 1, 4, 5)
    assert front_of({}, LATENCIES[:2]) == ()


def test_a_throughput_is_wanted_large() -> None:
    points = {0: (10.0, 100.0), 1: (10.0, 120.0), 2: (9.0, 90.0), 3: (11.0, 119.0)}
    assert front_of(points, ("p95_ttft_ms", "output_throughput_tokens_per_s")) == (1, 2)


@pytest.mark.parametrize("count", [2, 3])
def test_each_point_left_out_has_one_that_is_better(count: int) -> None:
    rng = random.Random(count)
    points = {n: tuple(float(rng.randint(0, 12)) for _ in range(count)) for n in range(200)}
    front = set(front_of(points, LATENCIES[:count]))
    assert 1 < len(front) < 200

    def beats(one: int, other: int) -> bool:
        pairs = list(zip(points[one], points[other], strict=True))
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    for number in points:
        assert (number in front) is not any(beats(other, number) for other in points)
        assert number in front or any(beats(other, number) for other in front)


@pytest.mark.parametrize("metrics", [(), ("p95_ttft_ms",), ("p95_ttft_ms",) * 2, (*LATENCIES, "p95_e2el_ms")])
def test_fronts_that_cannot_be_drawn(metrics: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="two or three"):
        check_front(metrics)
