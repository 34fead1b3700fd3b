"""The sampler `twin`: what the twin wants next, TPE where it cannot tell, and an end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sweep.config.models import SearchSpaceConfig
from sweep.plan_asks import NothingLeft
from sweep.search_space import SearchSpace
from sweep.searcher.outcome import Outcome
from sweep.searcher.proposer import Proposer
from sweep.searcher.samplers import MODELS
from sweep.searcher.twin_sampler import Advise, twin_recipe
from sweep.trial import Flags
from sweep.twinning import Advice
from sweep.twinning.adviser import line_of

SPACE = SearchSpace.from_config(
    SearchSpaceConfig.model_validate(
        {
            "parameters": {
                "max-num-seqs": {"type": "int", "low": 8, "high": 64, "step": 8},
                "block-size": {"type": "choice", "values": [16, 32, None]},
                "max-num-batched-tokens": {"type": "int", "low": 256, "high": 4096, "step": 256, "or_null": True},
            },
            "constraints": ["max-num-batched-tokens >= max-num-seqs"],
        }
    ),
    {},
)
BASE: Flags = {"max-num-seqs": 16, "block-size": 16, "max-num-batched-tokens": None}


def point(seqs: int, tokens: int | None = 1024, block: int | None = 32) -> Flags:
    return {"max-num-seqs": seqs, "block-size": block, "max-num-batched-tokens": tokens}


def proposer(advise: Advise, told: int = 1) -> Proposer:
    found = Proposer(SPACE, seed=3, sampler="twin", models={**MODELS, "twin": twin_recipe(advise)})
    found.tell(0, BASE, Outcome("complete", 1.0))
    for number in range(1, told):
        found.tell(number, point(8 + 8 * number, 256), Outcome("complete", 1.0 + 0.01 * number))
    return found


def always(*ranked: Flags) -> Advise:
    return lambda _number, _taken: Advice("improve", ranked, "")


def test_the_best_of_its_list_that_is_new_is_proposed() -> None:
    first, second = point(32, None, None), point(40)
    found = proposer(always(BASE, first, second))
    assert found.propose(1) == first
    assert found.propose(1, [first]) == second


def test_it_is_told_what_must_be_left_out() -> None:
    heard: list[tuple[int, list[Flags]]] = []

    def advise(number: int, taken: Sequence[Flags]) -> Advice:
        heard.append((number, list(taken)))
        return Advice("improve", (point(48),), "")

    proposer(advise, told=3).propose(3, [point(64)])
    assert heard[0] == (3, [BASE, point(16, 256), point(24, 256), point(64)])


def test_where_it_cannot_tell_another_sampler_proposes_and_the_same_again() -> None:
    unfit: Advise = lambda _number, _taken: Advice("unfit", (), "no requests")  # noqa: E731
    for told in (1, 6):  # TPE at random, then by its model
        flags = proposer(unfit, told).propose(told)
        assert flags is not None
        assert SPACE.contains(flags)
        assert flags == proposer(unfit, told).propose(told)


def test_a_list_that_is_used_up_is_no_end() -> None:
    found = proposer(always(BASE)).propose(1)
    assert found is not None
    assert found != BASE


def test_it_ends_the_search_and_says_why() -> None:
    done: Advise = lambda _number, _taken: Advice("done", (), "nothing promises more than 0.2%")  # noqa: E731
    with pytest.raises(NothingLeft, match="nothing promises more than 0"):
        proposer(done).propose(1)


@pytest.mark.parametrize(
    ("advice", "words"),
    [
        (Advice("unfit", (), "no trial has what it takes"), "cannot tell (no trial has what it takes), TPE"),
        (
            Advice("done", (), "none of 3 settings promises more"),
            "goes to the confirmation: none of 3",
        ),
        (Advice("improve", (BASE,), "2.0% expected"), "the most promising: 2.0% expected (simulated, not measured)"),
        (Advice("separate", (BASE,), "it tells most"), "to learn what steps cost"),
    ],
)
def test_advice_is_said_in_one_line(advice: Advice, words: str) -> None:
    line = line_of(4, advice)
    assert words in line
    assert "\n" not in line
