#!/usr/bin/env python3
"""What the page of a study costs: seconds, memory and size for 100 and 1,000 trials of 1,000 requests each.

The studies are made of random latencies, with engine readings, telemetry, events and logs as a night leaves them; each
page is then made in a process of its own, whose time and peak memory count from its start to its end. Beside the time
by the clock stands its CPU time (`cpu_s_...`), which other work on the machine does not stretch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from figures import tell

from sweep.records import EngineConfig, EngineSample, Event, RequestRecord, RoundRecord
from sweep.redact import Redactor
from sweep.store import Schema, Store, TelemetryRow
from sweep.trial import Failure, Flags, Score, TrialKind, TrialResult, TrialSpec, TrialStatus

LOAD_S, READY_S, GAPS = 240.0, 90.0, 100
# So many loads of each max-num-seqs are drawn; trials share them, since drawing a thousand takes longer than a page.
LOADS = 4
METRICS = ("p95_ttft_ms", "p95_tpot_ms", "p99_itl_ms", "p95_e2el_ms", "output_throughput_tokens_per_s")
OOM = Failure("startup_oom", "startup", "CUDA out of memory", "lower gpu-memory-utilization", False, True, "infeasible")


def make_study(folder: Path, trials: int, requests: int, seed: int = 1) -> None:
    """A study of that many trials: search with failures, and a confirmation of the best two."""
    schema = Schema({"max-num-seqs": int, "max-num-batched-tokens": int, "gpu-memory-utilization": float}, METRICS)
    store = Store(folder, schema, metadata={}, redactor=Redactor({}), reserve_bytes=0)
    rng = random.Random(seed)
    confirm = min(12, trials // 5)
    best: Flags = {"max-num-seqs": 64, "max-num-batched-tokens": 2048, "gpu-memory-utilization": 0.9}
    today: Flags = {"max-num-seqs": 32, "max-num-batched-tokens": 2048, "gpu-memory-utilization": 0.9}
    for number in range(trials):
        flags: Flags = {
            "max-num-seqs": rng.choice((16, 32, 48, 64, 96, 128)),
            "max-num-batched-tokens": rng.choice((512, 1024, 2048, 4096, 8192)),
            "gpu-memory-utilization": round(rng.uniform(0.7, 0.95), 2),
        }
        kind, block = TrialKind.SEARCH, None
        if number == 0:
            kind, flags = TrialKind.BASELINE, today
        elif number == 1:
            flags = best
        elif number >= trials - confirm:
            place = number - (trials - confirm)
            kind, block, flags = TrialKind.CONFIRM, place // 2, best if place % 2 else today
        failed = kind is TrialKind.SEARCH and number > 1 and rng.random() < 0.15
        result = _failed(number, flags) if failed else _measured(number, kind, flags, block, requests, seed)
        with unsynced():
            store.append(result, engine_summary={}, telemetry=() if failed else _telemetry())
        _log(folder, number)
    settings = {"study": {"name": folder.name, "trials": trials}, "objective": {"preset": "balanced"}}
    (folder / "study.json").write_text(json.dumps(settings))


@contextmanager
def unsynced() -> Iterator[None]:
    """What is made here need not survive a power cut: a busy disk takes seconds to sync what one trial leaves."""
    real, os.fsync = os.fsync, lambda fd: None  # noqa: ARG005 - its callers may name it
    try:
        yield
    finally:
        os.fsync = real


def _measured(number: int, kind: TrialKind, flags: Flags, block: int | None, requests: int, seed: int) -> TrialResult:
    seqs = flags["max-num-seqs"]
    assert isinstance(seqs, int)
    records, metrics = _load(seqs, number % LOADS, requests, seed)
    rounds = tuple(
        RoundRecord(1, place, READY_S + 80.0 * place, 80.0, 85.0, 5.0, requests // 3, requests // 3, 0, 0)
        for place in range(3)
    )
    return TrialResult(
        spec=TrialSpec(number, kind, flags, block=block), status=TrialStatus.COMPLETE, metrics=metrics,
        score=Score(1.0), failure=None, requests=records, engine=_engine(), engine_config=EngineConfig(16, 27_000),
        events=_events(), command="vllm serve model", attempts=1, started_wall_s=1_767_225_600.0 + 360.0 * number,
        startup_s=READY_S, load_s=LOAD_S, total_s=350.0, rounds=rounds,
    )  # fmt: skip


@cache
def _load(
    seqs: int, draw: int, requests: int, seed: int
) -> tuple[tuple[RequestRecord, ...], Mapping[str, float | None]]:
    """One of the loads of that flag: its requests, and the metrics of them."""
    rng = np.random.default_rng([seed, seqs, draw])
    ttft = rng.lognormal(np.log(200.0 + 4000.0 / seqs), 0.5, requests)
    gaps = rng.lognormal(np.log(15.0 + seqs / 10), 0.3, (requests, GAPS))
    records = tuple(
        RequestRecord(
            round=place % 3, index=place // 3, prompt_id=f"p{place}", scheduled_s=place * 0.2, start_s=place * 0.2,
            input_tokens=200, output_tokens=GAPS + 1, asked_output_tokens=GAPS + 1, ttft_ms=float(ttft[place]),
            itl_ms=tuple(gaps[place].tolist()), e2el_ms=float(ttft[place] + gaps[place].sum()), error=None,
        )
        for place in range(requests)
    )  # fmt: skip
    metrics: dict[str, float | None] = {
        "p95_ttft_ms": float(np.percentile(ttft, 95)),
        "p95_tpot_ms": float(np.percentile(gaps.mean(axis=1), 95)),
        "p99_itl_ms": float(np.percentile(gaps, 99)),
        "p95_e2el_ms": float(np.percentile(ttft + gaps.sum(axis=1), 95)),
        "output_throughput_tokens_per_s": requests * (GAPS + 1) / LOAD_S,
    }
    return records, metrics


def _failed(number: int, flags: Flags) -> TrialResult:
    return TrialResult(
        spec=TrialSpec(number, TrialKind.SEARCH, flags), status=TrialStatus.INFEASIBLE, metrics=None, score=None,
        failure=OOM, requests=(), engine=(), engine_config=EngineConfig(), events=_events(), command="vllm serve model",
        attempts=1, started_wall_s=1_767_225_600.0 + 360.0 * number, startup_s=None, load_s=None, total_s=60.0,
    )  # fmt: skip


def _engine() -> tuple[EngineSample, ...]:
    return tuple(EngineSample(READY_S + at, "load", at % 40, at % 7, 0.5, 3.0) for at in range(int(LOAD_S)))


def _telemetry() -> tuple[TelemetryRow, ...]:
    return tuple(
        TelemetryRow(
            READY_S + at, "load", attempt=1, device=device, sm_clock_mhz=1700.0 - at % 90, power_w=250.0 + at % 30,
            temperature_c=60.0 + at % 9, memory_used_gib=44.0,
            throttle_reasons=("sw_power_cap",) if at % 60 == 0 else (),
        )
        for at in range(int(LOAD_S))
        for device in range(4)
    )  # fmt: skip


def _events() -> tuple[Event, ...]:
    phases = (("host", 0.0), ("start", 2.0), ("ready", 88.0), ("warmup", READY_S), ("load", 95.0), ("stop", 340.0))
    return tuple(Event(1, at_s, 1_767_225_600.0 + at_s, "phase", phase) for phase, at_s in phases)


def _log(folder: Path, number: int) -> None:
    place = folder / "logs" / f"{number:04d}"
    place.mkdir(parents=True, exist_ok=True)
    line = "(EngineCore pid=1) INFO 11-30 08:00:00 [loggers.py:123] prompt throughput: 812.4 tokens/s, Running: 40\n"
    (place / "server-1.log").write_text(line * 2_000)


def measured_page(folder: Path) -> dict[str, float]:
    """One page in a process of its own: seconds by the clock, CPU seconds, GiB of peak memory, MiB of the file."""
    began_s = time.perf_counter()
    words = [sys.executable, __file__, "--page", str(folder)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - began_s
    found: dict[str, float] = json.loads(done.stdout)
    return {"seconds": seconds, **found}


def _page(folder: Path) -> None:
    from sweep.report.page import write_page  # the time of its imports is the page's

    size = write_page(folder).stat().st_size
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "cpu_s": used.ru_utime + used.ru_stime,
        "rss_gib": used.ru_maxrss / 2**20,
        "html_mib": size / 2**20,
    }
    print(json.dumps(figures))


def main() -> int:
    """Make the studies, measure, print; returns 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--quick", action="store_true", help="a fifth of the trials, a tenth of requests: same keys")
    parser.add_argument("--page", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.page is not None:
        _page(given.page)
        return 0
    requests, share, repeats = (100, 5, 1) if given.quick else (1_000, 1, 3)
    figures: dict[str, Any] = {"requests": requests, "share_of_trials": 1 / share, "cpus": os.cpu_count()}
    with tempfile.TemporaryDirectory() as made:
        for trials in (100, 1_000):
            folder = Path(made) / f"of-{trials}"
            folder.mkdir()
            make_study(folder, trials // share, requests)
            runs = [measured_page(folder) for _ in range(repeats if trials == 100 else 1)]
            for key in ("seconds", "cpu_s", "rss_gib", "html_mib"):
                values = [run[key] for run in runs]
                figures[f"{key}_{trials}x1000"] = round(median(values), 3)
                figures[f"{key}_{trials}x1000_spread"] = round(max(values) - min(values), 3)
    tell(figures, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
