"""A study with everything that a page shows: engine readings, devices, events, logs, hostile words, a confirmation."""

from __future__ import annotations

from pathlib import Path

from reported import alike, append, launch, lost, measured, night
from reported import flags as flags_of

from sweep.records import EngineConfig, EngineSample, Event, RoundRecord
from sweep.redact import Redactor
from sweep.store import Schema, Store, TelemetryRow
from sweep.trial import Failure, TrialKind, TrialSpec, TrialStatus

START_S = 1_767_225_600.0
HOSTILE = '</script><img src=x onerror="alert(1)"><!-- & %{x} $a$'
PHASES = (("host", 0.0), ("start", 5.0), ("ready", 35.0), ("warmup", 40.0), ("load", 42.0), ("stop", 55.0))


def events(attempt: int = 1, *, end_s: float = 60.0) -> tuple[Event, ...]:
    """The phases of an attempt and its end."""
    phases = [Event(attempt, at_s, START_S + at_s, "phase", phase) for phase, at_s in PHASES]
    return (*phases, Event(attempt, end_s, START_S + end_s, "stopped", "stop"))


def engine() -> tuple[EngineSample, ...]:
    """Two readings before the load and thirteen in it: preemptions rise from 5 to 8."""
    before = EngineSample(38.0, "ready", 99.0, 99.0, 0.99, 0.0)
    return (
        before,
        *(EngineSample(42.0 + s, "load", 4.0, float(s), 0.1 * (s % 5), 5.0 + s // 4) for s in range(13)),
    )


def telemetry() -> tuple[TelemetryRow, ...]:
    """Two devices and the host, once a second; device 1 is throttled by heat from second 46 to 48."""
    rows = []
    for s in range(13):
        for device in (0, 1):
            hot = device == 1 and 4 <= s < 7
            rows.append(
                TelemetryRow(
                    42.0 + s,
                    "load",
                    attempt=1,
                    device=device,
                    sm_clock_mhz=900.0 if hot else 1700.0,
                    power_w=200.0 + 50 * device,
                    temperature_c=60.0 + 10 * device,
                    throttle_reasons=("hw_thermal_slowdown",) if hot else ("gpu_idle",),
                )
            )
        rows.append(TelemetryRow(42.0 + s, "load", attempt=1, host_cpu_percent=20.0, client_cpu_percent=5.0))
    return tuple(rows)


def rich_night(folder: Path) -> Path:
    """`night` of `reported` confirmed, and trials 40 to 43: one with all readings, hostile ones, one tried twice."""
    append(night(folder), (launch(10 + 3 * b + n, n, b, *_MS[n]) for b in range(4) for n in (0, 1, 2)))
    schema = Schema({"max-num-seqs": int, "block-size": int, "gpu-memory-utilization": float}, ())
    store = Store(folder, schema, metadata={}, redactor=Redactor({}), reserve_bytes=0)
    facts = {"engine": engine(), "events": events(), "total_s": 60.0, "started_wall_s": START_S + 1000.0}
    rounds = (RoundRecord(1, 0, 44.0, 10.0, 12.0, None, 20, 20, 0, 60),)
    config = EngineConfig(block_size=16, kv_tokens=81_920, cache_dtype=HOSTILE)
    whole = measured(40, alike(80.0), **facts, rounds=rounds, engine_config=config, metrics={}, command=HOSTILE)
    store.append(whole, engine_summary={}, telemetry=telemetry())
    bad = Failure("startup_oom", "startup", HOSTILE, HOSTILE, False, True, "infeasible", 1)
    spec = TrialSpec(41, TrialKind.SEARCH, flags_of(41))
    unfit = {"status": TrialStatus.INFEASIBLE, "metrics": None, "score": None, "load_s": None}
    store.append(measured(41, (), spec=spec, **unfit, failure=bad), engine_summary={})
    twice = {"events": (*events(1), *events(2)), "attempts": 2, "total_s": 150.0, "metrics": {}}
    store.append(measured(42, alike(85.0), **twice), engine_summary={})
    store.append(lost(43), engine_summary={})
    logs = folder / "logs" / "0040"
    logs.mkdir(parents=True)
    (logs / "server-1.log").write_text(
        f"started\n{HOSTILE}\n\x1b[31mred\x1b[0m\nHF_TOKEN=hf_abcdefghijklmnopqrstuvwx\n"
    )
    return folder


_MS = {0: (100.0, 10.0), 1: (50.0, 20.0), 2: (90.0, 9.0)}
