from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from sweep.config.models import SearchSpaceConfig
from sweep.errors import ConfigError
from sweep.search_space import SearchSpace

DEMO: dict[str, Any] = {
    "gpu-memory-utilization": {"type": "float", "low": 0.6, "high": 0.95, "step": 0.05},
    "max-num-seqs": {"type": "int", "low": 8, "high": 256, "log": True},
    "max-num-batched-tokens": {"type": "choice", "values": [64, 512, 2048, None]},
    "enable-prefix-caching": {"type": "bool", "or_null": True},
}


def space(parameters: dict[str, Any], *constraints: str, **fixed: object) -> SearchSpace:
    config = SearchSpaceConfig.model_validate({"parameters": parameters, "constraints": constraints})
    return SearchSpace.from_config(config, {name.replace("_", "-"): value for name, value in fixed.items()})


def test_order_and_size() -> None:
    demo = space(DEMO)
    assert demo.names == tuple(DEMO)
    assert demo.size() == 8 * 249 * 4 * 3
    assert demo.feasible_size() == demo.size()


def test_size_of_a_continuous_space_is_none() -> None:
    free = space({"x": {"type": "float", "low": 0.0, "high": 1.0}, "n": {"type": "int", "low": 1, "high": 3}})
    assert free.size() is None
    assert free.feasible_size() is None
    with pytest.raises(ValueError, match="continuous"):
        next(free.points())


def test_feasible_size_counts_what_keeps_the_constraints() -> None:
    small = space({"a": {"type": "int", "low": 1, "high": 4}, "b": {"type": "int", "low": 1, "high": 4}}, "a > b")
    assert small.size() == 16
    assert small.feasible_size() == 6
    assert small.feasible_size(limit=15) is None


def test_stepped_floats_are_the_decimals_as_typed() -> None:
    grid = space({"u": {"type": "float", "low": 0.6, "high": 0.95, "step": 0.05}})
    assert [point["u"] for point in grid.points()] == [0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95]
    ragged = space({"u": {"type": "float", "low": 0.1, "high": 0.5, "step": 0.3}})
    assert [point["u"] for point in ragged.points()] == [0.1, 0.4]
    ints = space({"n": {"type": "int", "low": 8, "high": 31, "step": 8, "or_null": True}})
    assert [point["n"] for point in ints.points()] == [8, 16, 24, None]


def test_samples_lie_in_the_space_keep_the_constraints_and_repeat_by_seed() -> None:
    demo = space(DEMO, "max-num-batched-tokens >= max-num-seqs")
    rng = random.Random(5)
    drawn = [demo.sample(rng) for _ in range(300)]
    assert all(demo.contains(point) and demo.violated(point) is None for point in drawn)
    assert all(point == demo.quantise(point) for point in drawn)
    again = random.Random(5)
    assert drawn == [demo.sample(again) for _ in range(300)]
    assert {type(point["max-num-seqs"]) for point in drawn} == {int}
    assert {point["gpu-memory-utilization"] for point in drawn} == {0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95}
    assert {point["enable-prefix-caching"] for point in drawn} == {True, False, None}


def test_samples_are_uniform_over_the_grid_and_over_magnitudes() -> None:
    rng = random.Random(1)
    even = space({"n": {"type": "int", "low": 0, "high": 9}})
    counts = Counter(even.sample(rng)["n"] for _ in range(5000))
    assert all(400 < counts[n] < 600 for n in range(10))
    log = space({"n": {"type": "int", "low": 1, "high": 1024, "log": True}})
    low = sum(1 for _ in range(2000) if int(str(log.sample(rng)["n"])) <= 32)
    assert 900 < low < 1150  # half the magnitudes


def test_null_keeps_a_fair_share_of_a_long_range() -> None:
    rng = random.Random(2)
    long = space({"n": {"type": "int", "low": 1, "high": 1000, "or_null": True}})
    nulls = sum(1 for _ in range(2000) if long.sample(rng)["n"] is None)
    assert 320 < nulls < 480


def test_continuous_values_have_few_digits_and_stay_inside() -> None:
    rng = random.Random(2)
    narrow = space({"x": {"type": "float", "low": 0.12345678, "high": 0.12345689, "log": True}})
    for _ in range(50):
        x = narrow.sample(rng)["x"]
        assert isinstance(x, float)
        assert 0.12345678 <= x <= 0.12345689
    wide = space({"x": {"type": "float", "low": 0.001, "high": 10.0}})
    assert all(len(repr(wide.sample(rng)["x"])) <= 10 for _ in range(50))


def test_violated_names_the_constraint_and_sees_fixed_flags() -> None:
    demo = space(DEMO, "max-num-batched-tokens >= max-num-seqs", "max-num-seqs <= max-model-len", max_model_len=100)
    fine = {"gpu-memory-utilization": 0.9, "max-num-seqs": 64, "max-num-batched-tokens": 64}
    assert demo.violated(fine) is None
    assert demo.violated({**fine, "max-num-seqs": 65}) == "max-num-batched-tokens >= max-num-seqs"
    assert (
        demo.violated({**fine, "max-num-batched-tokens": None, "max-num-seqs": 101}) == "max-num-seqs <= max-model-len"
    )


def test_contains() -> None:
    demo = space(DEMO)
    point = {
        "gpu-memory-utilization": 0.7,
        "max-num-seqs": 32,
        "max-num-batched-tokens": None,
        "enable-prefix-caching": True,
    }
    assert demo.contains(point)
    assert demo.contains({**point, "gpu-memory-utilization": 0.7000000000000001})
    assert demo.contains({**point, "max-num-seqs": 32.0})
    assert demo.contains({k: v for k, v in point.items() if v is not None})
    assert not demo.contains({**point, "gpu-memory-utilization": 0.72})
    assert not demo.contains({**point, "gpu-memory-utilization": 1.0})
    assert not demo.contains({**point, "gpu-memory-utilization": None})
    assert not demo.contains({**point, "gpu-memory-utilization": float("nan")})
    assert not demo.contains({**point, "max-num-seqs": 32.5})
    assert not demo.contains({**point, "max-num-seqs": True})
    assert not demo.contains({**point, "max-num-batched-tokens": 1024})
    assert not demo.contains({**point, "enable-prefix-caching": 1})
    assert not demo.contains({**point, "other": 1})


def test_key_is_equal_for_equal_points_only() -> None:
    demo = space(DEMO)
    point = {
        "gpu-memory-utilization": 0.7,
        "max-num-seqs": 32,
        "max-num-batched-tokens": 512,
        "enable-prefix-caching": None,
    }
    same = demo.key(point)
    assert demo.key({**point, "gpu-memory-utilization": 0.6 + 2 * 0.05, "max-num-seqs": 32.0}) == same
    assert demo.key(dict(reversed(point.items()))) == same
    assert demo.key({k: v for k, v in point.items() if v is not None}) == same
    assert demo.key({**point, "block-size": 16}) == same
    assert hash(demo.key(point)) == hash(same)
    different = [("enable-prefix-caching", False), ("max-num-batched-tokens", None), ("gpu-memory-utilization", 0.72)]
    assert len({same, *(demo.key({**point, name: value}) for name, value in different)}) == 4


def test_one_and_true_are_different_choices() -> None:
    mixed = space({"x": {"type": "choice", "values": [1, True, "auto", None]}})
    keys = {mixed.key(point) for point in mixed.points()}
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("constraints", "words"),
    [
        (("max-num-seq > 3",), "did you mean 'max-num-seqs'"),
        (("max-num-seqs > 3", "max-num-seq > 3"), r"constraints\[1\].*did you mean"),
        (("enable-prefix-caching > 3",), "is not a number"),
        (("served > 3",), "neither searched nor under serve.flags"),
        (("block-size <= 16",), "broken by the flags under serve.flags alone"),
        (("allowed > 1",), "allowed is list"),
    ],
)
def test_bad_constraints_are_found_at_once(constraints: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        space(DEMO, *constraints, block_size=32, allowed=[1])
    assert caught.value.key.startswith("search_space.constraints[")
    assert "\n" not in str(caught.value)


def test_a_space_without_a_valid_point_says_so() -> None:
    empty = space({"x": {"type": "float", "low": 0.0, "high": 1.0}}, "x > 2")
    with pytest.raises(ConfigError, match="no valid point"):
        empty.sample(random.Random(0))


def test_the_needle_of_a_countable_space_is_found() -> None:
    needle = space({"a": {"type": "int", "low": 0, "high": 24_999}}, "a == 777")
    assert needle.sample(random.Random(0)) == {"a": 777}
