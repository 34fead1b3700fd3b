"""The knee under rising rates: on queues whose capacity is known, and what is said of a study's rate."""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from sweep.knee import LADDER, LOAD_IN_BURSTS, ROUNDS_AT_MOST, Knee, describe, find_knee, next_rung, rate_at, taken_off
from sweep.records import RoundRecord

PROMPTS = 100
Measure = Callable[[int], RoundRecord]


def record(rate: float | None, *, number: int = 0, **figures: object) -> RoundRecord:
    """A round that keeps up with its rate: 50 ms to the first token, 1 s to the last."""
    one = RoundRecord(
        attempt=1,
        round=number,
        began_at_s=0.0,
        duration_s=PROMPTS / rate + 1.0 if rate else 10.0,
        took_s=1.0,
        request_rate_per_s=rate,
        prompts=PROMPTS,
        completed=PROMPTS,
        failed=0,
        output_tokens=0,
        peak_waiting=0.0,
        mean_queue_time_ms=0.0,
        p95_ttft_ms=50.0,
        p95_e2el_ms=1000.0,
    )
    return dataclasses.replace(one, **figures)  # type: ignore[arg-type]


def queue(
    servers: int, service_s: float, *, slower: float = 0.0, at_once: int | None = None, tells: bool = True
) -> Measure:
    """Rounds of a server with `servers` slots, first come first served, at the rates of the ladder.

    The capacity is `servers / service_s` requests a second. `slower`: how much each further request that runs slows the
    service. `at_once`: most requests that the client lets be under way; `tells`: whether the engine has figures.
    """

    def measure(number: int) -> RoundRecord:
        draw = random.Random(number)
        rate = LADDER[number]
        gaps = [0.0 if rate is None else draw.expovariate(rate) for _ in range(PROMPTS)]
        times = np.cumsum(gaps) * (1.0 if rate is None else PROMPTS / rate / sum(gaps))
        free: list[float] = [0.0] * servers
        client: list[float] = [0.0] * (at_once or PROMPTS)
        ends: list[float] = []
        waits, ttfts, e2els = [], [], []
        for planned in times:
            sent = max(float(planned), heapq.heappop(client))
            start = max(sent, heapq.heappop(free))
            running = sum(end > start for end in ends)
            lasts = service_s * draw.uniform(0.7, 1.3) * (1.0 + slower * running)
            heapq.heappush(free, start + lasts)
            heapq.heappush(client, start + lasts)
            ends.append(start + lasts)
            waits.append(start - sent)
            ttfts.append(start - sent + 0.1 * service_s * draw.uniform(0.8, 1.2))
            e2els.append(start + lasts - sent)
        return record(
            rate,
            number=number,
            duration_s=max(ends),
            peak_waiting=float(sum(wait > 0 for wait in waits) > 0) if tells else None,
            mean_queue_time_ms=1000.0 * float(np.mean(waits)) if tells else None,
            p95_ttft_ms=1000.0 * float(np.percentile(ttfts, 95)),
            p95_e2el_ms=1000.0 * float(np.percentile(e2els, 95)),
        )

    return measure


def climb(measure: Measure) -> list[RoundRecord]:
    rounds: list[RoundRecord] = []
    while (number := next_rung(LADDER, rounds)) is not None:
        assert number not in [one.round for one in rounds], "a rate is measured twice"
        rounds.append(measure(number))
        assert len(rounds) <= ROUNDS_AT_MOST
    return rounds


def knee_of(rounds: Sequence[RoundRecord]) -> Knee:
    knee = find_knee(rounds)
    assert knee is not None
    return knee


@pytest.mark.parametrize("service_s", [0.05, 1.0, 20.0])
@pytest.mark.parametrize(("servers", "least"), [(4, 0.2), (16, 0.5), (32, 0.6)])
def test_the_knee_of_a_queue_is_below_its_capacity(servers: int, least: float, service_s: float) -> None:
    """The fewer slots, the earlier one request in twenty waits for one (Erlang's C formula)."""
    rounds = climb(queue(servers, service_s))
    knee = knee_of(rounds)
    capacity = servers / service_s
    assert least * capacity < knee.below_per_s < 1.15 * capacity
    assert knee.above_per_s == pytest.approx(knee.below_per_s * 2**0.25)
    assert knee.burst_per_s == pytest.approx(capacity, rel=0.25)
    assert rounds[0].request_rate_per_s is None
    load_s = sum(one.duration_s for one in rounds)
    assert load_s < 1.5 * LOAD_IN_BURSTS * rounds[0].duration_s


def test_all_rounds_below_the_knee_keep_up_and_the_search_starts_far_below() -> None:
    rounds = climb(queue(16, 1.0))
    rates = [one.request_rate_per_s for one in rounds]
    assert rates[1] == pytest.approx(0.25 * knee_of(rounds).burst_per_s, rel=0.2)
    assert rates[2:4] == [2.0 * (rates[1] or 0.0), 4.0 * (rates[1] or 0.0)]
    low = rounds[1]
    assert [taken_off(one, low) is None for one in rounds[1:3]] == [True, True]


def test_replies_that_slow_each_other_are_seen_by_the_throughput() -> None:
    """Slots without end: nothing ever waits for one, everything only takes longer."""
    rounds = climb(queue(10_000, 0.5, slower=0.2))
    assert all(one.mean_queue_time_ms == 0.0 for one in rounds)
    knee = knee_of(rounds)
    assert knee.above_per_s is not None
    assert "are answered" in knee.why


def test_a_client_that_holds_requests_back_is_seen_by_the_throughput() -> None:
    knee = knee_of(climb(queue(64, 1.0, at_once=8)))
    assert "are answered" in knee.why
    assert knee.below_per_s < 8.0 * 1.1


def test_an_engine_that_tells_nothing_of_its_queue() -> None:
    knee = knee_of(climb(queue(16, 1.0, tells=False)))
    assert 8.0 < knee.below_per_s < 16.5


def test_slow_first_tokens_without_a_queue_are_no_knee() -> None:
    low = record(1.0)
    assert taken_off(record(4.0, p95_ttft_ms=400.0), low) is None
    assert taken_off(record(4.0, p95_ttft_ms=400.0, mean_queue_time_ms=20.0), low) is None
    assert taken_off(record(4.0, p95_ttft_ms=400.0, mean_queue_time_ms=90.0), low) is not None
    assert taken_off(record(4.0, p95_ttft_ms=400.0, peak_waiting=3.0), low) is not None
    assert taken_off(record(4.0, p95_ttft_ms=99.0, peak_waiting=3.0), low) is None
    assert taken_off(record(4.0, p95_ttft_ms=None, p95_e2el_ms=None), low) is None


def test_the_last_answers_do_not_count_as_falling_behind() -> None:
    low = record(1.0, p95_e2el_ms=30_000.0)
    assert taken_off(record(10.0, duration_s=10.0 + 30.0), low) is None
    assert taken_off(record(10.0, duration_s=10.0 + 36.0), low) is not None


def test_a_server_that_keeps_up_with_everything_has_no_knee() -> None:
    rounds = climb(lambda number: record(LADDER[number], number=number))
    knee = knee_of(rounds)
    assert knee.above_per_s is None
    assert knee.below_per_s > 4 * knee.burst_per_s
    top = climb(lambda number: record(LADDER[number], number=number, duration_s=0.001))
    assert knee_of(top).below_per_s == LADDER[-1]


def test_the_slowest_server_starts_at_the_lowest_rate() -> None:
    rounds = climb(queue(1, 3600.0))
    assert rounds[1].request_rate_per_s == LADDER[1]


def test_what_was_measured_before_it_was_cut_short_counts() -> None:
    rounds = climb(queue(16, 1.0))
    assert find_knee(rounds[:1]) is None
    knee = knee_of(rounds[:3])
    assert (knee.below_per_s, knee.above_per_s) == (rounds[2].request_rate_per_s, None)


def knee(**changes: object) -> Knee:
    found = Knee(10.0, 11.9, "p95 TTFT rises from 50 to 400 ms, and requests wait", 12.0, record(2.5))
    return dataclasses.replace(found, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (
            2.0,
            (
                "warning",
                "2 is far below the knee, 20% of 10 requests/s",
                "look the same",
                "auto",
                "knee_share",
                "[5, 8]",
            ),
        ),
        (5.0, ("5 is 50% of the knee", "can tell flags apart")),
        (10.0, ("10 is 100% of the knee",)),
        (12.0, ("warning", "12 is above the knee, 10 requests/s", "without bound", "auto")),
        (None, ("warning", "all at once", "load.num_prompts", "auto")),
    ],
)
def test_where_a_rate_lies(rate: float | None, words: tuple[str, ...]) -> None:
    first, line = describe(knee(), [rate, rate])
    assert first.startswith("calibration: the knee is at 10 requests/s; at 11.9, p95 TTFT rises")
    assert line.startswith("warning: ") is ("warning" in words)
    for word in words:
        assert word in line


def test_where_no_knee_was_found() -> None:
    none = knee(above_per_s=None, why="", below_per_s=80.0)
    first, low, high = describe(none, [8.0, 100.0])
    assert "no knee up to 80 requests/s" in first
    assert "at most 10% of 80" in low
    assert "above 80 requests/s, the highest rate that was measured" in high
    assert "the load client itself was late" in describe(knee(client_late=True), [8.0])[0]


def test_a_share_of_the_knee() -> None:
    assert rate_at(knee(below_per_s=9.5136), 0.8) == 7.61
    assert describe(knee(), [None], share=0.8)[1:] == ["load.request_rate: auto is 8 requests/s, 0.8 of the knee"]
