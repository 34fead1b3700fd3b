"""Choosing prompts: the client's limits at their edges, honest counts, and refusals with figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sweep.errors import DatasetError
from sweep.workload import Conversations, Exchange, Reason, SelectionRules, refuse_output_length, select

PATH = Path("prompts.json")


def words(count: int, name: str = "w") -> str:
    return " ".join([name] + ["x"] * (count - 1)) if count else ""


def count_tokens(text: str) -> int:
    return len(text.split())


def conversations(*exchanges: Exchange) -> Conversations:
    return Conversations(PATH, "0" * 64, len(exchanges), exchanges)


def many(count: int, input_tokens: int = 10, output_tokens: int = 20) -> Conversations:
    return conversations(*(Exchange(row, words(input_tokens, f"w{row}"), words(output_tokens)) for row in range(count)))


@pytest.mark.parametrize(
    ("input_tokens", "reply_tokens", "reason"),
    [
        (3, 10, Reason.PROMPT_TOO_SHORT),
        (4, 10, None),
        (1024, 10, None),
        (1025, 10, Reason.PROMPT_TOO_LONG),
        (10, 3, Reason.OUTPUT_TOO_SHORT),
        (10, 4, None),
        (1000, 1048, None),
        (1000, 1049, Reason.TOTAL_TOO_LONG),
    ],
)
def test_the_clients_limits(input_tokens: int, reply_tokens: int, reason: Reason | None) -> None:
    found = conversations(Exchange(0, words(input_tokens), words(reply_tokens)))
    selection = select(found, SelectionRules(), count_tokens, needed=0, seed=1, count_all=True)
    assert dict(selection.dropped) == ({reason: 1} if reason else {})
    assert selection.usable == (reason is None)


def test_a_set_output_length_replaces_the_replys_and_its_lower_limit() -> None:
    rules = SelectionRules(output_tokens=2)
    (prompt,) = select(conversations(Exchange(0, words(9), "")), rules, count_tokens, needed=1, seed=1).prompts
    assert (prompt.input_tokens, prompt.output_tokens, prompt.reply) == (9, 2, "")


@pytest.mark.parametrize("output_tokens", [2045, 2048, 4096])
def test_an_output_length_that_leaves_nothing_is_refused_with_the_reason(output_tokens: int) -> None:
    with pytest.raises(DatasetError, match=r"prompt plus output exceeds 2,048.*2,044 at most") as caught:
        select(many(3), SelectionRules(output_tokens=output_tokens), count_tokens, needed=1, seed=1)
    assert "load.max_prompt_tokens above 1,024" in str(caught.value)


def test_the_longest_output_that_leaves_something() -> None:
    found = conversations(Exchange(0, words(4)), Exchange(1, words(5, "v")))
    selection = select(found, SelectionRules(output_tokens=2044), count_tokens, needed=1, seed=1, count_all=True)
    assert (selection.usable, dict(selection.dropped)) == (1, {Reason.TOTAL_TOO_LONG: 1})


def test_above_1024_prompt_tokens_the_clients_upper_limits_are_gone() -> None:
    rules = SelectionRules(output_tokens=4096, max_prompt_tokens=3000)
    refuse_output_length(rules, PATH)
    found = conversations(*(Exchange(row, words(size)) for row, size in enumerate((3, 3000, 3001))))
    selection = select(found, rules, count_tokens, needed=1, seed=1, count_all=True)
    assert [prompt.input_tokens for prompt in selection.prompts] == [3000]
    assert dict(selection.dropped) == {Reason.PROMPT_TOO_SHORT: 1, Reason.PROMPT_TOO_LONG: 1}
    assert rules.client_format == "custom"
    assert SelectionRules(max_prompt_tokens=1024).client_format == "sharegpt"


def test_requests_that_the_server_would_refuse_are_not_sent() -> None:
    rules = SelectionRules(max_model_len=512, template_tokens=12)
    found = conversations(Exchange(0, words(400), words(100)), Exchange(1, words(400, "v"), words(101)))
    selection = select(found, rules, count_tokens, needed=1, seed=1, count_all=True)
    assert (selection.usable, dict(selection.dropped)) == (1, {Reason.OVER_MODEL_LENGTH: 1})
    with pytest.raises(DatasetError, match="no room for a prompt in max-model-len 512"):
        refuse_output_length(SelectionRules(output_tokens=500, max_model_len=512), PATH)


def test_own_prompts_have_no_limits_but_the_models() -> None:
    rules = SelectionRules(dataset="custom", max_prompt_tokens=None, max_model_len=8000)
    found = conversations(Exchange(0, "x", output_tokens=1), Exchange(1, words(5000), output_tokens=2900))
    selection = select(found, rules, count_tokens, needed=2, seed=1)
    assert sorted((prompt.input_tokens, prompt.output_tokens) for prompt in selection.prompts) == [(1, 1), (5000, 2900)]


def test_an_own_prompt_without_any_output_length_is_named() -> None:
    rules = SelectionRules(dataset="custom", max_prompt_tokens=None)
    with pytest.raises(DatasetError, match=r"row 7 has no `output_tokens`, and load\.output_tokens is not set"):
        select(conversations(Exchange(7, "a b c")), rules, count_tokens, needed=1, seed=1)
    fixed = SelectionRules(dataset="custom", max_prompt_tokens=None, output_tokens=9)
    selection = select(conversations(Exchange(7, "a b c", output_tokens=2)), fixed, count_tokens, needed=1, seed=1)
    assert selection.prompts[0].output_tokens == 9


def test_a_prompt_is_taken_once_and_half_a_surrogate_pair_never() -> None:
    found = conversations(
        Exchange(0, words(5), words(9)),
        Exchange(1, words(5), words(8)),
        Exchange(2, words(5, "\ud83d"), words(9)),
        Exchange(3, words(5, "v"), words(9, "\ud83d")),
    )
    selection = select(found, SelectionRules(), count_tokens, needed=1, seed=1, count_all=True)
    assert dict(selection.dropped) == {Reason.REPEATED: 1, Reason.NOT_UNICODE: 2}
    assert "prompt seen before: 1" in selection.describe()


def test_the_same_seed_chooses_the_same_and_counting_all_changes_nothing() -> None:
    def chosen(seed: int, count_all: bool = False) -> list[str]:
        selection = select(many(200), SelectionRules(), count_tokens, needed=20, seed=seed, count_all=count_all)
        return [prompt.prompt_id for prompt in selection.prompts]

    assert chosen(7) == chosen(7) == chosen(7, count_all=True)
    assert chosen(7) != chosen(8)


def test_no_more_rows_are_tokenised_than_needed_and_the_count_says_so() -> None:
    calls: list[str] = []

    def counting(inner: Callable[[str], int]) -> Callable[[str], int]:
        def count(text: str) -> int:
            calls.append(text)
            return inner(text)

        return count

    selection = select(many(500), SelectionRules(), counting(count_tokens), needed=50, seed=1)
    assert len(calls) == 100
    assert (selection.usable, selection.examined, selection.rows, selection.counted_all) == (50, 50, 500, False)
    assert "at least 50" in selection.describe()
    everything = select(many(500), SelectionRules(), count_tokens, needed=50, seed=1, count_all=True)
    assert everything.describe() == "500 of 500 conversations usable"
    assert len(everything.prompts) == 50


def test_too_few_usable_rows_is_an_error_with_the_figures() -> None:
    found = Conversations(PATH, "", 9, (*many(3).exchanges, Exchange(4, "one two", words(9))), too_few_turns=5)
    with pytest.raises(DatasetError) as caught:
        select(found, SelectionRules(), count_tokens, needed=4, seed=1)
    text = str(caught.value)
    for part in ("4 different prompts", "3 of 4 conversations usable", "under 4 tokens: 1", "5 more have fewer"):
        assert part in text
