"""Decisions in the middle of a round, from the engine's counters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from race_records import BALANCED, incumbent, records

from sweep.objective import PRESETS, Objective
from sweep.racing import LiveTrace, Planned, RaceDecision, Round, live_verdict
from sweep.records import EngineSample

PLANNED = Planned(rounds=3, requests=600, output_tokens=600 * 30)
STARTED_S = 100.0
OLD_TOKENS = 5_000.0  # what the warm-up left on the counters


def always(value: float) -> Callable[[float], float]:
    return lambda _: value


NEVER = always(0.0)


def samples(
    until_s: int,
    *,
    waiting: Callable[[float], float] = NEVER,
    finished: Callable[[float], float] = lambda t: 5.0 * t,
    preemptions: Callable[[float], float] = NEVER,
    tokens: Callable[[float], float] = lambda t: 500.0 * t,
) -> list[EngineSample]:
    """One reading a second; what came before the round is among them and must not count."""
    early = [EngineSample(at_s=90.0, phase="warmup", waiting=500.0, running=1.0, generation_tokens=1.0)]
    return early + [
        EngineSample(
            at_s=STARTED_S + t,
            phase="load",
            running=8.0,
            waiting=waiting(t),
            preemptions=7.0 + preemptions(t),
            requests_finished=40.0 + finished(t),
            prompt_tokens=OLD_TOKENS,
            generation_tokens=OLD_TOKENS + tokens(t),
        )
        for t in range(until_s + 1)
    ]


USUAL = LiveTrace.of(samples(60, waiting=always(3.0)), started_at_s=STARTED_S)


def verdict(
    seen: list[EngineSample], objective: Objective = BALANCED, *, reference: LiveTrace | None = USUAL
) -> RaceDecision:
    best = incumbent(objective, traces=(reference,))
    return live_verdict(seen, best, objective, round_index=0, started_at_s=STARTED_S, planned=PLANNED)


def stalled(until_s: int = 40) -> list[EngineSample]:
    """Six arrive and one is answered a second."""
    return samples(until_s, waiting=lambda t: 5.0 * t, finished=lambda t: 1.0 * t)


def test_an_ordinary_round_goes_on_at_every_second() -> None:
    for until_s in range(0, 60, 7):
        decision = verdict(samples(until_s, waiting=lambda t: 4.0 if t % 9 else 25.0))
        assert not decision.stop
        assert decision.rule is None


def test_a_queue_that_grows_without_end_is_stopped() -> None:
    decision = verdict(stalled())
    assert decision.stop
    assert decision.rule == "queue"
    assert "200 requests wait" in decision.reason


@pytest.mark.parametrize(
    "seen",
    [
        stalled(15),  # it has just begun
        samples(40, waiting=lambda t: 5.0 * min(t, 40 - t), finished=lambda t: 1.0 * t),  # it drains again
        samples(40, waiting=always(80.0), finished=lambda t: 1.0 * t),  # it stands
        samples(40, waiting=lambda t: 0.4 * t, finished=lambda t: 1.0 * t),  # it is short
        samples(40, waiting=lambda t: 2.0 * t, finished=lambda t: 200.0 * t),  # it is served in no time
    ],
)
def test_other_queues_are_not(seen: list[EngineSample]) -> None:
    assert not verdict(seen).stop


def test_a_queue_as_long_as_the_incumbents_is_the_loads() -> None:
    """All at once: everybody waits, whatever the flags."""
    burst = LiveTrace.of(samples(60, waiting=lambda t: 190.0 - 3.0 * t), started_at_s=STARTED_S)
    assert not verdict(stalled(), reference=burst).stop


def test_waiting_only_counts_where_the_objective_sees_it() -> None:
    """Few slots stream fastest: with weights on TPOT alone that server may be the winner."""
    assert not verdict(stalled(), Objective(PRESETS["fluent"], {})).stop
    limited = Objective(PRESETS["fluent"], {"p95_ttft_ms": 1000.0})
    assert verdict(stalled(), limited).rule == "queue"


def test_an_engine_that_stands_still_is_stopped() -> None:
    still = {"waiting": always(5.0), "tokens": lambda t: 500.0 * min(t, 30.0), "finished": lambda t: 5.0 * min(t, 30)}
    assert not verdict(samples(80, **still)).stop
    decision = verdict(samples(95, **still))
    assert decision.rule == "frozen"
    assert "65 s" in decision.reason


def test_a_pause_as_long_as_the_incumbents_is_the_loads() -> None:
    paused = LiveTrace.of(samples(60, tokens=lambda t: 500.0 * max(0.0, t - 40.0)), started_at_s=STARTED_S)
    assert paused.longest_pause_s() == 40.0
    still = samples(95, tokens=lambda t: 500.0 * min(t, 30.0))
    assert verdict(still).rule == "frozen"
    assert not verdict(still, reference=paused).stop


def storm(until_s: int = 40, *, finished: float = 1.0) -> list[EngineSample]:
    return samples(until_s, preemptions=lambda t: 4.0 * t, finished=lambda t: finished * t)


def test_a_preemption_storm_is_stopped() -> None:
    decision = verdict(storm())
    assert decision.rule == "preemptions"
    assert "160 preemptions for 40 answers" in decision.reason


def test_preemptions_that_cost_little_are_not() -> None:
    assert not verdict(storm(finished=4.0)).stop  # answers come nearly as fast
    assert not verdict(samples(40, preemptions=lambda t: min(160.0, 40 * t), finished=lambda t: 1.0 * t)).stop  # over
    assert not verdict(storm(), Objective(PRESETS["responsive"], {})).stop  # only TTFT counts
    same = LiveTrace.of(storm(60), started_at_s=STARTED_S)
    assert not verdict(storm(), reference=same).stop


def test_the_baseline_is_never_stopped() -> None:
    for seen in (stalled(), storm(), samples(200, tokens=always(0.0))):
        assert not live_verdict(seen, None, BALANCED, round_index=0, started_at_s=STARTED_S, planned=PLANNED).stop


def test_what_is_not_known_stops_nothing() -> None:
    blank = [EngineSample(at_s=STARTED_S + t, phase="load") for t in range(120)]
    assert not verdict(blank).stop
    assert not verdict([]).stop
    assert not verdict(stalled(), reference=None).stop
    assert not verdict(stalled(), reference=LiveTrace.of(blank, started_at_s=STARTED_S)).stop
    best = incumbent(traces=(USUAL,))
    late = live_verdict(stalled(), best, BALANCED, round_index=1, started_at_s=STARTED_S, planned=PLANNED)
    assert not late.stop


def test_known_requests_may_break_an_slo_in_mid_round() -> None:
    objective = Objective(PRESETS["balanced"], {"p95_ttft_ms": 1000.0})
    best = incumbent(objective, traces=(USUAL,))
    part = Round.of(records(slow=20.0)[:50])
    decision = live_verdict(
        samples(5), best, objective, round_index=0, started_at_s=STARTED_S, planned=PLANNED, rounds=[part]
    )
    assert decision.rule == "slo"
