"""Studies on disk whose every latency is known, for the tests of the report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweep.metric_table import RATES
from sweep.metrics import summarize
from sweep.records import EngineConfig, RequestRecord
from sweep.redact import Redactor
from sweep.store import Schema, Store
from sweep.trial import Failure, Flags, Score, TrialKind, TrialResult, TrialSpec, TrialStatus

STORED = ("mean_ttft_ms", "p50_ttft_ms", "p95_ttft_ms", "p95_tpot_ms", *RATES)
OWN: Mapping[str, Any] = {"weights": {"p95_ttft_ms": 1.0}}
OOM = Failure("startup_oom", "startup", "CUDA out of memory", "lower it", False, True, "infeasible", 1)
DURATION_S = 10.0


def request(index: int, ttft_ms: float | None, gap_ms: float = 10.0, tokens: int = 3) -> RequestRecord:
    """One answered request, or with `ttft_ms` None a failed one."""
    if ttft_ms is None:
        return RequestRecord(0, index, f"p{index}", 0.0, 0.0, 10, None, tokens, None, (), None, "500")
    gaps = (gap_ms,) * (tokens - 1)
    return RequestRecord(0, index, f"p{index}", 0.0, 0.0, 10, tokens, tokens, ttft_ms, gaps, ttft_ms + sum(gaps), None)


def alike(ttft_ms: float, gap_ms: float = 10.0, count: int = 20) -> tuple[RequestRecord, ...]:
    """Requests of one latency."""
    return tuple(request(index, ttft_ms, gap_ms) for index in range(count))


def measured(number: int, requests: Sequence[RequestRecord], **facts: Any) -> TrialResult:
    """A complete trial with these requests in DURATION_S."""
    every = summarize(requests, DURATION_S, percentiles=(50, 95), slo={})
    settings: dict[str, Any] = {
        "spec": TrialSpec(number, TrialKind.SEARCH if number else TrialKind.BASELINE, flags(number)),
        "status": TrialStatus.COMPLETE,
        "metrics": {name: every[name] for name in STORED},
        "score": Score(1.0),
        "failure": None,
        "requests": tuple(requests),
        "engine": (),
        "engine_config": EngineConfig(),
        "events": (),
        "command": f"vllm serve m --max-num-seqs {8 * (number + 1)}",
        "attempts": 1,
        "started_wall_s": 1_767_225_600.0,
        "startup_s": 40.0,
        "load_s": DURATION_S,
        "total_s": 60.0,
        **facts,
    }
    return TrialResult(**settings)


def lost(number: int) -> TrialResult:
    """A trial whose flags do not fit into memory."""
    return measured(number, (), status=TrialStatus.INFEASIBLE, metrics=None, score=None, failure=OOM, load_s=None)


def flags(number: int) -> Flags:
    """The flags of trial `number`."""
    return {"max-num-seqs": 8 * (number + 1), "block-size": None}


def write(folder: Path, results: Iterable[TrialResult], objective: Mapping[str, Any] = OWN, trials: int = 6) -> Path:
    """A study's folder with these trials, as `sweep.tune` leaves it."""
    schema = Schema({"max-num-seqs": int, "block-size": int}, STORED)
    store = Store(folder, schema, metadata={}, redactor=Redactor({}), reserve_bytes=0)
    for result in results:
        store.append(result, engine_summary={})
    settings = {"study": {"name": folder.name, "trials": trials}, "objective": dict(objective)}
    (folder / "study.json").write_text(json.dumps(settings))
    return folder


def night(folder: Path, objective: Mapping[str, Any] = OWN) -> Path:
    """Six trials: 1 has a short TTFT and long gaps, 2 is a little better in both, 3 fails, 4 is disturbed, 5 is bad."""
    return write(
        folder,
        (
            measured(0, alike(100.0, 10.0)),
            measured(1, alike(50.0, 20.0)),
            measured(2, alike(90.0, 9.0)),
            lost(3),
            measured(4, alike(40.0, 8.0), disturbances=("GPU 0 throttled",)),
            measured(5, alike(200.0, 30.0)),
        ),
        objective,
    )
