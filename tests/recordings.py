"""A recorded landscape of made-up latencies, for the tests of replay: cliffs, a plateau, failed starts, repeats."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sweep.records import EngineConfig, RequestRecord, RoundRecord
from sweep.redact import Redactor
from sweep.store import Schema, Store
from sweep.trial import Failure, Flag, TrialKind, TrialResult, TrialSpec, TrialStatus

VALUES: dict[str, tuple[Flag, ...]] = {
    "gpu-memory-utilization": (0.3, 0.6, 0.9),
    "max-num-seqs": (4, 16, 64),
    "max-num-batched-tokens": (256, 1024),
    "block-size": (16, 32),
}
BASELINE: dict[str, Flag] = dict(zip(VALUES, (0.6, 4, 1024, 32), strict=True))
RATES = (4.0, 8.0)
COUNT, OUTPUT = 24, 6
SCHEMA = Schema(
    flags={name: type(values[0]) for name, values in VALUES.items()},
    metrics=("p95_ttft_ms", "output_throughput_tokens_per_s"),
)


def failure(flags: Mapping[str, Flag]) -> Failure | None:
    """Block size 16 is refused, and the least utilization leaves no KV cache."""
    if flags["block-size"] == 16:
        what = ("unsupported_block_size", "block size must be a multiple of 32")
    elif flags["gpu-memory-utilization"] == 0.3:
        what = ("kv_cache_too_small", "No available memory for the cache blocks")
    else:
        return None
    return Failure(what[0], "startup", what[1], "take another value", False, True, "infeasible", 1)


def slowness(flags: Mapping[str, Flag], rate: float) -> tuple[float, float]:
    """True TTFT and TPOT in ms: few seats queue, many slow each token; large steps read prompts sooner."""
    seqs, batched = float(flags["max-num-seqs"] or 0), float(flags["max-num-batched-tokens"] or 0)
    return 200 + 400 * max(0.0, rate - seqs / 2), 20 + 0.3 * seqs * rate / 8 + batched / 200


def requests(number: int, place: int, flags: Mapping[str, Flag], rate: float) -> tuple[RequestRecord, ...]:
    """The requests of one round, another draw for each launch."""
    rng = np.random.default_rng([number, place])
    ttft, tpot = slowness(flags, rate)
    server = math.exp(0.03 * rng.standard_normal())
    found = []
    for index in range(COUNT):
        first = ttft * server * math.exp(0.2 * rng.standard_normal())
        gaps = tuple((tpot * server * np.exp(0.1 * rng.standard_normal(OUTPUT - 1))).tolist())
        at_s = index / rate
        record = RequestRecord(
            place, index, f"p-{place}-{index}", at_s, at_s, 50, OUTPUT, OUTPUT, first, gaps, first + sum(gaps), None
        )
        found.append(record)
    return tuple(found)


def launch(number: int, flags: Mapping[str, Flag]) -> TrialResult:
    """One launch: 30 s of start, then a round at each rate that takes 10 s beside its load; 5 s when it fails."""
    failed = failure(flags)
    rounds = [] if failed else [requests(number, place, flags, rate) for place, rate in enumerate(RATES)]
    records = tuple(
        RoundRecord(
            attempt=1,
            round=place,
            began_at_s=40.0 + 20.0 * place,
            duration_s=COUNT / RATES[place],
            took_s=COUNT / RATES[place] + 10.0,
            request_rate_per_s=RATES[place],
            prompts=COUNT,
            completed=COUNT,
            failed=0,
            output_tokens=COUNT * OUTPUT,
            preemptions=0.0,
            peak_running=min(RATES[place], float(flags["max-num-seqs"] or 0)),
        )
        for place in range(len(rounds))
    )
    return TrialResult(
        spec=TrialSpec(number, TrialKind.SEARCH if number else TrialKind.BASELINE, flags),
        status=TrialStatus.INFEASIBLE if failed else TrialStatus.COMPLETE,
        metrics=None if failed else {"p95_ttft_ms": 1.0, "output_throughput_tokens_per_s": 1.0},
        score=None,
        failure=failed,
        requests=tuple(one for part in rounds for one in part),
        engine=(),
        engine_config=EngineConfig(),
        events=(),
        command="vllm serve m",
        attempts=1,
        started_wall_s=1_767_225_600.0 + 100 * number,
        startup_s=None if failed else 30.0,
        load_s=None if failed else sum(one.duration_s for one in records),
        total_s=5.0 if failed else 32.0 + sum(one.took_s for one in records),
        rounds=records,
        round_scores=(None,) * len(records),
    )


def points() -> list[dict[str, Flag]]:
    """18 points of block size 32, six of which fail, and three of block size 16."""
    every = [dict(zip(VALUES, values, strict=True)) for values in itertools.product(*VALUES.values())]
    some = {"gpu-memory-utilization": 0.6, "max-num-batched-tokens": 1024}
    return [one for one in every if one["block-size"] == 32 or some.items() <= one.items()]


def write(folder: Path, flags: Iterable[Mapping[str, Flag]] | None = None) -> Path:
    """A recording of every point, the baseline first, and of those of 16 seats that work once more."""
    every = list(points() if flags is None else flags)
    if flags is None:
        every = [BASELINE, *(one for one in every if one != BASELINE)]
        every += [one for one in every if one["max-num-seqs"] == 16 and failure(one) is None]
    store = Store(folder, SCHEMA, metadata={"vllm": "0.32.0"}, redactor=Redactor({}), reserve_bytes=0)
    for number, one in enumerate(every):
        peak = min(RATES[-1], float(one["max-num-seqs"] or 0))
        summary = {} if failure(one) else {"preemptions": 0.0, "peak_running": peak}
        store.append(launch(number, one), engine_summary=summary)
    (folder / "fingerprint.json").write_text(json.dumps({"vllm": "0.32.0", "model": "m", "gpus": []}))
    return folder


def study(folder: Path, recording: Path, **changes: Mapping[str, Any]) -> dict[str, Any]:
    """A study file that replays it; `changes` are merged into its sections."""
    content: dict[str, Any] = {
        "study": {
            "name": "again",
            "seed": 3,
            "trials": 12,
            "engine": "replay",
            "sampler": "tpe",
            "results": str(folder / "results"),
        },
        "replay": {"path": str(recording)},
        "model": {"path": "m"},
        "search_space": {
            "parameters": {name: {"type": "choice", "values": list(values)} for name, values in VALUES.items()}
        },
        "baseline": dict(BASELINE),
        "confirm": {"candidates": 0, "drift": False, "second_looks": 0},
    }
    for section, values in changes.items():
        content[section] = {**content.get(section, {}), **values}
    return content
