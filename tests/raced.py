"""Stored trials of three rounds and candidates raced against them, for the tests of racing in a study."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fake_study
import pytest
from race_records import BALANCED, records, rounds

from sweep.config import load
from sweep.desk import Desk
from sweep.gpu import Gpus
from sweep.prepare import prepare
from sweep.racing import Round, measure
from sweep.records import EngineConfig, EngineSample, RoundRecord
from sweep.redact import Redactor
from sweep.runner import TrialSetup
from sweep.store import Schema, Store
from sweep.trial import Finished, Flag, TrialKind, TrialResult, TrialSpec, TrialStatus
from sweep.wire import Rival

COUNT, ROUNDS = 60, 3
FLAGS: dict[str, Flag] = {"max-num-seqs": 64, "gpu-memory-utilization": 0.8}
PACE_S, ROUND_S = 100.0, 60.0  # a round begins every 100 s and lasts a minute
BASELINE = measure(rounds(seed=100, count=COUNT), BALANCED)


@contextmanager
def prepared_setup(folder: Path) -> Iterator[TrialSetup]:
    """The setup of a study of three rounds."""
    changes = {"rounds": ROUNDS, "num_prompts": ROUNDS * COUNT}
    with pytest.MonkeyPatch.context() as patch, Gpus() as gpus:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        path = fake_study.write(folder / "study.yaml", fake_study.study(folder, load=changes))
        yield prepare(load(path), path, folder / "results" / "night", gpus).setup


def stored(folder: Path, number: int, *, seed: int, slow: float = 1.0) -> None:
    """A complete trial whose engine never had more than three requests waiting."""
    every = [record for k in range(ROUNDS) for record in records(number=k, seed=seed, slow=slow, count=COUNT)]
    metrics = measure(rounds(seed=seed, slow=slow, count=COUNT), BALANCED)
    result = TrialResult(
        spec=TrialSpec(number, TrialKind.SEARCH, FLAGS, BASELINE),
        status=TrialStatus.COMPLETE,
        metrics=metrics,
        score=BALANCED.score(metrics, BASELINE),
        failure=None,
        requests=tuple(every),
        engine=tuple(sample for k in range(ROUNDS) for sample in engine(PACE_S * (k + 1))),
        engine_config=EngineConfig(),
        events=(),
        command="vllm serve m",
        attempts=1,
        started_wall_s=1_767_225_600.0,
        startup_s=10.0,
        load_s=ROUNDS * ROUND_S,
        total_s=300.0,
        rounds=tuple(round_record(k) for k in range(ROUNDS)),
    )
    schema = Schema(flags={"max-num-seqs": int, "gpu-memory-utilization": float}, metrics=BALANCED.metrics_needed())
    Store(folder, schema, metadata={}, redactor=Redactor({})).append(result, engine_summary={})


def round_record(number: int, disturbed: tuple[str, ...] = (), attempt: int = 1) -> RoundRecord:
    began_at_s = PACE_S * (number + 1)
    return RoundRecord(attempt, number, began_at_s, ROUND_S, ROUND_S, None, COUNT, COUNT, 0, 900, disturbed=disturbed)


def engine(began_at_s: float, waiting_per_s: float = 0.0, pace: float = 1.0) -> list[EngineSample]:
    return [
        EngineSample(
            at_s=began_at_s + t,
            phase="load",
            running=4.0,
            waiting=3.0 + waiting_per_s * t,
            preemptions=0.0,
            prompt_tokens=0.0,
            generation_tokens=10.0 * t,
            requests_finished=pace * t,
        )
        for t in range(int(ROUND_S))
    ]


def finished(number: int, score: float, kind: TrialKind = TrialKind.SEARCH, **more: Any) -> Finished:
    """A complete trial whose every metric is `score` times the baseline's."""
    known = {name: value for name, value in BASELINE.items() if value}
    metrics = {name: value * score if name.endswith("_ms") else value / score for name, value in known.items()}
    return Finished(
        **{
            "number": number,
            "kind": kind,
            "flags": FLAGS,
            "status": TrialStatus.COMPLETE,
            "score": score,
            "violations": BALANCED.score(metrics, BASELINE).violations,
            "metrics": metrics,
            **more,
        }
    )


def candidate(number: int = 7, kind: TrialKind = TrialKind.SEARCH) -> TrialSpec:
    return TrialSpec(number, kind, FLAGS, BASELINE)


def rival_of(desk: Desk, spec: TrialSpec, *trials: Finished) -> Rival | None:
    return desk.rival(spec, {one.number: one for one in trials})


ZERO = finished(0, 1.0, TrialKind.BASELINE)
RIVAL = Rival(3, measure(rounds(seed=1, count=COUNT), BALANCED), 5, ())


def slow_rounds(many: int, slow: float) -> dict[int, Round]:
    return dict(enumerate(rounds(many, seed=2, slow=slow, count=COUNT)))
