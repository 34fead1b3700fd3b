"""The loads of a study: search and confirmation, rounds, and what is said about them before anything runs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from sweep.config import LoadSection
from sweep.errors import DatasetError
from sweep.knee import LADDER
from sweep.loads import Loads, ladder_prompts, load_notices, make_loads
from sweep.objective import Objective
from sweep.racing import Planned
from sweep.workload import DEMO_FILE, Conversations, Exchange, LoadPlan, SelectionRules, check_sharegpt


def section(**keys: Any) -> LoadSection:
    return LoadSection.model_validate({"num_prompts": 20, "warmup_prompts": 4, "output_tokens": 8, **keys})


def conversations(count: int) -> Conversations:
    draw = random.Random(5)
    exchanges = tuple(Exchange(row, f"w{row} " + "x " * draw.randrange(4, 60), "y " * 9) for row in range(count))
    return Conversations(Path("prompts.json"), "", count, exchanges)


def make(count: int = 200, *, blocks: int = 8, seed: int = 3, **keys: Any) -> Loads:
    return make_loads(
        section(**keys),
        conversations(count),
        SelectionRules(),
        lambda text: len(text.split()),
        seed=seed,
        blocks=blocks,
    )


def sent(plan: LoadPlan) -> set[str]:
    parts = (plan.warmup, *plan.rounds) if plan.warmup else plan.rounds
    return {prompt.prompt_id for one in parts for prompt in one.prompts}


def test_the_search_and_its_confirmation_share_no_prompt() -> None:
    loads = make()
    assert [len(one.prompts) for one in loads.plan.rounds] == [7, 7, 6]
    assert len(loads.confirmation) == 8
    for plan in loads.confirmation:
        assert [len(one.prompts) for one in plan.rounds] == [7, 7, 6]
        assert not sent(plan) & sent(loads.plan)
    assert make() == loads
    assert make(seed=4).plan != loads.plan


@pytest.mark.parametrize("changes", [{"held_out_share": 0}, {"blocks": 0}])
def test_nothing_to_confirm_with(changes: dict[str, Any]) -> None:
    loads = make(**changes)
    assert loads.confirmation == ()
    assert len(loads.selections) == 1


def test_the_search_does_not_depend_on_whether_it_is_confirmed() -> None:
    assert make().plan == make(blocks=0).plan


def test_too_few_held_out_prompts_are_said_with_figures() -> None:
    assert make(40, held_out_share=0).confirmation == ()
    with pytest.raises(DatasetError) as caught:
        make(40)
    text = str(caught.value)
    for part in ("24 different prompts are needed", "held out", "30%", "larger file", "load.num_prompts"):
        assert part in text
    with pytest.raises(DatasetError, match=r"for the search .* lower load\.held_out_share"):
        make(60, held_out_share=0.7)


def test_rounds_need_a_prompt_each() -> None:
    assert section(num_prompts=3, rounds=3).rounds == 3
    with pytest.raises(ValueError, match="num_prompts is 2"):
        section(num_prompts=2)
    for keys in ({"rounds": 0}, {"held_out_share": 1}, {"held_out_share": -0.1}, {"max_lag_ms": 0}):
        with pytest.raises(ValueError, match=next(iter(keys))):
            section(**keys)


def notices(weights: dict[str, float], **keys: Any) -> list[str]:
    return load_notices(section(**keys), make().plan, Objective.of(None, weights, {}), [])


def test_how_many_prompts_the_objective_needs() -> None:
    (line,) = notices({"p99_ttft_ms": 1.0, "p95_tpot_ms": 1.0}, num_prompts=1500)
    assert "1,500 requests in 3 rounds, after 4 of warm-up" in line
    assert "the objective needs 1,000 (200 for p95, 1,000 for p99)" in line
    _, warning = notices({"p99_ttft_ms": 1.0, "p95_tpot_ms": 1.0}, num_prompts=999, rounds=1)
    assert warning.startswith("warning: the objective uses p99, which 999 prompts do not carry")
    (line,) = notices({"mean_ttft_ms": 1.0})
    assert "needs" not in line


def test_the_file_that_ships_holds_enough_for_the_defaults() -> None:
    load = LoadSection()
    found = check_sharegpt(DEMO_FILE)
    # Four letters are a token, roughly: enough to judge lengths by.
    loads = make_loads(load, found, SelectionRules(), lambda text: len(text) // 4 + 1, seed=0, blocks=8)
    assert loads.plan.num_prompts == 200
    assert len(loads.confirmation) == 8


@pytest.mark.parametrize("changes", [{}, {"blocks": 0}])
def test_a_calibration_changes_nothing_else(changes: dict[str, Any]) -> None:
    plain, calibrated = make(4000, **changes), make(4000, calibrate=True, **changes)
    assert plain.calibration is None
    assert (plain.plan, plain.confirmation, plain.soak) == (calibrated.plan, calibrated.confirmation, calibrated.soak)


def test_the_ladder_of_a_calibration() -> None:
    loads = make(4000, calibrate=True)
    plan = loads.calibration
    assert plan is not None
    assert plan.rates == LADDER
    assert plan.warmup is not None
    assert {len(one.prompts) for one in plan.rounds} == {100}
    held_out = {prompt_id for one in loads.confirmation for prompt_id in sent(one)}
    assert not sent(plan) & held_out
    warm = {prompt.prompt_id for prompt in plan.warmup.prompts}
    parts = [{prompt.prompt_id for prompt in one.prompts} for one in plan.rounds]
    assert all(len(part) == 100 and not part & warm for part in parts)
    for step in (1, 2, 4):  # what may follow each other
        assert not any(one & other for one, other in zip(parts, parts[step:], strict=False))
    seeds = {one.seed for part in (loads.plan, *loads.confirmation, plan) for one in part.rounds}
    assert len(seeds) == len(LADDER) + 3 * 9
    ends = [one.last_send_s for one in plan.rounds[1:]]
    assert ends == pytest.approx([100 / rate for rate in LADDER[1:] if rate])


def test_a_small_file_makes_smaller_rungs() -> None:
    plan = make(40, calibrate=True, held_out_share=0).calibration
    assert plan is not None
    assert {len({prompt.prompt_id for prompt in one.prompts}) for one in plan.rounds} == {36}


def test_a_rung_is_three_batches() -> None:
    assert [ladder_prompts(batch) for batch in (None, 8, 64, 256)] == [100, 100, 192, 400]


def test_several_rates_take_turns() -> None:
    loads = make(400, request_rate=[4, 8, "inf"], rounds=2)
    for plan in (loads.plan, *loads.confirmation):
        assert plan.rates == (4.0, 8.0, None) * 2
        assert [len(one.prompts) for one in plan.rounds] == [4, 4, 3, 3, 3, 3]
    line = notices({"mean_ttft_ms": 1.0}, request_rate=[4, "inf"])[0]
    assert "20 requests in 3 rounds that take turns at request rates 4, inf" in line


def test_each_rate_needs_prompts_enough_for_its_own_percentiles() -> None:
    (line,) = notices({"p95_ttft_ms": 1.0}, num_prompts=400, request_rate=[4, 8])
    assert "the objective needs 400 (400 for p95; each of 2 rates is judged by its own)" in line
    _, warning = notices({"p95_ttft_ms": 1.0}, num_prompts=399, request_rate=[4, 8])
    assert warning.endswith("399 prompts do not carry; load.num_prompts of 400 and more do")


def test_what_is_planned_at_each_rate() -> None:
    plan = make(400, request_rate=[4, 8, "inf"], rounds=2).plan
    planned = Planned.of(plan, full_replies=True)
    assert (planned.rounds, planned.requests, planned.output_tokens) == (6, 20, 180)
    assert planned.rates == plan.rates
    assert {at: (one.rounds, one.requests) for at, one in planned.by_rate.items()} == {
        "4": (2, 7),
        "8": (2, 7),
        "inf": (2, 6),
    }
    assert Planned.of(make().plan, full_replies=False) == Planned(3, 20, None)


def test_a_plan_at_another_rate_is_the_plan_of_that_rate() -> None:
    loads = make(request_rate=4.0)
    assert make().plan.at(4.0) == loads.plan
    assert tuple(plan.at(4.0) for plan in make().confirmation) == loads.confirmation
