"""What is sent when, and the file that makes the client do so."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise
from pathlib import Path

import pytest

from sweep.errors import DatasetError, FlagError
from sweep.workload import (
    ClientFeatures,
    Conversations,
    Exchange,
    LoadPlan,
    Selection,
    SelectionRules,
    arrival_times,
    plan_load,
    select,
    window_warning,
    write_round,
)

OLD_CLIENT = ClientFeatures.from_help({"seed", "custom-output-len", "custom-skip-chat-template"}, "0.10.1")


def selection(count: int = 100, rules: SelectionRules | None = None, longest: int = 100) -> Selection:
    draw = random.Random(3)
    exchanges = tuple(
        Exchange(row, " ".join([f"w{row}"] + ["x"] * draw.randrange(4, longest)), "y " * draw.randrange(4, 50))
        for row in range(count)
    )
    found = Conversations(Path("p.json"), "", count, exchanges)
    return select(found, rules or SelectionRules(), lambda text: len(text.split()), needed=count, seed=7)


def plan(rules: SelectionRules | None = None, rate: float | None = 4.0, seed: int = 7, rounds: int = 2) -> LoadPlan:
    return plan_load(
        selection(rules=rules), warmup_prompts=5, num_prompts=60, rounds=rounds, request_rate=rate, seed=seed
    )


def test_no_prompt_is_sent_twice() -> None:
    load = plan()
    assert load.warmup is not None
    ids = [prompt.prompt_id for part in (load.warmup, *load.rounds) for prompt in part.prompts]
    assert [len(part.prompts) for part in (load.warmup, *load.rounds)] == [5, 30, 30]
    assert len(set(ids)) == len(ids)


def test_the_warm_up_is_short_median_and_long() -> None:
    load = plan()
    assert load.warmup is not None
    lengths = [prompt.input_tokens + prompt.output_tokens for prompt in load.warmup.prompts]
    measured = sorted(p.input_tokens + p.output_tokens for one in load.rounds for p in one.prompts)
    assert lengths == sorted(lengths)
    assert lengths[0] < measured[len(measured) // 4]
    assert measured[len(measured) * 2 // 5] <= lengths[2] <= measured[len(measured) * 3 // 5]
    assert lengths[-1] > measured[len(measured) * 3 // 4]
    assert set(load.warmup.arrivals_s) == {0.0}


def test_the_plan_is_decided_by_the_seed() -> None:
    assert plan() == plan()
    assert plan().rounds[0].arrivals_s != plan(seed=8).rounds[0].arrivals_s
    assert [one.seed for one in plan().rounds] == [7, 8]
    assert [one.seed for one in plan(seed=2**32 - 1).rounds] == [2**32 - 1, 0]


def test_a_plan_without_warm_up_and_one_larger_than_the_selection() -> None:
    assert plan_load(selection(10), warmup_prompts=0, num_prompts=10, seed=1).warmup is None
    with pytest.raises(DatasetError, match=r"11 prompts are needed \(1 warm-up, 10 measured\), 10 were selected"):
        plan_load(selection(10), warmup_prompts=1, num_prompts=10, seed=1)


@pytest.mark.parametrize(("rounds", "sizes"), [(1, [11]), (2, [6, 5]), (3, [4, 4, 3]), (11, [1] * 11)])
def test_rounds_share_the_prompts_evenly(rounds: int, sizes: list[int]) -> None:
    load = plan_load(selection(20), warmup_prompts=2, num_prompts=11, rounds=rounds, seed=1)
    assert [len(one.prompts) for one in load.rounds] == sizes
    assert load.num_prompts == 11


@pytest.mark.parametrize("rounds", [0, 12])
def test_a_round_without_a_prompt_is_refused(rounds: int) -> None:
    with pytest.raises(ValueError, match=f"11 prompts cannot make {rounds} rounds"):
        plan_load(selection(20), warmup_prompts=2, num_prompts=11, rounds=rounds, seed=1)


def test_arrivals_end_at_the_rate_and_begin_after_a_delay() -> None:
    times = arrival_times(400, request_rate=8.0, burstiness=1.0, seed=3)
    assert times[-1] == pytest.approx(50.0)
    assert times[0] > 0
    assert all(early <= late for early, late in pairwise(times))
    one = plan().rounds[0]
    assert one.arrivals_s[0] == 0.0
    assert one.last_send_s == pytest.approx(30 / 4)


def test_burstiness_spreads_the_gaps() -> None:
    def variation(burstiness: float) -> float:
        times = arrival_times(2000, request_rate=8.0, burstiness=burstiness, seed=3)
        gaps = [late - early for early, late in pairwise(times)]
        mean = sum(gaps) / len(gaps)
        return math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean

    # A gamma distribution of shape b has a coefficient of variation of 1 / sqrt(b).
    assert variation(1.0) == pytest.approx(1.0, abs=0.1)
    assert variation(0.25) == pytest.approx(2.0, abs=0.25)
    assert variation(4.0) == pytest.approx(0.5, abs=0.05)
    assert variation(math.inf) == pytest.approx(0.0, abs=1e-9)


def test_an_unlimited_rate_sends_all_at_once() -> None:
    assert arrival_times(3, request_rate=None, burstiness=1.0, seed=1) == (0.0, 0.0, 0.0)
    assert arrival_times(3, request_rate=math.inf, burstiness=1.0, seed=1) == (0.0, 0.0, 0.0)


def test_a_context_far_longer_than_the_load_is_said() -> None:
    load = plan()
    total = load.longest.input_tokens + load.longest.output_tokens
    assert window_warning(load, 4 * total) is None
    warning = window_warning(load, 65_536)
    assert warning is not None
    for part in ("65,536", f"{total:,} tokens", "load.max_prompt_tokens", "1,024"):
        assert part in warning
    own = window_warning(plan(SelectionRules(max_prompt_tokens=4000)), 65_536)
    assert own is not None
    assert "1,024" not in own


def flag(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]


def sent_by_client(argv: tuple[str, ...], shuffle_seed: int | None) -> list[tuple[str, int | None]]:
    """Prompts and stored output lengths in the order the client's readers make of the file."""
    path = Path(flag(argv, "--dataset-path"))
    if flag(argv, "--dataset-name") == "sharegpt":
        rows: list[tuple[str, int | None]]
        rows = [(row["conversations"][0]["value"], None) for row in json.loads(path.read_text())]
    else:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [(line["prompt"], line["output_tokens"]) for line in lines]
    if shuffle_seed is not None:
        random.seed(shuffle_seed)
        random.shuffle(rows)
    return rows


@pytest.mark.parametrize(
    ("rules", "client", "shuffle_seed"),
    [
        (SelectionRules(), ClientFeatures(), None),
        (SelectionRules(), OLD_CLIENT, 7),
        (SelectionRules(max_prompt_tokens=2000), ClientFeatures(), None),
        (SelectionRules(max_prompt_tokens=2000, output_tokens=9), OLD_CLIENT, 0),
    ],
)
def test_the_client_sends_our_order(
    tmp_path: Path, rules: SelectionRules, client: ClientFeatures, shuffle_seed: int | None
) -> None:
    one = plan(rules).rounds[0]
    written = write_round(one, tmp_path, name="round0", client=client)
    sent = sent_by_client(written.argv, shuffle_seed)
    assert [text for text, _ in sent] == [prompt.text for prompt in one.prompts]
    if rules.client_format == "custom":
        assert [length for _, length in sent] == [prompt.output_tokens for prompt in one.prompts]
    before = written.path.read_bytes()
    assert write_round(one, tmp_path, name="round0", client=client).path.read_bytes() == before


def test_the_arguments_for_a_sharegpt_round(tmp_path: Path) -> None:
    one = plan(SelectionRules(output_tokens=64)).rounds[1]
    argv = write_round(one, tmp_path, name="round1").argv
    assert [flag(argv, name) for name in ("--dataset-name", "--num-prompts", "--seed", "--sharegpt-output-len")] == [
        *("sharegpt", "30", "8", "64")
    ]
    assert (flag(argv, "--request-rate"), flag(argv, "--burstiness")) == ("4.0", "1.0")
    assert {"--no-oversample", "--disable-shuffle"} < set(argv)
    assert argv[argv.index("--dataset-path") + 1] == str(tmp_path / "round1.json")


def test_the_arguments_for_a_custom_round(tmp_path: Path) -> None:
    one = plan(SelectionRules(max_prompt_tokens=2000), rate=None).rounds[0]
    argv = write_round(one, tmp_path, name="r").argv
    assert flag(argv, "--custom-output-len") == "-1"
    assert flag(argv, "--request-rate") == "inf"
    assert "--skip-chat-template" in argv
    assert argv[argv.index("--dataset-path") + 1].endswith(".jsonl")


def test_an_old_client_gets_only_what_it_knows(tmp_path: Path) -> None:
    fixed = plan(SelectionRules(max_prompt_tokens=2000, output_tokens=9)).rounds[0]
    argv = write_round(fixed, tmp_path, name="r", client=OLD_CLIENT).argv
    assert "--custom-skip-chat-template" in argv
    assert not {"--no-oversample", "--disable-shuffle", "--skip-chat-template"} & set(argv)
    own_lengths = plan(SelectionRules(max_prompt_tokens=2000)).rounds[0]
    with pytest.raises(FlagError, match=r"set load\.output_tokens"):
        write_round(own_lengths, tmp_path, name="r", client=OLD_CLIENT)


def test_features_are_read_from_the_clients_help() -> None:
    newest = {"--disable-shuffle", "--no-oversample", "--skip-chat-template"}
    assert ClientFeatures.from_help(newest, "0.32.0+cpu") == ClientFeatures() == ClientFeatures.from_help(None)
    assert not ClientFeatures.from_help(newest, "0.12.0").own_lengths
    assert ClientFeatures.from_help(set(), "0.9.0") == ClientFeatures(False, False, None, False)
