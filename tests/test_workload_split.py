"""Tuning and held-out prompts: split once by hash, and blocks of a confirmation made of the held-out ones."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from sweep.errors import DatasetError
from sweep.workload import (
    Conversations,
    Exchange,
    LoadPlan,
    Selection,
    SelectionRules,
    Split,
    confirmation_plans,
    plan_load,
    select,
)

SHARE = 0.3
TUNING, HELD_OUT = Split(SHARE, "tuning"), Split(SHARE, "held_out")


def conversations(count: int = 400, seed: int = 3) -> Conversations:
    draw = random.Random(seed)
    exchanges = [Exchange(row, f"w{row} " + "x " * draw.randrange(4, 100), "y " * 30) for row in range(count)]
    draw.shuffle(exchanges)
    return Conversations(Path("p.json"), "", count, tuple(exchanges))


def part(split: Split, needed: int, *, seed: int = 7, wanted: int | None = None, count: int = 400) -> Selection:
    return select(
        conversations(count),
        SelectionRules(),
        lambda text: len(text.split()),
        needed=needed,
        wanted=wanted,
        seed=seed,
        split=split,
    )


def ids(selection: Selection) -> set[str]:
    return {prompt.prompt_id for prompt in selection.prompts}


def test_every_prompt_is_in_one_part_and_stays_there() -> None:
    tuning, held_out = part(TUNING, 0, wanted=400), part(HELD_OUT, 0, wanted=400)
    assert not ids(tuning) & ids(held_out)
    assert len(ids(tuning) | ids(held_out)) == 400
    assert tuning.rows + held_out.rows == 400
    # The same for another seed and another order of the file: only the text counts.
    assert ids(part(HELD_OUT, 0, wanted=400, seed=8)) == ids(held_out)
    # A larger file moves no prompt from one part to the other.
    assert ids(part(HELD_OUT, 0, wanted=900, count=900)) > ids(held_out)


def test_the_share_is_about_what_was_asked_for() -> None:
    texts = [hashlib.sha256(str(number).encode()).hexdigest()[:16] for number in range(10_000)]
    for share in (0.05, 0.3, 0.9):
        taken = sum(Split(share, "held_out").takes(text) for text in texts)
        assert taken == pytest.approx(share * 10_000, abs=4 * (10_000 * share * (1 - share)) ** 0.5)
        assert taken + sum(Split(share, "tuning").takes(text) for text in texts) == 10_000


def test_without_a_share_all_is_for_tuning() -> None:
    assert ids(part(Split(), 400)) == ids(part(Split(0.0, "tuning"), 400))
    with pytest.raises(DatasetError):
        part(Split(0.0, "held_out"), 1)
    for share in (-0.1, 1.0):
        with pytest.raises(ValueError, match="from 0 to below 1"):
            Split(share)


def test_more_are_taken_where_there_are_more() -> None:
    assert len(part(HELD_OUT, 20, wanted=60).prompts) == 60
    everything = part(HELD_OUT, 20, wanted=1000)
    assert len(everything.prompts) == everything.usable == everything.rows


@pytest.mark.parametrize(
    ("split", "words"),
    [
        (HELD_OUT, ("held out to confirm the winner (30% of the prompts", "raise load.held_out_share", "larger file")),
        (TUNING, ("for the search (70% of the prompts", "lower load.held_out_share", "load.num_prompts")),
    ],
)
def test_a_part_too_small_is_refused_with_its_figures(split: Split, words: tuple[str, ...]) -> None:
    with pytest.raises(DatasetError, match="390 different prompts are needed") as caught:
        part(split, 390)
    for word in (*words, f"of {part(split, 1).rows:,} conversations usable"):
        assert word in str(caught.value)


def test_half_a_character_is_counted_once() -> None:
    broken = Conversations(Path("p.json"), "", 1, (Exchange(0, "a b c d \ud83d", "y " * 9),))
    dropped = [
        sum(select(broken, SelectionRules(), len, needed=0, seed=1, split=split, count_all=True).dropped.values())
        for split in (TUNING, HELD_OUT)
    ]
    assert sum(dropped) == 1


# Blocks of a confirmation


def blocks(count: int = 3, *, seed: int = 7, wanted: int | None = None) -> tuple[LoadPlan, ...]:
    pool = part(HELD_OUT, 44, wanted=wanted)
    return confirmation_plans(pool, blocks=count, warmup_prompts=4, num_prompts=40, rounds=2, request_rate=4, seed=seed)


def sent(plan: LoadPlan) -> list[str]:
    assert plan.warmup is not None
    return [prompt.prompt_id for one in (plan.warmup, *plan.rounds) for prompt in one.prompts]


def test_a_block_sends_no_prompt_twice_and_none_of_the_search() -> None:
    tuning = ids(part(TUNING, 44))
    for plan in blocks(wanted=120):
        assert len(set(sent(plan))) == len(sent(plan)) == 44
        assert not tuning & set(sent(plan))
        assert [len(one.prompts) for one in plan.rounds] == [20, 20]


def test_blocks_have_prompts_and_arrivals_of_their_own() -> None:
    plans = blocks(5, wanted=120)
    assert len({tuple(sent(plan)) for plan in plans}) == 5
    assert len({frozenset(sent(plan)) for plan in plans}) == 5
    search = plan_load(part(TUNING, 44), warmup_prompts=4, num_prompts=40, rounds=2, request_rate=4, seed=7)
    seeds = [one.seed for plan in (search, *plans) for one in plan.rounds]
    assert len(set(seeds)) == len(seeds)
    # A pool of one load's size is sent in another order, at other times.
    small = blocks(2)
    assert set(sent(small[0])) == set(sent(small[1]))
    assert small[0].rounds[0].prompts != small[1].rounds[0].prompts


def test_blocks_are_decided_by_the_seed_and_stay_when_more_are_made() -> None:
    assert blocks(5, wanted=120)[:3] == blocks(3, wanted=120)
    assert blocks(seed=8)[0] != blocks(seed=7)[0]
