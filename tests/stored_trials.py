"""Trials to store, for the tests of the store."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from sweep.records import EngineConfig, EngineSample, Event, RequestRecord, RoundRecord
from sweep.redact import Redactor
from sweep.store import (
    Schema,
    Store,
    TelemetryRow,
)
from sweep.trial import Failure, Flag, Score, TrialKind, TrialResult, TrialSpec, TrialStatus

SCHEMA = Schema(
    flags={"max-num-seqs": int, "gpu-memory-utilization": float, "enable-prefix-caching": bool, "max-model-len": str},
    metrics=("p95_ttft_ms", "p99.9_ttft_ms", "output_throughput_tokens_per_s"),
    slos=("p95_ttft_ms",),
)
SUMMARY = {"preemptions": 2.0, "peak_kv_usage_share": 0.75}
STARTED_S = 1_767_225_600.25
FLAGS: dict[str, Flag] = {
    "max-num-seqs": 32,
    "gpu-memory-utilization": 1,
    "enable-prefix-caching": None,
    "max-model-len": 8192,
}


def requests() -> tuple[RequestRecord, ...]:
    whole = RequestRecord(0, 0, "p-7", 0.0, 0.25, 120, 3, 3, 50.0, (10.0, 12.0), 72.0, None)
    single = RequestRecord(0, 1, "p-8", 0.5, 0.5, 9, 1, 1, 40.0, (), 40.0, None)
    failed = RequestRecord(0, 2, "p-9", None, None, 10, None, 3, None, (), None, "500 Internal Server Error")
    return (whole, single, failed)


def rounds() -> tuple[RoundRecord, ...]:
    whole = RoundRecord(
        attempt=2,
        round=0,
        began_at_s=50.0,
        duration_s=20.0,
        took_s=26.5,
        request_rate_per_s=4.0,
        prompts=3,
        completed=2,
        failed=1,
        output_tokens=4,
        prefix_cache_reset=True,
        prefix_hit_share=0.125,
        preemptions=2.0,
        client_cpu_percent=3.5,
        p99_lag_ms=250.0,
        max_lag_ms=250.0,
        p50_ttft_ms=45.0,
        p95_ttft_ms=49.5,
        disturbed=("GPU 0: hw slowdown for 4 of 20 samples",),
    )
    bare = RoundRecord(2, 1, 80.0, 0.5, 1.5, None, 1, 0, 1, 0)
    return (whole, bare)


def complete(number: int = 3, flags: dict[str, Flag] | None = None, command: str = "vllm serve m") -> TrialResult:
    return TrialResult(
        spec=TrialSpec(number, TrialKind.SEARCH if number else TrialKind.BASELINE, flags or FLAGS),
        status=TrialStatus.COMPLETE,
        metrics={
            "p95_ttft_ms": 51.5 + number,
            "p99.9_ttft_ms": None,
            "output_throughput_tokens_per_s": 120.0,
        },
        score=Score(0.9, violations={"p95_ttft_ms": -0.25}),
        failure=None,
        requests=requests(),
        engine=(EngineSample(1.5, "load", running=3.0, preemptions=2.0), EngineSample(2.5, "load")),
        engine_config=EngineConfig(block_size=16, kv_tokens=4096, cache_dtype="auto", enable_prefix_caching=True),
        events=(
            Event(1, 0.0, STARTED_S, "started", "start"),
            Event(1, 9.5, STARTED_S + 9.5, "failed", "load", "port", "port_taken", "bind: in use", 1, True, "wait"),
        ),
        command=command,
        attempts=2,
        started_wall_s=STARTED_S,
        startup_s=41.25,
        load_s=20.5,
        total_s=70.0,
        remarks=("retried once", "p99 from few requests"),
        rounds=rounds(),
        round_scores=(0.85, None),
    )


def failed(number: int) -> TrialResult:
    return TrialResult(
        spec=TrialSpec(number, TrialKind.SEARCH, FLAGS),
        status=TrialStatus.INFEASIBLE,
        metrics=None,
        score=None,
        failure=Failure("oom_startup", "startup", "CUDA out of memory", "lower it", False, True, "infeasible", -9),
        requests=(),
        engine=(),
        engine_config=EngineConfig(),
        events=(),
        command="vllm serve m",
        attempts=1,
        started_wall_s=STARTED_S,
        startup_s=None,
        load_s=None,
        total_s=3.0,
    )


def store(folder: Path, schema: Schema = SCHEMA, reserve_bytes: int = 0) -> Store:
    metadata = {"vllm": "0.32.0", "driver": "570.1"}
    return Store(folder, schema, metadata=metadata, redactor=Redactor({}), reserve_bytes=reserve_bytes)


def looks() -> tuple[TelemetryRow, ...]:
    return (
        TelemetryRow(0.0, "load", device=0, power_w=250.5, throttle_reasons=("sw_power_cap",)),
        TelemetryRow(0.0, "load", host_cpu_percent=12.5, ram_free_gib=20.0),
    )


def write_study(folder: Path) -> Path:
    """A study of three trials, the second of which failed."""
    writer = store(folder)
    for result in (complete(0), failed(1), complete(2)):
        writer.append(result, engine_summary=SUMMARY if result.metrics else {}, telemetry=looks())
    return folder


def changed(result: TrialResult, **changes: object) -> TrialResult:
    """The result with some fields replaced."""
    return dataclasses.replace(result, **changes)  # type: ignore[arg-type]
