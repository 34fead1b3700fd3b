"""Rounds of requests for the tests of racing: queue-free, with noise that neighbours share."""

from __future__ import annotations

import numpy as np

from sweep.objective import Objective
from sweep.racing import Incumbent, LiveTrace, Round, measure
from sweep.records import RequestRecord

BALANCED = Objective.of("balanced", {}, {})


def records(
    *,
    slow: float = 1.0,
    number: int = 0,
    count: int = 200,
    seed: int = 0,
    ttft_ms: float = 200.0,
    pace_ms: float = 20.0,
) -> list[RequestRecord]:
    """One round. Prompts and arrivals depend on `number` alone, noise on `seed`, too; `slow` multiplies latencies."""
    load, noise = np.random.default_rng(number), np.random.default_rng((number, seed))
    found, start_s, drift = [], 0.0, 0.0
    for index in range(count):
        start_s += float(load.exponential(0.2))
        tokens, heavy = int(load.integers(2, 30)), float(np.exp(load.normal(0.0, 0.6)))
        drift = 0.8 * drift + float(noise.normal(0.0, 0.06))
        ttft = ttft_ms * heavy * slow * float(np.exp(drift))
        gaps = pace_ms * slow * np.exp(drift + noise.normal(0.0, 0.1, tokens - 1))
        found.append(
            RequestRecord(
                round=number,
                index=index,
                prompt_id=f"{number}-{index}",
                scheduled_s=start_s,
                start_s=start_s,
                input_tokens=100,
                output_tokens=tokens,
                asked_output_tokens=tokens,
                ttft_ms=ttft,
                itl_ms=tuple(gaps.tolist()),
                e2el_ms=ttft + float(gaps.sum()),
                error=None,
            )
        )
    return found


def rounds(many: int = 3, *, slow: float = 1.0, seed: int = 0, count: int = 200, **more: float) -> tuple[Round, ...]:
    """Rounds 0, 1, ... of one server."""
    return tuple(Round.of(records(slow=slow, number=k, seed=seed, count=count, **more)) for k in range(many))


def incumbent(
    objective: Objective = BALANCED,
    *,
    slow: float = 1.0,
    seed: int = 1,
    compared: int = 10,
    traces: tuple[LiveTrace | None, ...] = (),
) -> Incumbent:
    """A best trial, scored against a baseline of the same speed at `slow` 1."""
    baseline = measure(rounds(seed=100), objective)
    mine = rounds(slow=slow, seed=seed)
    metrics = measure(mine, objective)
    score = objective.score(metrics, baseline)
    assert score.value is not None
    return Incumbent(3, mine, metrics, score.value, score.violations, baseline, compared, traces)
