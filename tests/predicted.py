"""Studies on disk as a server with known costs would have left them, for the tests of predictions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sweep.fingerprint import Fingerprint
from sweep.metrics import summarize
from sweep.records import EngineConfig, RequestRecord, RoundRecord
from sweep.redact import Redactor
from sweep.store import Schema, Store
from sweep.trial import Flag, Flags, Score, TrialKind, TrialResult, TrialSpec, TrialStatus
from sweep.twin import Costs, Engine, Load, simulate

TRUTH = Costs(0.02, 1.2e-4, 1.5e-4, 6e-8, 1e-8, 0.03)
RATE, ROUNDS, REQUESTS = 4.0, 2, 45
KV_TOKENS_PER_SHARE = 200_000
FIXED: Mapping[str, Flag] = {"max-model-len": 4096, "dtype": "bfloat16", "served-model-name": "m"}
METRICS = ("p50_ttft_ms", "p95_ttft_ms", "p95_tpot_ms")
SCHEMA = Schema(
    {
        "max-num-seqs": int,
        "max-num-batched-tokens": int,
        "gpu-memory-utilization": float,
        "kv-cache-dtype": str,
    },
    METRICS,
)


def load(number: int, rate: float | None = RATE, requests: int = REQUESTS) -> Load:
    """The load of one round: the same in every trial. `rate` None: all at once."""
    rng = np.random.default_rng(number)
    inputs = np.ceil(rng.lognormal(4.6, 1.2, requests).clip(4, 1024)).astype(np.int64)
    outputs = np.ceil(rng.lognormal(3.6, 0.8, requests).clip(2, 200)).astype(np.int64)
    delays = rng.exponential(1.0, requests).cumsum()
    delays *= requests / delays[-1]
    arrivals = np.zeros(requests) if rate is None else (delays - delays[0]) / rate
    return Load.of(arrivals, inputs, outputs)


def flags(seqs: int, tokens: int = 2048, share: float = 0.9, dtype: str | None = None) -> dict[str, Flag]:
    """The searched flags of a trial."""
    return {
        "max-num-seqs": seqs,
        "max-num-batched-tokens": tokens,
        "gpu-memory-utilization": share,
        "kv-cache-dtype": dtype,
    }


def kv_tokens(share: float) -> int:
    """What the device holds."""
    return round((share - 0.5) * KV_TOKENS_PER_SHARE) // 16 * 16


def engine(of: Flags) -> Engine:
    """The engine that flags make on that device."""
    return Engine.of({**FIXED, **of}, config(of), asynchronous=True)


def config(of: Flags) -> EngineConfig:
    """What the engine says of itself."""
    share = float(of["gpu-memory-utilization"] or 0.9)
    tokens = kv_tokens(share)
    return EngineConfig(block_size=16, gpu_blocks=tokens // 16, kv_tokens=tokens, gpu_memory_utilization=share)


def trial(
    number: int,
    of: Flags,
    *,
    rate: float | None = RATE,
    noise: float = 0.03,
    requests: int = REQUESTS,
    **facts: Any,
) -> TrialResult:
    """A trial as if measured: every request off by `noise` of its own, all of a launch by half of that."""
    rng = np.random.default_rng(1000 + number)
    launch = noise / 2 * rng.standard_normal()
    records: list[RequestRecord] = []
    rounds: list[RoundRecord] = []
    for k in range(ROUNDS):
        sent = load(k, rate, requests)
        run = simulate(sent, engine(of), TRUTH)
        for one in run.records(k):
            factor = float(np.exp(launch + noise * rng.standard_normal()))
            gaps = tuple(gap * factor for gap in one.itl_ms)
            ttft_ms = (one.ttft_ms or 0.0) * factor
            plain = RequestRecord(
                k, one.index, f"p{k}-{one.index}", one.scheduled_s, one.start_s, one.input_tokens, one.output_tokens,
                one.output_tokens, ttft_ms, gaps, ttft_ms + sum(gaps), None,
            )  # fmt: skip
            records.append(plain)
        tokens = int(sent.output_tokens.sum())
        rounds.append(RoundRecord(1, k, 0.0, run.duration_s, run.duration_s + 1, rate, requests, requests, 0, tokens))
    load_s = sum(one.duration_s for one in rounds)
    every = summarize(records, load_s, percentiles=(50, 95, 99), slo={})
    settings: dict[str, Any] = {
        "spec": TrialSpec(number, TrialKind.SEARCH if number else TrialKind.BASELINE, of),
        "status": TrialStatus.COMPLETE,
        "metrics": {name: every[name] for name in METRICS},
        "score": Score(1.0),
        "failure": None,
        "requests": tuple(records),
        "engine": (),
        "engine_config": config(of),
        "events": (),
        "command": "vllm serve m",
        "attempts": 1,
        "started_wall_s": 1_767_225_600.0,
        "startup_s": 40.0,
        "load_s": load_s,
        "total_s": 60.0,
        "rounds": tuple(rounds),
        **facts,
    }
    return TrialResult(**settings)


def write(
    folder: Path, results: Sequence[TrialResult], *, slo: Mapping[str, float] | None = None, **known: Any
) -> Path:
    """A study's folder with these trials; `known` replaces parts of its fingerprint."""
    store = Store(folder, SCHEMA, metadata={}, redactor=Redactor({}), reserve_bytes=0)
    for result in results:
        store.append(result, engine_summary={})
    settings = {"study": {"name": folder.name, "trials": 6}, "objective": {"slo": dict(slo or {})}}
    (folder / "study.json").write_text(json.dumps(settings))
    content = {
        "vllm": "0.32.0",
        "gpus": ["a card"],
        "fixed_flags": {name: json.dumps(value) for name, value in FIXED.items()},
        "load": {"burstiness": "1.0", "max_concurrency": "null", "seed": "7"},
        **known,
    }
    (folder / "fingerprint.json").write_text(Fingerprint.from_json(json.dumps(content)).as_json())
    return folder


def night(folder: Path, **known: Any) -> Path:
    """Three trials of different seats, budgets and memory."""
    results = [
        trial(0, flags(32, 2048, 0.9)),
        trial(1, flags(8, 512, 0.9)),
        trial(2, flags(64, 256, 0.8)),
    ]
    return write(folder, results, **known)


def truth(of: Flags, rate: float | None = RATE) -> dict[str, float | None]:
    """The metrics that a launch without noise would have."""
    runs = [simulate(load(k, rate), engine(of), TRUTH) for k in range(ROUNDS)]
    records = [record for k, run in enumerate(runs) for record in run.records(k)]
    return summarize(records, sum(run.duration_s for run in runs), percentiles=(50, 95, 99), slo={})


def changed(result: TrialResult, **changes: Any) -> TrialResult:
    """The result with some fields replaced."""
    return replace(result, **changes)


def changed_request(request: RequestRecord, **changes: Any) -> RequestRecord:
    """The request with some fields replaced."""
    return replace(request, **changes)


def changed_round(one: RoundRecord, **changes: Any) -> RoundRecord:
    """The round with some fields replaced."""
    return replace(one, **changes)


def resolved(of: Flags, *, empty: bool = False, **changes: Any) -> EngineConfig:
    """What the engine says of itself, with some of it replaced; `empty`: nothing."""
    return EngineConfig() if empty else replace(config(of), **changes)
