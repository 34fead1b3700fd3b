"""Steps from the best flags so far: which flag, which way, and what is not followed."""

from __future__ import annotations

from typing import Any

from sweep.config import SearchSpaceConfig
from sweep.records import EngineSummary
from sweep.search_space import SearchSpace
from sweep.searcher.outcome import Outcome, Told
from sweep.searcher.steps import Steps
from sweep.trial import Finished, Flag, TrialKind, TrialStatus

PARAMETERS: dict[str, Any] = {
    "gpu-memory-utilization": {"type": "float", "low": 0.3, "high": 0.9, "step": 0.1},
    "max-num-seqs": {"type": "choice", "values": [4, 8, 16, 32, 64, 128]},
    "max-num-batched-tokens": {"type": "choice", "values": [256, 512, 2048, 8192]},
    "block-size": {"type": "choice", "values": [16, 32]},
    "enable-prefix-caching": {"type": "bool"},
}
BASE: dict[str, Flag] = {
    "gpu-memory-utilization": 0.6,
    "max-num-seqs": 8,
    "max-num-batched-tokens": 2048,
    "block-size": 16,
    "enable-prefix-caching": True,
}


def space(parameters: dict[str, Any] = PARAMETERS, constraints: list[str] | None = None) -> SearchSpace:
    config = SearchSpaceConfig.model_validate({"parameters": parameters, "constraints": constraints or []})
    return SearchSpace.from_config(config, {})


def told(number: int, score: float = 1.0, **changes: Flag) -> Told:
    flags = BASE | {name.replace("_", "-"): value for name, value in changes.items()}
    return Told(number, flags, Outcome("complete", score))


def steps(
    *record: Told, engine: EngineSummary | None = None, within: SearchSpace | None = None
) -> list[tuple[str, Flag]]:
    """The flags changed of the best, in their order, each with its value."""
    found = Steps(space() if within is None else within)
    best = min(record, key=lambda one: one.outcome.value or 0.0)
    for one in record:
        found.hear(
            Finished(one.number, TrialKind.SEARCH, one.flags, TrialStatus.COMPLETE, one.outcome.value, engine=engine)
        )
    points = list(found.points(record))
    changed = [[(name, value) for name, value in point.items() if value != best.flags[name]] for point in points]
    return [one[0] for one in changed if len(one) == 1]


def axes(found: list[tuple[str, Flag]]) -> list[str]:
    return list(dict.fromkeys(name for name, _ in found))


def test_every_value_of_every_flag_is_a_step_once() -> None:
    found = steps(told(0))
    assert len(found) == len(set(found)) == 6 + 5 + 3 + 1 + 1


def test_where_requests_waited_for_seats_there_are_more_of_them_first() -> None:
    found = steps(
        told(0), engine=EngineSummary(peak_running=8, peak_waiting=24, preemptions=0, peak_kv_usage_share=0.2)
    )
    assert found[0] == ("max-num-seqs", 16)  # the geometric mean of 8 seats and 32 requests
    assert axes(found)[1] == "max-num-batched-tokens"
    assert dict(found[5:])  # the rest comes, too
    assert axes(found)[-1] == "gpu-memory-utilization"


def test_where_the_cache_was_full_there_is_more_memory_first() -> None:
    found = steps(told(0), engine=EngineSummary(peak_running=8, peak_waiting=24, preemptions=3))
    assert found[0][0] in ("gpu-memory-utilization", "max-num-seqs")
    memory = [value for name, value in found if name == "gpu-memory-utilization"]
    seats = [value for name, value in found if name == "max-num-seqs"]
    assert isinstance(memory[0], float)
    assert memory[0] > 0.6
    assert seats[0] == 4


def test_where_nothing_binds_smaller_steps_of_the_scheduler_come_first() -> None:
    found = steps(told(0), engine=EngineSummary(peak_running=3, peak_waiting=0, preemptions=0, peak_kv_usage_share=0.1))
    trades = [one for one in found if one[0] == "max-num-batched-tokens"]
    assert trades[0] == ("max-num-batched-tokens", 512)
    assert axes(found)[-1] == "gpu-memory-utilization"


def test_the_best_is_left_and_a_way_that_got_worse_is_not_followed() -> None:
    engine = EngineSummary(peak_running=8, peak_waiting=24, preemptions=0)
    record = [told(0), told(1, 0.8, max_num_seqs=16), told(2, 0.9, max_num_seqs=32)]
    found = steps(*record, engine=engine)
    assert ("max-num-seqs", 8) in found  # the caller knows what was tried
    assert set(found[-2:]) == {("max-num-seqs", 64), ("max-num-seqs", 128)}


def test_where_neither_alone_helps_seats_and_steps_are_changed_at_once() -> None:
    engine = EngineSummary(peak_running=8, peak_waiting=24, preemptions=0)
    record = [told(0), told(1, 1.2, max_num_seqs=16), told(2, 1.1, max_num_batched_tokens=512)]
    one = Steps(space())
    one.hear(Finished(0, TrialKind.BASELINE, BASE, TrialStatus.COMPLETE, 1.0, engine=engine))
    known = [told_.flags for told_ in record]
    points = [point for point in one.points(record) if point not in known]
    two = [place for place, point in enumerate(points) if sum(point[name] != BASE[name] for name in BASE) == 2]
    assert points[two[0]] == {**BASE, "max-num-seqs": 16, "max-num-batched-tokens": 512}
    assert two[0] < next(place for place, point in enumerate(points) if point["block-size"] == 32)


def test_nothing_before_something_was_measured_and_slos_come_before_scores() -> None:
    one = Steps(space())
    assert list(one.points([Told(0, BASE, Outcome("infeasible"))])) == []
    kept = Told(1, BASE | {"max-num-seqs": 64}, Outcome("complete", 1.5, {"p95_ttft_ms": -0.1}))
    missed = Told(2, BASE, Outcome("complete", 0.5, {"p95_ttft_ms": 0.2}))
    points = list(one.points([kept, missed]))
    assert sum(point["max-num-seqs"] == 64 for point in points) == 6 + 3 + 1 + 1


def test_constraints_hold_and_a_baseline_outside_the_space_is_left_from_inside() -> None:
    within = space(constraints=["max-num-batched-tokens >= 16 * max-num-seqs"])
    assert ("max-num-seqs", 128) in steps(told(0), within=within)
    assert ("max-num-batched-tokens", 256) in steps(told(0), within=within)
    lower = [one for one in steps(told(0, max_num_seqs=64), within=within) if one[0] == "max-num-batched-tokens"]
    assert lower == [("max-num-batched-tokens", 8192)]
    outside = list(Steps(space()).points([told(0, max_num_seqs=None)]))
    assert outside
    assert all(space().contains(point) for point in outside)


def test_a_range_without_a_grid_has_steps_too() -> None:
    wide = space({"long-prefill-token-threshold": {"type": "int", "low": 1, "high": 100_000, "log": True}})
    points = list(Steps(wide).points([Told(0, {"long-prefill-token-threshold": 1000}, Outcome("complete", 1.0))]))
    values = [point["long-prefill-token-threshold"] for point in points]
    assert {1, 100_000, 500, 2000} <= set(values)
    assert len(values) < 20
    free = space({"rope-scale": {"type": "float", "low": 0.5, "high": 4.0}})
    assert len(list(Steps(free).points([Told(0, {"rope-scale": 1.0}, Outcome("complete", 1.0))]))) > 3
