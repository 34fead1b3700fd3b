"""A night in a small model of a server, for `bench_racing.py`: queues, noise and cliffs whose truth is known.

A request waits for one of the slots that `max-num-seqs` and the KV cache leave, is read, and streams at a pace that
depends on how many run. The landscape is that of measured sweeps: a plateau over more than half of the box, cliffs at
too few slots or too little cache (2 to 100 times worse), and one trade inside, `max-num-batched-tokens`: large steps
read prompts sooner and make the gaps between tokens ragged.

Noise: factors per launch and per round on reading and on streaming, as in a noise file of `bench_decision.py`; requests
that resemble their neighbours in time (an AR(1) chain), now and then a pause of seconds, rarely a round that is slow as
a whole. Near a cliff the queue magnifies all of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sweep.metrics import RequestColumns
from sweep.racing import LiveTrace, Round
from sweep.records import EngineSample

Numbers = NDArray[np.float64]

ROUNDS = 3
RATE_PER_S = 4.0
MOST_SLOTS = 96  # beyond, nothing waits at this rate
GAPS = 6  # gaps kept of each request
PACE_S = 0.016  # seconds per token of a lone request
READ_TOKENS_PER_S = 9_000.0
NEIGHBOURS = 0.8  # correlation of the noise of consecutive requests
PAUSE_SHARE, SLOW_SHARE, SLOW_FACTOR = 0.03, 0.01, 1.5


@dataclass(frozen=True, slots=True)
class Flags:
    """A point of the box."""

    seqs: int
    utilization: float
    batched_tokens: int

    def slots(self) -> int:
        """How many requests run at once: the cache holds some 900 of them at full utilization, none below 0.38."""
        return max(2, min(self.seqs, int((self.utilization - 0.38) * 600), MOST_SLOTS))


@dataclass(frozen=True, slots=True)
class Scatter:
    """Standard deviations of the log of (TTFT, TPOT): between launches of a night, between rounds, between requests.

    `common_share`: how much of the first two is the same for both.
    """

    server_sd: tuple[float, float]
    round_sd: tuple[float, float]
    request_sd: tuple[float, float]
    common_share: float

    def times(self, factor: float) -> Scatter:
        """The same with launches and rounds that scatter `factor` times as much."""
        server, rounds = ((a * factor, b * factor) for a, b in (self.server_sd, self.round_sd))
        return Scatter(server, rounds, self.request_sd, self.common_share)


BASELINE = Flags(seqs=256, utilization=0.92, batched_tokens=2048)


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """What every trial of a study is sent: arrays (rounds, requests)."""

    arrival_s: Numbers
    input_tokens: Numbers
    output_tokens: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """All rounds of one launch as arrays (rounds, requests), gaps (rounds, requests, GAPS)."""

    load: Load
    start_s: Numbers
    ttft_s: Numbers
    end_s: Numbers
    gaps_ms: Numbers

    def round(self, number: int) -> Round:
        """What the load client would have recorded of a round."""
        load = self.load
        count = load.arrival_s.shape[1]
        return Round(
            keys=tuple((index, str(index)) for index in range(count)),
            start_s=load.arrival_s[number],
            columns=RequestColumns(
                ttft_ms=self.ttft_s[number] * 1000.0,
                e2el_ms=(self.end_s[number] - load.arrival_s[number]) * 1000.0,
                input_tokens=load.input_tokens[number],
                output_tokens=load.output_tokens[number],
                itl_ms=self.gaps_ms[number].ravel(),
            ),
            gap_counts=np.full(count, GAPS, dtype=np.intp),
        )

    def rounds(self) -> tuple[Round, ...]:
        """All of them."""
        return tuple(self.round(number) for number in range(ROUNDS))

    def duration_s(self, number: int) -> float:
        """From the first arrival to the last token."""
        return float(np.max(self.end_s[number]) - self.load.arrival_s[number, 0])

    def most_waiting(self, number: int) -> int:
        """The longest queue of a round, at any arrival."""
        arrival, start = self.load.arrival_s[number], np.sort(self.start_s[number])
        return int(np.max(np.arange(1, len(arrival) + 1) - np.searchsorted(start, arrival, side="right")))

    def samples(self, number: int) -> list[EngineSample]:
        """What the engine shows once a second."""
        arrival, start = self.load.arrival_s[number], np.sort(self.start_s[number])
        end, tokens = np.sort(self.end_s[number]), float(np.sum(self.load.output_tokens[number]))
        at_s = np.arange(0.0, self.duration_s(number) + 1.0)
        arrived, started, ended = (np.searchsorted(times, at_s, side="right") for times in (arrival, start, end))
        return [
            EngineSample(
                at_s=t,
                phase="load",
                waiting=float(a - s),
                running=float(s - e),
                preemptions=0.0,
                requests_finished=float(e),
                prompt_tokens=float(s),
                generation_tokens=tokens * t,
            )
            for t, a, s, e in zip(at_s.tolist(), arrived.tolist(), started.tolist(), ended.tolist(), strict=True)
        ]

    def trace(self, number: int) -> LiveTrace:
        """The same as columns."""
        return LiveTrace.of(self.samples(number), started_at_s=0.0)


def read_scatter(path: Path) -> Scatter:
    """Of a noise file. A raced trial is compared with one of hours ago, so the drift of the night is added."""
    content = json.loads(path.read_text())
    ttft, tpot = (content["latencies"][stem] for stem in ("ttft", "tpot"))
    return Scatter(
        server_sd=(math.hypot(ttft["drift_sd"], ttft["server_sd"]), math.hypot(tpot["drift_sd"], tpot["server_sd"])),
        round_sd=(ttft["round_sd"], tpot["round_sd"]),
        request_sd=(ttft["request_sd"], tpot["request_sd"]),
        common_share=content["common_share"],
    )


def draw_flags(rng: np.random.Generator) -> Flags:
    """A point as a sampler draws it before it knows anything: about half of them lie on the plateau."""
    return Flags(
        seqs=round(2 ** rng.uniform(3.0, 8.0)),
        utilization=float(rng.uniform(0.40, 0.95)),
        batched_tokens=round(2 ** rng.uniform(8.0, 13.0)),
    )


def read_lengths(path: Path) -> Numbers:
    """Pairs (input, output tokens) of recorded requests, from JSON lines with `input_toks` and `output_toks`."""
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return np.array([(row["input_toks"], row["output_toks"]) for row in rows], dtype=np.float64)


def make_load(rng: np.random.Generator, requests: int, lengths: Numbers | None) -> Load:
    """Poisson arrivals; lengths as recorded (scaled to 220 output tokens at the mean) or log-normal, as ShareGPT's."""
    shape = (ROUNDS, requests)
    arrival = np.cumsum(rng.exponential(1 / RATE_PER_S, shape), axis=1)
    if lengths is not None:
        drawn = lengths[rng.integers(0, len(lengths), shape)]
        scale = 220.0 / float(lengths[:, 1].mean())
        return Load(arrival, drawn[..., 0], np.maximum(2.0, np.round(drawn[..., 1] * scale)))
    inputs = np.clip(np.round(np.exp(rng.normal(math.log(120.0), 1.1, shape))), 4, 1024)
    outputs = np.clip(np.round(np.exp(rng.normal(math.log(170.0), 0.8, shape))), 4, 1000)
    return Load(arrival, inputs, outputs)


def run(load: Load, flags: Sequence[Flags], noise: Scatter | None, rng: np.random.Generator) -> list[Launch]:
    """One launch of each; without noise the truth that it scatters around."""
    many, (rounds, requests) = len(flags), load.arrival_s.shape
    rows = many * rounds
    slow = (np.ones((rows, requests)), np.ones((rows, requests)))
    if noise is not None:
        server, per_round = _pairs(rng, many, noise.server_sd, noise), _pairs(rng, rows, noise.round_sd, noise)
        spoiled = math.log(SLOW_FACTOR) * (rng.random(rows) < SLOW_SHARE)
        logs = [np.repeat(a, rounds) + b + spoiled for a, b in zip(server, per_round, strict=True)]
        read, pace = (
            log[:, None] + _chain(rng, rows, requests, sd) for log, sd in zip(logs, noise.request_sd, strict=True)
        )
        slow = (np.exp(read), np.exp(pace))
    arrival = np.tile(load.arrival_s, (many, 1))
    inputs, outputs = np.tile(load.input_tokens, (many, 1)), np.tile(load.output_tokens, (many, 1))
    batched = np.repeat([float(point.batched_tokens) for point in flags], rounds)
    # Prompts share a step with what runs: small steps take several turns for one, each with its overhead.
    read_s = 0.02 + inputs / READ_TOKENS_PER_S * (1.0 + 900.0 / batched)[:, None]
    # Large steps hold back whatever streams meanwhile.
    pace_s = PACE_S * (1.0 + 0.06 * np.log2(batched / 256.0))
    start, ttft, end, seconds = _queue(
        arrival,
        read_s * slow[0],
        outputs,
        pace_s[:, None] * slow[1],
        np.repeat([point.slots() for point in flags], rounds),
    )
    gaps = seconds[..., None] * np.exp(rng.normal(0.0, 0.15, (rows, requests, GAPS))) * 1000.0
    held = rng.random((rows, requests, GAPS)) < 0.04
    gaps += held * (np.minimum(batched, 4096.0)[:, None] / READ_TOKENS_PER_S * slow[0])[..., None] * 500.0
    if noise is not None:
        _pauses(rng, arrival, ttft, end, gaps)
    cut = [slice(number * rounds, (number + 1) * rounds) for number in range(many)]
    return [Launch(load, start[part], ttft[part], end[part], gaps[part]) for part in cut]


def _queue(
    arrival: Numbers, read_s: Numbers, outputs: Numbers, pace_s: Numbers, slots: NDArray[np.intp]
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """First come, first served, all rows at once: when each request starts, its TTFT, its end, seconds per token."""
    rows, requests = arrival.shape
    free_s = np.where(np.arange(MOST_SLOTS)[None, :] < slots[:, None], 0.0, np.inf)
    every = np.arange(rows)
    start, ttft, end, pace = (np.empty_like(arrival) for _ in range(4))
    for index in range(requests):
        slot = np.argmin(free_s, axis=1)
        begin = np.maximum(arrival[:, index], free_s[every, slot])
        busy = np.count_nonzero((free_s > begin[:, None]) & np.isfinite(free_s), axis=1)
        step = pace_s[:, index] * (1.0 + busy / 40.0)
        read = read_s[:, index] * (1.0 + busy / 40.0)
        stop = begin + read + (outputs[:, index] - 1) * step
        free_s[every, slot] = stop
        start[:, index], end[:, index], pace[:, index] = begin, stop, step
        ttft[:, index] = begin - arrival[:, index] + read
    return start, ttft, end, pace


def _pairs(rng: np.random.Generator, many: int, sds: tuple[float, float], noise: Scatter) -> tuple[Numbers, Numbers]:
    """Draws for (TTFT, TPOT), which have `common_share` of their variance in common."""
    common = rng.normal(0.0, math.sqrt(noise.common_share), many)
    own = math.sqrt(1.0 - noise.common_share)
    ttft, tpot = ((common + rng.normal(0.0, own, many)) * sd for sd in sds)
    return ttft, tpot


def _chain(rng: np.random.Generator, rows: int, requests: int, sd: float) -> Numbers:
    fresh = rng.normal(0.0, sd, (rows, requests))
    for index in range(1, requests):
        fresh[:, index] = NEIGHBOURS * fresh[:, index - 1] + math.sqrt(1 - NEIGHBOURS**2) * fresh[:, index]
    return fresh


def _pauses(rng: np.random.Generator, arrival: Numbers, ttft: Numbers, end: Numbers, gaps: Numbers) -> None:
    """Some rounds stand still for 2 to 8 seconds: whoever arrives or streams then is later by what is left of it."""
    for row in np.flatnonzero(rng.random(len(arrival)) < PAUSE_SHARE).tolist():
        length = float(rng.uniform(2.0, 8.0))
        begin = float(rng.uniform(0.0, arrival[row, -1]))
        first = arrival[row] + ttft[row]
        waits = (first > begin) & (arrival[row] < begin + length)
        late = np.where(waits, begin + length - np.maximum(begin, arrival[row]), 0.0)
        streams = (first <= begin) & (end[row] > begin)
        ttft[row] += late
        gaps[row, streams, 0] += length * 1000.0
        end[row] += np.where(streams, length, late)
