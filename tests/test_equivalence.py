from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import pytest

from sweep.config.models import SearchSpaceConfig
from sweep.equivalence import EngineClasses, Rules, evidence_of, findings
from sweep.guide import Guides, PassedOver
from sweep.records import EngineConfig, EngineSummary
from sweep.search_space import SearchSpace
from sweep.searcher.proposer import Proposer
from sweep.trial import Finished, Flag, TrialKind, TrialStatus

BASELINE: dict[str, Flag] = {"gpu-memory-utilization": 0.9, "max-num-seqs": 256, "max-num-batched-tokens": 8192}
PARAMETERS: dict[str, Any] = {
    "gpu-memory-utilization": {"type": "float", "low": 0.4, "high": 0.9, "step": 0.1},
    "max-num-seqs": {"type": "choice", "values": [8, 16, 64, 128, 256]},
    "max-num-batched-tokens": {"type": "choice", "values": [512, 2048, 4096, 8192]},
}
SEEN = EngineSummary(
    preemptions=0.0,
    prefix_hit_share=None,
    peak_running=20.0,
    peak_kv_usage_share=0.2,
    largest_step_tokens=1024.0,
    peak_in_flight=24.0,
    peak_in_flight_tokens=12_000.0,
    longest_prompt_tokens=900.0,
    load_tokens=90_000.0,
)
RULES = Rules({}, launch_sd=0.05)


def space(parameters: dict[str, Any] = PARAMETERS) -> SearchSpace:
    return SearchSpace.from_config(SearchSpaceConfig.model_validate({"parameters": parameters}), {})


def trial(number: int, score: float = 1.0, seen: EngineSummary = SEEN, **flags: Any) -> Finished:
    """A trial; `u`, `s` and `b` change the baseline's flags. Its KV cache is 100,000 tokens times the utilization."""
    names = {"u": "gpu-memory-utilization", "s": "max-num-seqs", "b": "max-num-batched-tokens"}
    point = {**BASELINE, **{names.get(name, name): value for name, value in flags.items()}}
    share = point["gpu-memory-utilization"]
    tokens = 100_000 * share if isinstance(share, (int, float)) else None
    return Finished(
        number,
        TrialKind.SEARCH if number else TrialKind.BASELINE,
        point,
        TrialStatus.COMPLETE,
        score,
        engine_config=EngineConfig(block_size=16, kv_tokens=None if tokens is None else round(tokens)),
        engine=seen,
    )


def classes(*heard: Finished, rules: Rules = RULES, parameters: dict[str, Any] = PARAMETERS) -> EngineClasses:
    found = EngineClasses(space(parameters), BASELINE, rules)
    for one in heard:
        found.hear(one)
    return found


def same(found: EngineClasses, number: int = 90, **flags: Any) -> int | None:
    answer = found.same_as(number, trial(number, **flags).flags)
    return None if answer is None else answer.trial


# The cache of the lowest utilization is known of a trial there, whose own sequences and steps are the most there are.
LOW = trial(1, u=0.4)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"s": 128}, 0),
        ({"s": 64}, 0),
        ({"s": 16}, None),  # 24 requests were in flight
        ({"b": 2048}, 0),
        ({"b": 512}, None),  # a step of 1024 was counted
        ({"u": 0.5}, 0),
        ({"u": 0.4, "s": 64, "b": 2048}, 0),
        ({"block-size": 32}, None),  # nothing proves it
        ({"s": 64, "block-size": 32}, None),
        ({"s": None}, None),  # vLLM's own choice is not known
    ],
)
def test_flags_that_never_bound_share_a_measurement(flags: dict[str, Any], expected: int | None) -> None:
    assert same(classes(trial(0), LOW), **flags) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"preemptions": 1.0},
        {"preemptions": None},
        {"peak_running": None, "peak_in_flight": None},
        {"peak_running": 60.0, "peak_in_flight": 70.0},
        {"peak_kv_usage_share": 0.9, "peak_in_flight_tokens": 90_000.0},
        {"largest_step_tokens": math.inf},
        {"largest_step_tokens": None},
        {"longest_prompt_tokens": 1500.0},
        {"prefix_hit_share": 0.2},  # and the load does not fit into the smaller cache
    ],
)
def test_what_the_counters_do_not_prove_is_measured(change: Mapping[str, float | None]) -> None:
    seen = dataclasses.replace(SEEN, **change)
    assert same(classes(trial(0, seen=seen), trial(1, seen=seen, u=0.4)), u=0.5, s=64, b=2048) is None


def test_a_gauge_has_a_margin_and_the_client_s_count_needs_none() -> None:
    gauge = dataclasses.replace(SEEN, peak_in_flight=None, peak_in_flight_tokens=None, peak_running=50.0)
    assert same(classes(trial(0, seen=gauge)), s=64) == 0  # 50 x 1.25 + 1 is 64
    assert same(classes(trial(0, seen=dataclasses.replace(gauge, peak_running=51.0))), s=64) is None
    exact = dataclasses.replace(SEEN, peak_in_flight=64.0, peak_running=64.0)
    assert same(classes(trial(0, seen=exact)), s=64) == 0
    assert same(classes(trial(0, seen=dataclasses.replace(exact, peak_in_flight=65.0))), s=64) is None


def test_the_cache_of_flags_that_were_never_launched_is_taken_for_no_more_than_known() -> None:
    assert same(classes(trial(0)), u=0.5) is None  # nothing is known below 0.9
    assert same(classes(trial(0), trial(1, s=8, u=0.4)), u=0.5) is None  # of fewer sequences, which leave more
    model = Rules({}, launch_sd=0.05, capacity=lambda _number, flags: 20_000.0 if flags["max-num-seqs"] == 64 else None)
    assert same(classes(trial(0), rules=model), u=0.5, s=64) == 0
    assert same(classes(trial(0), rules=model), u=0.5, s=128) is None


def test_flags_that_make_counters_say_something_else_prove_nothing() -> None:
    for fixed in ({"speculative-config": {"num_speculative_tokens": 3}}, {"long-prefill-token-threshold": 512}):
        assert evidence_of(trial(0), fixed) is None
    assert evidence_of(trial(0), {"enable-prefix-caching": False}) is not None
    for other in (
        dataclasses.replace(trial(0), disturbed=True),
        dataclasses.replace(trial(0), kind=TrialKind.CONFIRM),
        dataclasses.replace(trial(0), engine=None),
        dataclasses.replace(trial(0), status=TrialStatus.CENSORED),
    ):
        assert evidence_of(other, {}) is None


def test_an_answer_rests_on_lower_numbers_in_whatever_order_they_came() -> None:
    heard = [trial(0), LOW, trial(4, s=16, score=1.5), trial(7, s=8, score=2.0), trial(9, b=512, score=1.1)]
    there, back = classes(*heard), classes(*reversed(heard))
    for number in range(1, 12):
        for flags in ({"s": 64}, {"u": 0.5}, {"s": 16, "u": 0.6}, {"b": 512, "u": 0.4}):
            assert same(there, number, **flags) == same(back, number, **flags)
    assert same(there, 1, u=0.5) is None
    assert same(there, 2, u=0.5) == 0
    assert same(back, 1, u=0.5) is None


def test_a_few_repeats_are_launched_and_all_others_are_not() -> None:
    found = classes(trial(0), LOW)  # trial 1 is the first repeat
    answer = found.same_as(2, trial(2, s=64).flags)
    assert answer is not None
    assert answer.audit
    found.hear(trial(2, s=64))
    later = found.same_as(3, trial(3, s=128).flags)
    assert later is not None
    assert not later.audit
    assert found.same_as(20, trial(20, s=128).flags) == dataclasses.replace(later, audit=True)


def test_repeats_that_disagree_withdraw_their_flags_and_no_others() -> None:
    agreeing = classes(trial(0), LOW, trial(2, s=64, score=1.1))
    assert same(agreeing, s=128) == 0
    found = classes(trial(0), LOW, trial(2, s=64, score=1.4))
    assert same(found, s=128) is None
    assert same(found, u=0.5) == 0
    assert same(found, 2, s=128) == 0  # it is not known yet
    assert found.state().members() == {1: 0}
    assert any(line.startswith("max-num-seqs may matter after all: trials 0 and 2 differ by 40%")
               for line in found.sentences())  # fmt: skip
    # A noisier machine shows no more than it always does.
    noisy = classes(trial(0), LOW, trial(2, s=64, score=1.4), rules=Rules({}, launch_sd=0.18))
    assert same(noisy, s=128) == 0
    failed = dataclasses.replace(trial(2, s=64), status=TrialStatus.INFEASIBLE, score=None, engine=None)
    assert same(classes(trial(0), LOW, failed), s=128) is None


def test_a_flag_that_is_inert_for_all_promising_trials_is_dropped_with_a_sentence() -> None:
    good = [trial(0), LOW, trial(2, s=16, score=1.6), trial(3, b=512, score=1.02), trial(4, b=512, u=0.4, score=1.05)]
    step = dataclasses.replace(SEEN, largest_step_tokens=512.0)
    good = [one if one.number in (0, 1, 2) else dataclasses.replace(one, engine=step) for one in good]
    found = classes(*good)
    assert found.settled(90) == {"gpu-memory-utilization": 0.9}
    assert classes(*good[:2]).settled(90) == {}
    starved = dataclasses.replace(good[3], engine=dataclasses.replace(SEEN, preemptions=5.0))
    assert classes(good[0], good[1], good[2], starved, good[4]).settled(90) == {}
    lines = list(found.sentences())
    assert "max-num-seqs does not matter from 64 on at this load: 24 requests at most ran at once" in lines
    assert any(
        line.startswith("gpu-memory-utilization does not matter at this load: 12,384 tokens of KV cache at most")
        for line in lines
    )


def test_of_equal_winners_the_baseline_s_values_are_preferred_and_then_less_utilization() -> None:
    winner = trial(2, s=16, u=0.5, score=0.8, seen=dataclasses.replace(SEEN, peak_running=16.0))
    found = classes(trial(0), LOW, winner, trial(3, s=16, u=0.4, score=0.8))
    assert found.preferred(winner.flags) == trial(0, s=16).flags  # 16 sequences did bind
    assert found.preferred(trial(9, s=8).flags) == trial(9, s=8).flags  # never measured
    # A baseline that leaves it to vLLM: the same, where the cache that it had is known, else the least that is enough.
    usual = {**BASELINE, "gpu-memory-utilization": None}
    for tokens, share in ((90_000, None), (None, 0.4)):
        other = EngineClasses(space(), usual, RULES)
        first = dataclasses.replace(trial(0), flags=usual, engine_config=EngineConfig(block_size=16, kv_tokens=tokens))
        for one in (first, winner, trial(3, s=16, u=0.4, score=0.8)):
            other.hear(one)
        assert other.preferred(winner.flags) == trial(0, s=16, u=share).flags


SMALL: dict[str, Any] = {
    "gpu-memory-utilization": {"type": "float", "low": 0.4, "high": 0.9, "step": 0.1},
    "max-num-seqs": {"type": "choice", "values": [64, 128, 256]},
}


def test_a_search_without_anything_to_find_ends_with_that_verdict() -> None:
    found = classes(parameters=SMALL)
    passed: list[PassedOver] = []
    searched = {name: BASELINE[name] for name in SMALL}
    proposer = Proposer(space(SMALL), seed=1, guide=Guides(classes=found), on_passed_over=passed.append)
    proposer.hear(dataclasses.replace(trial(0), flags=searched))
    launched = []
    for number in range(1, 18):
        flags = proposer.propose(number)
        if flags is None:
            break
        launched.append(flags)
        one = trial(number, u=flags["gpu-memory-utilization"], s=flags["max-num-seqs"])
        proposer.hear(dataclasses.replace(one, flags=flags))
    assert len(launched) < 10  # of 17
    said = proposer.ended(number)
    assert said.startswith("nothing in the search space makes a difference at this load (")
    assert "raise load.request_rate" in said
    assert [one for one in passed if one.audited]


def test_a_flag_that_no_counter_speaks_for_does_not_hide_that_verdict() -> None:
    block: dict[str, Any] = {"type": "choice", "values": [16, 32]}
    own: dict[str, Any] = {"block-size": 16}
    heard = [trial(0, **own), trial(1, u=0.4, **own)]
    said = classes(*heard, parameters={**SMALL, "block-size": block}).verdict(90)
    assert said is not None
    assert said.startswith("block-size was tried, and no other flag makes a difference at this load (gpu-memory-util")
    assert "load.calibrate" in said
    assert classes(*heard, parameters={**PARAMETERS, "block-size": block}).verdict(90) is None  # 8 seats would bind
    assert classes(*heard, parameters={"block-size": block}).verdict(90) is None
    endless = {"type": "float", "low": 0.0, "high": 1.0}
    assert classes(*heard, parameters={**SMALL, "watermark": endless}).verdict(90) is None


def test_a_search_measures_each_class_once_and_a_few_repeats() -> None:
    """24 requests at once and steps of 1924 tokens: six classes in 120 points, since no utilization ever binds."""
    found = classes()
    proposer = Proposer(space(), seed=3, guide=Guides(classes=found))
    proposer.hear(trial(0))
    seen: set[tuple[Flag, Flag]] = {(256, 8192)}
    for number in range(1, 26):
        flags = proposer.propose(number)
        if flags is None:
            break
        s, b = (flags[name] for name in ("max-num-seqs", "max-num-batched-tokens"))
        seen.add((64 if s in (64, 128, 256) else s, b if b == 512 else 2048))
        proposer.hear(dataclasses.replace(trial(number, u=flags["gpu-memory-utilization"], s=s, b=b), flags=flags))
    assert len(seen - {(256, 8192)}) >= 5
    assert number <= 16
    said = proposer.ended(number)
    start = "every combination of the search space is known or shares another's measurement ("
    assert said.startswith(start)
    assert said.endswith(" shared)")
    assert 100 < int(said.removeprefix(start).split()[0]) < 120


def test_what_a_record_says_for_a_report() -> None:
    found = findings(
        [trial(0), LOW, trial(2, s=64), trial(3, s=16, score=1.5), trial(4, u=0.4, s=16, score=1.5)], RULES
    )
    assert found.stands_for == {0: (1, 2), 3: (4,)}
    assert "max-num-seqs does not matter from 64 on at this load: 24 requests at most ran at once" in found.sentences
    assert any(line.startswith("gpu-memory-utilization does not matter at this load") for line in found.sentences)
    assert findings([], RULES) == findings([trial(3)], RULES)
