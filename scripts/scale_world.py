"""Studies in virtual time: what the driver does is done and timed, what a trial takes is only counted.

A driver is one thread. Each suggestion and each result costs what it costs here, and the virtual clock goes on by it;
Ray's own work for a trial is measured in a real study of trials that do nothing (see `ray_cost`) and added.
"""

from __future__ import annotations

import heapq
import math
import os
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweep.config.models import SearchSpaceConfig
from sweep.plan import StudyPlan
from sweep.search_space import SearchSpace
from sweep.searcher.proposer import Proposer
from sweep.searcher.tune_searcher import TuneSearcher
from sweep.trial import Finished, Flags, TrialSpec, TrialStatus
from sweep.wire import RESULT, SPEC, finished_to_result, spec_from_config

SPACE = SearchSpace.from_config(
    SearchSpaceConfig.model_validate(
        {
            "parameters": {
                "max-num-seqs": {"type": "int", "low": 8, "high": 512, "step": 8},
                "max-num-batched-tokens": {"type": "int", "low": 512, "high": 16384, "step": 256},
                "gpu-memory-utilization": {"type": "float", "low": 0.5, "high": 0.95, "step": 0.01},
                "block-size": {"type": "choice", "values": [16, 32, 64]},
            }
        }
    ),
    {},
)
BASELINE: dict[str, Any] = {
    "max-num-seqs": 256,
    "max-num-batched-tokens": 8192,
    "gpu-memory-utilization": 0.9,
    "block-size": 16,
}
# As many as a study of three percentiles stores.
_STATS, _STEMS = ("p50", "p95", "p99", "mean"), ("ttft", "tpot", "itl", "e2el")
_METRICS = tuple(f"{stat}_{stem}_ms" for stem in _STEMS for stat in _STATS)


def truth(flags: Flags) -> float:
    """A score with its optimum at 64 sequences, 2048 tokens and 0.8; the baseline's is 1."""

    def raw(one: Flags) -> float:
        seqs = math.log2(float(one["max-num-seqs"] or 0) / 64) / 3
        tokens = math.log2(float(one["max-num-batched-tokens"] or 0) / 2048) / 3
        memory = (float(one["gpu-memory-utilization"] or 0) - 0.8) / 0.3
        return 1.0 + 0.5 * seqs**2 + 0.4 * tokens**2 + 0.3 * memory**2

    return raw(flags) / raw(BASELINE)


BEST = truth({**BASELINE, "max-num-seqs": 64, "max-num-batched-tokens": 2048, "gpu-memory-utilization": 0.8})


@dataclass(slots=True)
class Night:
    """A study that ran in virtual time. `driver_s`: how long its driver was at work; `best`: the true score found."""

    virtual_s: float
    driver_s: float
    trials: int
    best: float
    suggest_ms: list[float] = field(default_factory=list)

    @property
    def per_minute(self) -> float:
        return self.trials / self.virtual_s * 60.0


def outcome(spec: TrialSpec, rng: random.Random, noise: float = 0.03) -> Finished:
    """How a trial of these flags ends."""
    score = 1.0 if spec.number == 0 else truth(spec.flags) * math.exp(rng.gauss(0.0, noise))
    metrics = {name: 100.0 * score * rng.uniform(0.9, 1.1) for name in _METRICS}
    return Finished(spec.number, spec.kind, spec.flags, TrialStatus.COMPLETE, score, metrics=metrics, total_s=60.0)


def make_plan(trials: int, concurrent: int, seed: int) -> StudyPlan:
    """The plan and the optimiser of a real study."""
    proposer = Proposer(SPACE, seed=seed, sampler="tpe", slo_names=())
    return StudyPlan(proposer, trials, BASELINE, concurrent=concurrent)


def night(trials: int, concurrent: int, trial_s: float, *, seed: int, ray_s: float = 0.0) -> Night:
    """A whole study. `ray_s`: what Ray's own work for a trial costs the driver."""
    rng = random.Random(seed)
    plan = make_plan(trials, concurrent, seed)

    def never(spec: TrialSpec) -> Finished:
        raise AssertionError(f"no worker dies here: {spec}")

    searcher = TuneSearcher(plan, give_up=never, cut=never)
    ending: list[tuple[float, str, TrialSpec]] = []
    clock_s = driver_s = 0.0
    suggest_ms: list[float] = []
    found = [1.0]
    over = False
    while not over or ending:
        while not over:
            began_s = time.perf_counter()
            config = searcher.suggest(name := f"t{len(suggest_ms)}-{clock_s}")
            took_s = time.perf_counter() - began_s
            if not isinstance(config, dict):
                over = config is not None
                break
            suggest_ms.append(took_s * 1000.0)
            clock_s, driver_s = clock_s + took_s + ray_s, driver_s + took_s + ray_s
            spec, _ = spec_from_config(config[SPEC])
            heapq.heappush(ending, (clock_s + trial_s, name, spec))
        if not ending:
            break
        end_s, name, spec = heapq.heappop(ending)
        clock_s = max(clock_s, end_s)
        finished = outcome(spec, rng)
        found.append(truth(spec.flags))
        result = {RESULT: finished_to_result(finished)}
        began_s = time.perf_counter()
        searcher.on_trial_complete(name, result)
        took_s = time.perf_counter() - began_s
        clock_s, driver_s = clock_s + took_s, driver_s + took_s
    return Night(clock_s, driver_s, len(suggest_ms), min(found), suggest_ms)


def long_night(trials: int, asks: int) -> tuple[float, float]:
    """The median suggestion in ms after so many finished trials, and this process's memory in GiB by then."""
    rng = random.Random(7)
    plan = make_plan(trials + asks + 1, 64, 7)
    for number in range(trials):
        spec = TrialSpec(number, outcome_kind(number), BASELINE if number == 0 else SPACE.draw(rng))
        plan.hear(outcome(spec, rng), earlier=True)
    took_ms = []
    for _ in range(asks):
        began_s = time.perf_counter()
        assert plan.next() is not None
        took_ms.append((time.perf_counter() - began_s) * 1000.0)
    return statistics.median(took_ms), rss_gib()


def outcome_kind(number: int) -> Any:
    """The baseline first, then the search."""
    from sweep.trial import TrialKind

    return TrialKind.SEARCH if number else TrialKind.BASELINE


def rss_gib() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**30


def ray_cost(trials: int, concurrent: int) -> tuple[float, float]:
    """Seconds of the driver's CPU and GiB of its memory for one trial of Ray Tune, by trials that do nothing."""
    import ray
    from ray import tune

    from sweep.cluster import ray_cluster
    from sweep.scheduler import RaceScheduler

    plan = make_plan(trials, concurrent, 3)
    plan.proposer = _Random()
    marks: list[tuple[int, float, float]] = []

    def ended(finished: Finished) -> None:
        marks.append((finished.number, time.process_time(), rss_gib()))

    def never(spec: TrialSpec) -> Finished:
        raise AssertionError(f"a worker died: {spec}")

    def nothing(config: dict[str, Any]) -> None:
        spec, _ = spec_from_config(config[SPEC])
        metrics = dict.fromkeys(_METRICS, 1.0)
        one = Finished(spec.number, spec.kind, spec.flags, TrialStatus.COMPLETE, 1.0, metrics=metrics, total_s=0.0)
        tune.report({RESULT: finished_to_result(one)})

    with (
        tempfile.TemporaryDirectory() as folder,
        ray_cluster(None, messages=Path(folder) / "ray.log", when_stuck=lambda lost: print(lost), gpus=0),
    ):
        del ray
        searcher = TuneSearcher(plan, on_end=ended, give_up=never, cut=never)
        tune.Tuner(
            tune.with_resources(nothing, {"CPU": 0.5}),
            tune_config=tune.TuneConfig(
                search_alg=searcher,
                scheduler=RaceScheduler(None, lambda number: Path(folder) / str(number)),
                num_samples=-1,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(name="scale", storage_path=folder, verbose=0),
        ).fit()
    half = marks[len(marks) // 2 :]  # the first ones start Ray's workers
    count = len(half) - 1
    return (half[-1][1] - half[0][1]) / count, max(0.0, (half[-1][2] - half[0][2]) / count)


class _Random:
    """Proposes at random: what TPE costs is measured by itself."""

    def __init__(self) -> None:
        self._rng = random.Random(5)

    def propose(self, number: int, pending: object) -> Flags | None:
        del number, pending
        return SPACE.draw(self._rng)

    def ended(self, number: int) -> str:
        return f"nothing is left for trial {number}"

    def hear(self, finished: Finished) -> None:
        """Nothing to learn."""
