from __future__ import annotations

import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from sweep.config.models import SearchSpaceConfig
from sweep.errors import ConfigError
from sweep.guide import PassedOver, Refusal, Same
from sweep.search_space import SearchSpace
from sweep.searcher.proposer import STARTUP_TRIALS, Outcome, Proposer
from sweep.trial import Finished, Flag, Flags, TrialKind, TrialStatus

ROOT = Path(__file__).parents[1]
MIXED: dict[str, Any] = {
    "gpu-memory-utilization": {"type": "float", "low": 0.6, "high": 0.95, "step": 0.05},
    "max-num-seqs": {"type": "int", "low": 8, "high": 256, "log": True},
    "max-num-batched-tokens": {"type": "choice", "values": [64, 128, 512, 2048, None]},
    "kv-cache-dtype": {"type": "choice", "values": ["auto", "fp8"]},
    "enable-prefix-caching": {"type": "bool", "or_null": True},
    "swap": {"type": "float", "low": 0.1, "high": 10.0, "log": True, "or_null": True},
    "only": {"type": "choice", "values": [7]},
}
SMALL: dict[str, Any] = {
    "a": {"type": "int", "low": 1, "high": 5},
    "b": {"type": "int", "low": 1, "high": 5},
    "c": {"type": "bool"},
}
UNIT: dict[str, Any] = {
    "x": {"type": "float", "low": 0.0, "high": 1.0},
    "y": {"type": "float", "low": 0.0, "high": 1.0},
}


def space(parameters: dict[str, Any], *constraints: str) -> SearchSpace:
    config = SearchSpaceConfig.model_validate({"parameters": parameters, "constraints": constraints})
    return SearchSpace.from_config(config, {"block-size": 32})


def number(flags: Flags, name: str) -> float:
    value = flags[name]
    assert isinstance(value, (int, float))
    return value


def mixed_outcome(trial: int, flags: Flags) -> Outcome:
    """A landscape with every kind of outcome."""
    utilization, seqs = number(flags, "gpu-memory-utilization"), number(flags, "max-num-seqs")
    if trial % 9 == 4:
        return Outcome("ignored")
    if utilization > 0.85:
        return Outcome("infeasible")
    value = 1 + abs(math.log2(seqs / 64)) / 4 + (flags["swap"] is None) * 0.1
    return Outcome("complete", value, {"p95_ttft_ms": 40 / seqs - 1, "p99_itl_ms": seqs / 200 - 1})


def run(
    proposer: Proposer, trials: int, outcome: Callable[[int, Flags], Outcome]
) -> list[tuple[int, dict[str, Flag], Outcome]]:
    record = []
    for trial in range(1, trials + 1):
        flags = proposer.propose(trial)
        assert flags is not None
        record.append((trial, flags, outcome(trial, flags)))
        proposer.tell(*record[-1])
    return record


def mixed_proposer(seed: int = 3, sampler: Literal["tpe", "random"] = "tpe") -> Proposer:
    mixed = space(MIXED, "max-num-batched-tokens >= max-num-seqs")
    return Proposer(mixed, seed=seed, sampler=sampler, slo_names=("p95_ttft_ms", "p99_itl_ms"))


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_proposer_rebuilt_after_any_trial_goes_on_the_same(sampler: Literal["tpe", "random"]) -> None:
    record = run(mixed_proposer(sampler=sampler), 30, mixed_outcome)
    assert {outcome.kind for _, _, outcome in record} == {"complete", "infeasible", "ignored"}
    for told in range(30):
        rebuilt = mixed_proposer(sampler=sampler)
        for trial, flags, outcome in record[:told]:
            rebuilt.tell(trial, json.loads(json.dumps(flags)), outcome)
        assert rebuilt.propose(told + 1) == record[told][1]


def test_the_order_of_telling_and_asking_more_often_change_nothing() -> None:
    record = run(mixed_proposer(), 24, mixed_outcome)
    pending = [record[20][1], record[22][1]]
    told = [entry for entry in record if entry[0] not in (21, 23)]
    expected = None
    for shuffle in range(4):
        proposer = mixed_proposer()
        mixed_order = told if shuffle == 0 else random.Random(shuffle).sample(told, len(told))
        for entry in mixed_order:
            proposer.tell(*entry)
            if shuffle == 2:
                proposer.propose(99, pending)
        expected = proposer.propose(25, pending) if expected is None else expected
        assert proposer.propose(25, pending) == expected
    assert expected is not None


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_trial_that_was_lost_from_the_record_gets_its_old_point(sampler: Literal["tpe", "random"]) -> None:
    """Whatever came later. Not one that was ignored: its point was free for others."""
    record = run(mixed_proposer(sampler=sampler), 30, mixed_outcome)
    for hole, flags, outcome in record:
        rebuilt = mixed_proposer(sampler=sampler)
        for entry in record:
            if entry[0] != hole:
                rebuilt.tell(*entry)
        again = rebuilt.propose(hole)
        assert again == flags or outcome.kind == "ignored"
        assert again not in [other for number, other, told in record if number != hole and told.kind != "ignored"]


def test_a_hole_in_a_space_that_was_tried_out_gets_its_old_point() -> None:
    small = space({"a": {"type": "int", "low": 0, "high": 5}, "b": {"type": "int", "low": 0, "high": 4}})
    record = run(Proposer(small, seed=7), 30, lambda _, flags: Outcome("complete", abs(number(flags, "a") - 4)))
    for hole, flags, _ in record:
        rebuilt = Proposer(small, seed=7)
        for entry in record:
            if entry[0] != hole:
                rebuilt.tell(*entry)
        assert rebuilt.propose(hole) == flags


def test_proposals_do_not_depend_on_hash_seeds_or_global_random_states() -> None:
    script = (
        "import sys, json; sys.path[:0] = ['tests', '.']; import test_proposer as t\n"
        "print(json.dumps([flags for _, flags, _ in t.run(t.mixed_proposer(), 16, t.mixed_outcome)]))"
    )
    before = random.getstate(), repr(np.random.get_state())
    here = [flags for _, flags, _ in run(mixed_proposer(), 16, mixed_outcome)]
    assert before == (random.getstate(), repr(np.random.get_state()))
    there = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(there.stdout) == here


def test_seeds_and_numbers_matter() -> None:
    one, two = mixed_proposer(seed=1), mixed_proposer(seed=2)
    for entry in run(mixed_proposer(), 15, mixed_outcome):
        one.tell(*entry)
        two.tell(*entry)
    assert one.propose(16) != two.propose(16)
    assert one.propose(16) != one.propose(17)
    assert one.propose(16) == one.propose(16)


def test_proposals_are_plain_valid_points_and_keep_the_constraints() -> None:
    mixed = space(MIXED, "max-num-batched-tokens >= max-num-seqs", "max-num-seqs % 8 == 0")
    proposer = Proposer(mixed, seed=0, slo_names=("p95_ttft_ms", "p99_itl_ms"))
    record = run(proposer, 30, mixed_outcome)
    for _, flags, _ in record:
        assert mixed.contains(flags)
        assert mixed.violated(flags) is None
        assert list(flags) == list(MIXED)
        assert all(type(value) in (int, float, str, bool, type(None)) for value in flags.values())
        assert flags == mixed.quantise(flags)
        assert flags["only"] == 7
    assert {flags["swap"] is None for _, flags, _ in record} == {True, False}
    assert len({mixed.key(flags) for _, flags, _ in record}) == 30


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_discrete_space_is_gone_through_without_repeats_and_then_ends(sampler: Literal["tpe", "random"]) -> None:
    small = space(SMALL, "a >= b")
    assert small.feasible_size() == 30
    proposer = Proposer(small, seed=5, sampler=sampler)
    baseline = {"a": 3, "b": 3, "c": True}
    proposer.tell(0, baseline, Outcome("complete", 1.0))
    record = run(proposer, 29, lambda _, flags: Outcome("complete", abs(number(flags, "a") - 4)))
    assert len({small.key(baseline), *(small.key(flags) for _, flags, _ in record)}) == 30
    assert proposer.propose(30) is None


def test_pending_points_are_not_proposed_and_end_a_space_too() -> None:
    proposer = Proposer(space(SMALL, "a >= b"), seed=5)
    pending: list[Flags] = []
    while (flags := proposer.propose(len(pending), pending)) is not None:
        assert flags not in pending
        pending.append(flags)
    assert len(pending) == 30


def test_parallel_proposals_spread() -> None:
    unit = space(UNIT)

    def spread(hidden: bool) -> float:
        distances = []
        for seed in range(4):
            proposer = Proposer(unit, seed=seed)
            run(proposer, 30, lambda _, flags: Outcome("complete", (number(flags, "x") - 0.5) ** 2))
            together: list[Flags] = []
            for trial in range(31, 37):
                flags = proposer.propose(trial, [] if hidden else together)
                assert flags is not None
                together.append(flags)
            xs = sorted(number(flags, "x") for flags in together)
            distances.append(xs[-1] - xs[0])
        return statistics.mean(distances)

    assert spread(hidden=False) > spread(hidden=True)


def test_a_point_the_machine_spoilt_is_proposed_again() -> None:
    small = space(SMALL, "a >= b")
    proposer = Proposer(small, seed=2)
    best = {"a": 4, "b": 2, "c": False}
    spoilt, repeated = False, False
    for trial in range(1, 60):
        flags = proposer.propose(trial)
        if flags is None:
            break
        repeated = repeated or (spoilt and flags == best)
        if flags == best and not spoilt:
            spoilt = True
            proposer.tell(trial, flags, Outcome("ignored"))
            continue
        distance = abs(number(flags, "a") - 4) + abs(number(flags, "b") - 2) + bool(flags["c"])
        proposer.tell(trial, flags, Outcome("complete", 1.0 + distance))
    assert spoilt
    assert repeated


def failing_share(seed: int, sampler: Literal["tpe", "random"], best_x: float) -> float:
    """Share of trials 41 to 60 in the half of the space where every start fails."""
    proposer = Proposer(space(UNIT), seed=seed, sampler=sampler)
    proposer.tell(0, {"x": 0.4, "y": 0.9}, Outcome("complete", 1.0))

    def outcome(_: int, flags: Flags) -> Outcome:
        x, y = number(flags, "x"), number(flags, "y")
        return Outcome("infeasible") if x > 0.5 else Outcome("complete", 0.5 + abs(x - best_x) + (y - 0.3) ** 2)

    record = run(proposer, 60, outcome)
    return statistics.mean(number(flags, "x") > 0.5 for _, flags, _ in record[40:])


def test_proposals_leave_a_region_that_always_fails() -> None:
    uniform = statistics.mean(failing_share(seed, "random", 0.25) for seed in range(8))
    inside = [failing_share(seed, "tpe", 0.25) for seed in range(4)]
    at_the_edge = [failing_share(seed, "tpe", 0.5) for seed in range(5)]
    assert 0.4 < uniform < 0.6
    assert statistics.mean(inside) < 0.2
    assert max(inside) < 0.4
    assert statistics.mean(at_the_edge) < uniform  # where the best setting is the last that starts


def test_proposals_leave_a_region_that_misses_an_slo() -> None:
    def share(seed: int, slo_names: tuple[str, ...]) -> float:
        proposer = Proposer(space(UNIT), seed=seed, slo_names=slo_names)

        def outcome(_: int, flags: Flags) -> Outcome:
            x = number(flags, "x")
            return Outcome("complete", 1 + abs(x - 0.75), {"p95_ttft_ms": x / 0.5 - 1})

        record = run(proposer, 45, outcome)
        return statistics.mean(number(flags, "x") > 0.5 for _, flags, _ in record[25:])

    without = statistics.mean(share(seed, ()) for seed in range(4))
    heeded = statistics.mean(share(seed, ("p95_ttft_ms",)) for seed in range(4))
    assert without > 0.8
    assert heeded < 0.6


def test_it_finds_the_best_region_sooner_than_chance() -> None:
    bowl: dict[str, Any] = {
        "seqs": {"type": "int", "low": 8, "high": 512, "log": True},
        "tokens": {"type": "choice", "values": [512, 1024, 2048, 4096, 8192]},
        "share": {"type": "float", "low": 0.5, "high": 0.95, "step": 0.01},
        "cache": {"type": "bool"},
    }

    def value(_: int, flags: Flags) -> Outcome:
        seqs = math.log2(number(flags, "seqs") / 96) ** 2 / 9
        tokens = math.log2(number(flags, "tokens") / 2048) ** 2 / 4
        share = (number(flags, "share") - 0.8) ** 2 * 12
        return Outcome("complete", 0.5 + seqs + tokens + share + 0.3 * (flags["cache"] is False))

    def best(seed: int, sampler: Literal["tpe", "random"]) -> float:
        record = run(Proposer(space(bowl), seed=seed, sampler=sampler), 36, value)
        return min(outcome.value for _, _, outcome in record if outcome.value is not None)

    tpe = [best(seed, "tpe") for seed in range(6)]
    chance = [best(seed, "random") for seed in range(20)]
    assert statistics.mean(tpe) - 0.5 < 0.7 * (statistics.mean(chance) - 0.5)


def test_what_tpe_sees_of_each_outcome() -> None:
    proposer = Proposer(space(UNIT), seed=0, slo_names=("p95_ttft_ms", "goodput_per_s"))
    point = {"x": 0.1, "y": 0.2}
    kept = {"goodput_per_s": -0.5, "p95_ttft_ms": -0.25}
    missed = {"p95_ttft_ms": 3.0, "goodput_per_s": math.inf}
    proposer.tell(7, {**point, "x": 0.7}, Outcome("infeasible"))
    proposer.tell(2, {**point, "x": 0.2}, Outcome("infeasible"))
    proposer.tell(3, {**point, "x": 0.3}, Outcome("complete", 1.25, kept))
    proposer.tell(9, {**point, "x": 0.9}, Outcome("complete", 4.0, missed))
    proposer.tell(5, {**point, "x": 0.5}, Outcome("complete", 0.75, kept))
    proposer.tell(6, {**point, "x": 0.6}, Outcome("ignored"))
    seen = proposer.seen()
    assert [trial.number - 1 for trial in seen] == [2, 3, 5, 7, 9]
    assert [trial.value for trial in seen] == [math.inf, 1.25, 0.75, 1.25, 4.0]  # worst of the lower numbers
    assert {tuple(trial.constraints) for trial in seen} == {("p95_ttft_ms", "goodput_per_s", "launch")}
    nothing_worked = {"p95_ttft_ms": 1.0, "goodput_per_s": 1.0, "launch": 1.0}
    assert [seen[0].constraints, seen[3].constraints] == [nothing_worked, nothing_worked]
    assert seen[1].constraints == {"p95_ttft_ms": -0.25, "goodput_per_s": -0.5, "launch": -1.0}
    assert seen[4].constraints == {"p95_ttft_ms": 0.75, "goodput_per_s": 1.0, "launch": -1.0}


def test_a_baseline_outside_the_space_is_no_obstacle() -> None:
    small = space(SMALL)
    for baseline in ({"a": None, "b": None, "c": None}, {"a": 99, "b": 1, "c": True}, {}):
        proposer = Proposer(small, seed=1)
        proposer.tell(0, baseline, Outcome("complete", 1.0))
        assert proposer.seen() == []
        assert len(run(proposer, 20, lambda _, flags: Outcome("complete", number(flags, "a")))) == 20


def test_a_baseline_between_grid_points_is_used_and_its_neighbours_remain() -> None:
    grid = space({"u": {"type": "float", "low": 0.6, "high": 0.95, "step": 0.05}})
    proposer = Proposer(grid, seed=1)
    proposer.tell(0, {"u": 0.92}, Outcome("complete", 1.0))
    assert len(proposer.seen()) == 1
    found = {flags["u"] for _, flags, _ in run(proposer, 8, lambda *_: Outcome("complete", 1.0))}
    assert found == {0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95}


def test_when_nothing_ever_works_it_keeps_looking_everywhere() -> None:
    record = run(Proposer(space(UNIT), seed=4), 40, lambda *_: Outcome("infeasible"))
    late = [number(flags, "x") for _, flags, _ in record[STARTUP_TRIALS:]]
    assert min(late) < 0.2
    assert max(late) > 0.8


def test_hard_constraints_are_kept_by_every_proposal() -> None:
    corner = space(UNIT, "x + y >= 1.9")
    record = run(Proposer(corner, seed=1), 30, lambda _, flags: Outcome("complete", number(flags, "x")))
    assert all(number(flags, "x") + number(flags, "y") >= 1.9 - 1e-9 for _, flags, _ in record)


def test_one_and_true_stay_different_choices() -> None:
    mixed = space({"x": {"type": "choice", "values": [4, 1, 2, True, None]}})
    proposer = Proposer(mixed, seed=1)
    record = run(proposer, 5, lambda *_: Outcome("complete", 1.0))
    assert {str(flags["x"]) for _, flags, _ in record} == {"4", "1", "2", "True", "None"}
    assert len({json.dumps(trial.params) for trial in proposer.seen()}) == 5


def test_numbers_to_choose_from_are_put_in_order() -> None:
    proposer = Proposer(space({"x": {"type": "choice", "values": [512, None, 64, 128]}}), seed=1)
    for trial, value in enumerate([64, 128, 512, None]):
        proposer.tell(trial, {"x": value}, Outcome("complete", 1.0))
    assert [trial.params.get("x") for trial in proposer.seen()] == [0, 1, 2, None]


def test_constraints_that_leave_nothing_are_the_users_mistake() -> None:
    with pytest.raises(ConfigError, match="no valid point"):
        Proposer(space(UNIT, "x + y > 2"), seed=1).propose(1)
    with pytest.raises(ConfigError, match="no valid point"):
        Proposer(space(SMALL, "a > 5"), seed=1).propose(1)


def test_finished_trials_are_heard_as_outcomes() -> None:
    proposer = Proposer(space(SMALL), seed=1, slo_names=("p95_ttft_ms",))
    flags = [{"a": a, "b": 1, "c": True} for a in range(1, 5)]

    def finished(trial: int, status: TrialStatus, score: float | None, **violations: float) -> Finished:
        return Finished(trial, TrialKind.SEARCH, flags[trial], status, score, violations)

    proposer.hear(finished(0, TrialStatus.COMPLETE, 1.0, p95_ttft_ms=-0.5))
    proposer.hear(finished(1, TrialStatus.INFEASIBLE, None))
    proposer.hear(finished(2, TrialStatus.FAILED, None))
    proposer.hear(finished(3, TrialStatus.COMPLETE, None, p95_ttft_ms=math.inf))
    assert [(trial.number - 1, trial.value) for trial in proposer.seen()] == [(0, 1.0), (1, 1.0)]


def test_wrong_tellings_are_refused() -> None:
    proposer = Proposer(space(SMALL), seed=1, slo_names=("p95_ttft_ms",))
    flags = {"a": 1, "b": 1, "c": True}
    with pytest.raises(ValueError, match="p95_ttft_ms"):
        proposer.tell(1, flags, Outcome("complete", 1.0))
    proposer.tell(1, flags, Outcome("complete", 1.0, {"p95_ttft_ms": 0.0}))
    with pytest.raises(ValueError, match="told before"):
        proposer.tell(1, flags, Outcome("infeasible"))
    with pytest.raises(ValueError, match="does not go"):
        Outcome("complete")
    with pytest.raises(ValueError, match="does not go"):
        Outcome("infeasible", 1.0)
    with pytest.raises(ValueError, match="not a number"):
        Outcome("complete", math.nan)
    with pytest.raises(ValueError, match="not a number"):
        Outcome("complete", 1.0, {"p95_ttft_ms": math.nan})


def test_optuna_stays_silent(capfd: pytest.CaptureFixture[str]) -> None:
    run(mixed_proposer(), STARTUP_TRIALS + 3, mixed_outcome)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("seed", range(6))
def test_any_space_gives_valid_new_points(seed: int) -> None:
    rng = random.Random(seed)
    makers: list[Callable[[], dict[str, Any]]] = [
        lambda: {"type": "int", "low": rng.randint(-5, 0), "high": rng.randint(0, 9), "or_null": rng.random() < 0.5},
        lambda: {"type": "int", "low": 1, "high": rng.randint(1, 99), "log": True, "or_null": rng.random() < 0.5},
        lambda: {"type": "int", "low": 16, "high": 16 + rng.randint(8, 50), "step": 8},
        lambda: {"type": "float", "low": 0.1, "high": 0.1 + rng.random() * 3, "or_null": rng.random() < 0.5},
        lambda: {"type": "float", "low": 0.1, "high": 0.8, "step": rng.choice([0.1, 0.07, 0.3])},
        lambda: {"type": "choice", "values": rng.sample([1, 2, 4.5, "a", "1", None, 8], rng.randint(1, 7))},
        lambda: {"type": "bool", "or_null": rng.random() < 0.5},
    ]
    drawn = space({f"p-{place}": rng.choice(makers)() for place in range(4)})
    proposer = Proposer(drawn, seed=seed)
    keys: set[object] = set()
    for trial in range(25):
        flags = proposer.propose(trial)
        if flags is None:
            assert len(keys) == drawn.size()
            break
        assert drawn.contains(flags)
        assert drawn.key(flags) not in keys
        keys.add(drawn.key(flags))
        proposer.tell(trial, flags, Outcome("infeasible") if rng.random() < 0.2 else Outcome("complete", rng.random()))


class Watchful:
    """A guide that refuses x > 0.5 until it has heard of trial 20, and takes whatever has y < 0.2 for trial 0."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def hear(self, finished: Finished) -> None:
        self.heard.append(finished.number)

    def refusal(self, number: int, flags: Flags) -> Refusal | None:
        wrong = float(flags["x"] or 0) > 0.5 and number <= 20
        return Refusal("too much", "memory", 0.99, audit=number % 7 == 0) if wrong else None

    def same_as(self, number: int, flags: Flags) -> Same | None:
        del number
        return Same(0) if float(flags["y"] or 0) < 0.2 else None

    def settled(self, number: int) -> Mapping[str, Flag]:
        return {"z": 1} if number > 25 else {}

    def verdict(self, number: int) -> str | None:
        return f"nothing more at {number}" if number > 99 else None


def guided(passed: list[PassedOver]) -> Proposer:
    parameters = {**UNIT, "z": {"type": "int", "low": 0, "high": 9}}
    return Proposer(space(parameters), seed=6, guide=Watchful(), on_passed_over=passed.append)


def test_a_guide_keeps_points_from_being_launched_and_what_it_said_survives_a_restart() -> None:
    passed: list[PassedOver] = []
    proposer = guided(passed)
    proposer.tell(0, {"x": 0.4, "y": 0.9, "z": 3}, Outcome("complete", 1.0))
    record = run(proposer, 30, lambda _, flags: Outcome("complete", 1 + number(flags, "x")))
    for trial, flags, _ in record:
        audited = any(one.number == trial and one.flags == flags and one.audited for one in passed)
        assert number(flags, "x") <= 0.5 or trial > 20 or audited
        assert audited is False or trial % 7 == 0
        assert number(flags, "y") >= 0.2
        assert flags["z"] == 1 or trial <= 25
    assert {one.refusal is None for one in passed} == {True, False}
    assert len({(one.number, tuple(one.flags.items())) for one in passed}) == len(passed)
    for told in (3, 12, 19, 22, 29):
        again: list[PassedOver] = []
        rebuilt = guided(again)
        rebuilt.tell(0, {"x": 0.4, "y": 0.9, "z": 3}, Outcome("complete", 1.0))
        for one in reversed(passed):
            if one.number <= told:
                rebuilt.recall(one)
        for entry in record[:told]:
            rebuilt.tell(*entry)
        assert rebuilt.propose(told + 1) == record[told][1]
        assert again == [one for one in passed if one.number == told + 1]


def test_nothing_is_proposed_where_all_is_refused() -> None:
    class No(Watchful):
        def refusal(self, number: int, flags: Flags) -> Refusal | None:
            del number, flags
            return Refusal("never", "memory", 1.0)

    for parameters in (SMALL, UNIT):
        assert Proposer(space(parameters), seed=1, guide=No()).propose(1) is None


def test_points_that_come_first_come_in_their_order_and_once() -> None:
    first = [{"a": 1, "b": 5, "c": True}, {"a": 5, "b": 1, "c": False}, {"a": 2, "b": 5, "c": True}]
    proposer = Proposer(space(SMALL, "b >= 1"), seed=1, first=[*first, first[0]])
    proposer.tell(0, first[1], Outcome("complete", 1.0))
    record = run(proposer, 4, lambda *_: Outcome("complete", 1.0))
    assert [flags for _, flags, _ in record[:2]] == [first[0], first[2]]
    assert [flags for _, flags, _ in record[2:]] == [
        flags for flags in (record[2][1], record[3][1]) if flags not in first
    ]


def test_a_grid_goes_through_the_space_as_the_study_file_has_it() -> None:
    grid = space({"a": {"type": "choice", "values": [8, 2, None]}, "b": {"type": "int", "low": 0, "high": 2}}, "b != 1")
    record = run(Proposer(grid, seed=1, sampler="grid"), 6, lambda *_: Outcome("infeasible"))
    assert [tuple(flags.values()) for _, flags, _ in record] == [(8, 0), (8, 2), (2, 0), (2, 2), (None, 0), (None, 2)]


def test_the_guide_hears_of_a_confirmation_and_the_search_does_not() -> None:
    guide = Watchful()
    proposer = Proposer(space(UNIT), seed=1, guide=guide)
    point = {"x": 0.5, "y": 0.5}
    proposer.hear(Finished(0, TrialKind.BASELINE, point, TrialStatus.COMPLETE, 1.0))
    proposer.hear(Finished(1, TrialKind.CONFIRM, point, TrialStatus.COMPLETE, 0.5))
    assert guide.heard == [0, 1]
    assert len(proposer.seen()) == 1
