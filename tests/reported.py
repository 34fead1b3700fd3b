"""Studies on disk whose every latency is known, for the tests of the report."""

from __future__ import annotations

import functools
import json
import math
import random
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweep.metric_table import RATES
from sweep.metrics import summarize
from sweep.records import EngineConfig, RequestRecord, RoundRecord
from sweep.redact import Redactor
from sweep.report import Report, Wishes, make_report, open_source
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
        "rounds": (_round(requests),),
        **facts,
    }
    return TrialResult(**settings)


def _round(requests: Sequence[RequestRecord]) -> RoundRecord:
    done = [one for one in requests if one.error is None]
    tokens = sum(one.output_tokens or 0 for one in done)
    return RoundRecord(1, 0, 40.0, DURATION_S, 12.0, None, len(requests), len(done), len(requests) - len(done), tokens)


def launch(number: int, of: int, block: int, ttft_ms: float, gap_ms: float = 10.0, **facts: Any) -> TrialResult:
    """A launch of the confirmation: the flags of trial `of` in a block, with requests around these latencies."""
    rng = random.Random(1000 * block + of)
    server = rng.gauss(0, 0.01)  # one server differs from another
    requests = [
        request(index, ttft_ms * math.exp(rng.gauss(server, 0.1)), gap_ms * math.exp(rng.gauss(server, 0.05)))
        for index in range(40)
    ]
    spec = TrialSpec(number, TrialKind.CONFIRM, flags(of), block=block)
    return measured(number, requests, **{"spec": spec, **facts})


def confirmed(folder: Path, *, of: Sequence[int] = (0, 1, 2)) -> Path:
    """`night` with four launches of each of these trials, as good as the search said."""
    ms = {0: (100.0, 10.0), 1: (50.0, 20.0), 2: (90.0, 9.0)}
    append(night(folder), (launch(10 + 3 * block + n, n, block, *ms[n]) for block in range(4) for n in of))
    return folder


def lost(number: int, spec: TrialSpec | None = None) -> TrialResult:
    """A trial whose flags do not fit into memory."""
    facts: dict[str, Any] = {} if spec is None else {"spec": spec}
    status = TrialStatus.INFEASIBLE
    return measured(number, (), status=status, metrics=None, score=None, failure=OOM, load_s=None, **facts)


def report_of(folder: Path, **wishes: Any) -> Report:
    """Its report, with these wishes."""
    return make_report(open_source(str(folder)), Wishes(**wishes))


def flags(number: int) -> Flags:
    """The flags of trial `number`."""
    return {"max-num-seqs": 8 * (number + 1), "block-size": None, "gpu-memory-utilization": 0.9}


def write(folder: Path, results: Iterable[TrialResult], objective: Mapping[str, Any] = OWN, trials: int = 6) -> Path:
    """A study's folder with these trials, as `sweep.tune` leaves it."""
    append(folder, results)
    _settings(folder, objective, trials)
    return folder


def _settings(folder: Path, objective: Mapping[str, Any], trials: int) -> None:
    settings = {"study": {"name": folder.name, "trials": trials}, "objective": dict(objective)}
    (folder / "study.json").write_text(json.dumps(settings))


def append(folder: Path, results: Iterable[TrialResult]) -> None:
    """Further trials of a study."""
    schema = Schema({"max-num-seqs": int, "block-size": int, "gpu-memory-utilization": float}, STORED)
    store = Store(folder, schema, metadata={}, redactor=Redactor({}), reserve_bytes=0)
    for result in results:
        store.append(result, engine_summary={})


def night(folder: Path, objective: Mapping[str, Any] = OWN) -> Path:
    """Six trials: 1 has a short TTFT and long gaps, 2 is a little better in both, 3 fails, 4 is disturbed, 5 is bad."""
    for name, content in _night().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    _settings(folder, objective, 6)
    return folder


@functools.cache
def _night() -> Mapping[str, bytes]:
    """The files of that night; made once, since storing takes care that each is on the disk."""
    with tempfile.TemporaryDirectory() as made:
        results = (
            measured(0, alike(100.0, 10.0)),
            measured(1, alike(50.0, 20.0)),
            measured(2, alike(90.0, 9.0)),
            lost(3),
            measured(4, alike(40.0, 8.0), disturbances=("GPU 0 throttled",)),
            measured(5, alike(200.0, 30.0)),
        )
        folder = write(Path(made), results)
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
