"""The twin against vLLM's own scheduler class, step by step: who computes how many tokens, who is preempted."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweep.twin import Costs, Engine, Load, simulate
from sweep.vllm_cpu import installed

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[1]
SCENARIOS = 300
# A step takes a second and nothing else takes any time: the clock of the driver.
COSTS = Costs(1.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def scenario(seed: int) -> tuple[Load, Engine]:
    """A random load on a random engine; about a quarter of them preempt."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 40))
    inputs = np.ceil(rng.lognormal(3.5, 1.0, n).clip(1, 300)).astype(np.int64)
    outputs = np.ceil(rng.lognormal(2.5, 1.0, n).clip(1, 120)).astype(np.int64)
    arrivals = np.sort(rng.integers(0, int(rng.choice([1, 10, 60])), n) / 2.0)
    sharing = bool(rng.random() < 0.6)
    load = Load.of(
        arrivals,
        inputs,
        outputs,
        priority=rng.integers(0, 3, n),
        prefix_group=rng.integers(-1, 3, n) if sharing else -1,
        prefix_tokens=np.minimum(rng.integers(1, 200, n), inputs) if sharing else 0,
    )
    size = int(rng.choice([1, 4, 16, 32]))
    longest = int((inputs + outputs).max())
    least = -(-longest // size)
    seats = int(rng.integers(1, 24))
    chunked = bool(rng.random() < 0.8)
    # A third of the budgets leave room for hardly more than the decoding requests.
    most = 400 if rng.random() < 0.7 else seats + 2
    budget = max(seats, int(rng.integers(1, most)), 0 if chunked else longest)
    engine = Engine(
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        kv_blocks=int(least * rng.uniform(1.0, 6.0)) + 1,
        block_size=size,
        chunked_prefill=chunked,
        long_prefill_tokens=int(rng.choice([0, 0, int(rng.integers(2, 100))])),
        long_prefill_adaptive=bool(rng.random() < 0.3),
        by_priority=bool(rng.random() < 0.3),
        prefix_caching=bool(rng.random() < 0.6),
        whole_prompt=bool(rng.random() < 0.6),
        watermark_share=float(rng.choice([0.0, 0.0, 0.05])),
        asynchronous=bool(rng.random() < 0.5),
    )
    return load, engine


def as_json(load: Load, engine: Engine) -> dict[str, Any]:
    """For the driver."""
    names = [item.name for item in dataclasses.fields(load)]
    columns = zip(*(getattr(load, name).tolist() for name in names), strict=True)
    return {
        "engine": dataclasses.asdict(engine),
        "requests": [dict(zip(names, row, strict=True)) for row in columns],
    }


def steps_of(trace: np.ndarray[Any, np.dtype[np.int64]]) -> list[list[list[int]]]:
    """The twin's trace as the driver tells it: the preempted of a step first, in order of number."""
    steps: dict[int, tuple[list[list[int]], list[list[int]]]] = {}
    for step, request, tokens in trace.tolist():
        steps.setdefault(step, ([], []))[tokens >= 0].append([request, tokens])
    return [sorted(preempted) + computing for _, (preempted, computing) in sorted(steps.items())]


def drive(scenarios: list[tuple[Load, Engine]]) -> list[dict[str, Any]]:
    """What vLLM's scheduler does with them."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "twin_driver.py")],
        input=json.dumps([as_json(*one) for one in scenarios]),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    traces: list[dict[str, Any]] = json.loads(done.stdout)
    return traces


@pytest.mark.skipif(installed() is None, reason="no vLLM in this Python")
def test_every_step_is_that_of_vllm_s_own_scheduler() -> None:
    scenarios = [scenario(seed) for seed in range(SCENARIOS)]
    theirs = drive(scenarios)
    assert len(theirs) == SCENARIOS
    preempting = shared = 0
    for seed, ((load, engine), trace) in enumerate(zip(scenarios, theirs, strict=True)):
        ours = simulate(load, engine, COSTS, traced_rows=1_000_000)
        for step, (mine, vllm) in enumerate(zip(steps_of(ours.trace), trace["steps"], strict=False)):
            assert mine == vllm, f"scenario {seed}, step {step}: {engine}"
        assert ours.steps == len(trace["steps"]), f"scenario {seed}"
        assert ours.token_s.tolist() == [moment for request in trace["came"] for moment in request], f"scenario {seed}"
        preempting += bool(ours.engine.preemptions)
        shared += bool(ours.engine.prefix_hit_share)
    # The comparison says something only if what is hard occurs.
    assert preempting > SCENARIOS // 5
    assert shared > SCENARIOS // 10
