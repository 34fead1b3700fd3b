"""Which setting the twin wants measured, on studies whose truth is known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from predicted import SCHEMA, TRUTH, changed, flags, load, trial, truth, write

from sweep.config.models import SearchSpaceConfig
from sweep.objective import Objective
from sweep.redact import Redactor
from sweep.search_space import SearchSpace
from sweep.store import Store, read_trials
from sweep.trial import Failure, Flag, Flags, TrialResult, TrialStatus
from sweep.twin import Engine, simulate
from sweep.twinning import Adviser, Ledger
from sweep.twinning.landscape import Landscape

pytestmark = pytest.mark.night  # numba compiles for half a minute

NAMES = ("p95_ttft_ms", "p95_tpot_ms")
OBJECTIVE = Objective.of(None, {"p95_ttft_ms": 0.5, "p95_tpot_ms": 0.5}, {})


def space(**parameters: list[Flag]) -> SearchSpace:
    known: dict[str, list[Flag]] = {
        "max-num-seqs": [4, 16, 32, 64],
        "max-num-batched-tokens": [256, 1024, 2048],
        "gpu-memory-utilization": [0.8, 0.9],
        **{name.replace("_", "-"): values for name, values in parameters.items()},
    }
    listed = {name: {"type": "choice", "values": values} for name, values in known.items()}
    return SearchSpace.from_config(SearchSpaceConfig.model_validate({"parameters": listed}), {})


def whole(point: Flags) -> dict[str, Flag]:
    return {"kv-cache-dtype": None, **point}


def add(folder: Path, result: TrialResult) -> None:
    Store(folder, SCHEMA, metadata={}, redactor=Redactor({}), reserve_bytes=0).append(result, engine_summary={})


def value(of: Flags, base: Flags, objective: Objective = OBJECTIVE) -> float:
    found = objective.score(truth(of), truth(base)).value
    assert found is not None
    return found


def test_settings_that_cannot_differ_are_simulated_once() -> None:
    ground = Landscape([load(0), load(1)], NAMES, {}, None)
    seen: dict[tuple[int, ...], Mapping[str, float | None]] = {}
    engines = [Engine(max_num_seqs=seats, kv_blocks=blocks) for seats in (4, 8, 45, 90) for blocks in (150, 900, 4000)]
    for one in engines:
        played = ground.play(one, TRUTH)
        assert played is not None
        runs = [simulate(sent, one, TRUTH) for sent in (load(0), load(1))]
        assert played.schedule == tuple(run.schedule for run in runs), "as if it had been simulated itself"
        ttft = np.concatenate([run.ttft_s for run in runs]) * 1000
        assert played.figures["p95_ttft_ms"] == pytest.approx(float(np.percentile(ttft, 95)))
        seen.setdefault(played.schedule, played.figures)
    plateau = ground.play(Engine(max_num_seqs=4, kv_blocks=900), TRUTH)
    before = ground.work
    assert ground.play(Engine(max_num_seqs=4, kv_blocks=8000), TRUTH) is plateau
    assert ground.work == before
    assert 1 < len(seen) < len(engines)
    assert ground.play(Engine(kv_blocks=2), TRUTH) is None, "no room for one request"


def test_the_twin_finds_the_better_setting_and_then_ends(tmp_path: Path) -> None:
    base, where = flags(4, 1024, 0.9), space()
    study = write(tmp_path / "s", [trial(0, base, noise=0.02)])
    said: list[str] = []
    adviser = Adviser(Ledger.stored(study), where, OBJECTIVE, 0, said.append)
    kinds, scores = [], [1.0]
    for number in range(1, 9):
        advice = adviser.advise(number)
        kinds.append(advice.kind)
        if not advice.ranked:
            break
        of = whole(advice.ranked[0])
        add(study, trial(number, of, noise=0.02))
        scores.append(value(of, base))
    points = [whole(point) for point in where.points()]
    assert kinds[-1] == "done"
    assert set(kinds[:-1]) == {"improve"}
    assert len(kinds) <= 7
    assert min(scores) < 1.02 * min(value(of, base) for of in points)
    assert len(said) == len(kinds)
    # The same again from the same record, whatever was stored later.
    again = Adviser(Ledger.stored(study), where, OBJECTIVE, 0).advise(2)
    assert again.kind == kinds[1]
    assert again.ranked[0] == {k: v for k, v in trial_flags(study, 2).items() if k in where.names}


def trial_flags(study: Path, number: int) -> Flags:
    return next(one.flags for one in read_trials(study) if one.number == number)


def test_what_was_measured_or_runs_is_not_proposed_again_under_another_name(tmp_path: Path) -> None:
    where = space(max_num_seqs=[8, 16, 300, 600], max_num_batched_tokens=[2048], gpu_memory_utilization=[0.9])
    study = write(tmp_path / "s", [trial(0, flags(300, 2048, 0.9)), trial(1, flags(8, 2048, 0.9))])
    found = Adviser(Ledger.stored(study), where, OBJECTIVE, 0).advise(2, [flags(16, 2048, 0.9)])
    assert all(point["max-num-seqs"] not in (300, 600, 8) for point in found.ranked), "600 seats do what 300 do"
    assert all(point["max-num-seqs"] != 16 for point in found.ranked)


def test_where_every_setting_does_the_same_nothing_is_launched(tmp_path: Path) -> None:
    where = space(max_num_seqs=[300, 600], max_num_batched_tokens=[2048], gpu_memory_utilization=[0.9])
    study = write(tmp_path / "s", [trial(0, flags(300, 2048, 0.9))])
    assert Adviser(Ledger.stored(study), where, OBJECTIVE, 0).advise(1).kind == "done"


def test_an_slo_that_is_broken_is_not_promising(tmp_path: Path) -> None:
    base = flags(16, 1024, 0.9)
    few = truth(flags(4, 1024, 0.9))["p95_ttft_ms"]
    assert few is not None
    objective = Objective.of(None, {"p95_tpot_ms": 1.0}, {"p95_ttft_ms": few * 0.5})
    study = write(tmp_path / "s", [trial(0, base), trial(1, flags(32, 256, 0.9))])
    found = Adviser(Ledger.stored(study), space(), objective, 0).advise(2)
    assert not found.ranked or found.ranked[0]["max-num-seqs"] != 4


@pytest.mark.parametrize(
    ("results", "changes", "words"),
    [
        ([changed(trial(0, flags(8)), disturbances=("GPU 0 throttled",))], {}, "complete and undisturbed"),
        ([], {}, "no baseline"),
        ([trial(0, flags(8))], {"kv_cache_dtype": [None, "fp8"]}, "what kv-cache-dtype changes cannot be computed"),
    ],
)
def test_it_says_why_it_cannot_tell(
    tmp_path: Path, results: list[TrialResult], changes: dict[str, Any], words: str
) -> None:
    study = write(tmp_path / "s", results)
    found = Adviser(Ledger.stored(study), space(**changes), OBJECTIVE, 0).advise(1)
    assert found.kind == "unfit"
    assert words in found.reason


def test_a_front_is_not_for_the_twin(tmp_path: Path) -> None:
    objective = Objective.of(None, {"p95_ttft_ms": 1.0}, {}, front=("p95_ttft_ms", "p95_tpot_ms"))
    study = write(tmp_path / "s", [trial(0, flags(8))])
    assert Adviser(Ledger.stored(study), space(), objective, 0).advise(1).kind == "unfit"


def test_a_server_that_does_something_else_is_not_followed(tmp_path: Path) -> None:
    """Seven trials whose scores run against the twin's."""
    points = [flags(seats, tokens, 0.9) for seats in (4, 8, 64) for tokens in (256, 2048)]
    base = flags(16, 1024, 0.9)
    results = [trial(0, base)]
    for number, of in enumerate(points, 1):
        one = trial(number, of)
        assert one.metrics is not None
        upside_down = {name: (truth(base)[name] or 1.0) ** 2 / (one.metrics[name] or 1.0) for name in NAMES}
        results.append(changed(one, metrics={**one.metrics, **upside_down}))
    found = Adviser(Ledger.stored(write(tmp_path / "s", results)), space(), OBJECTIVE, 0).advise(7)
    assert found.kind == "unfit"
    assert "rank correlation" in found.reason


@pytest.mark.parametrize(("factor", "kind"), [(1.0, "done"), (1.4, "unfit")])
def test_it_ends_a_search_only_where_measured_scores_are_as_it_says(tmp_path: Path, factor: float, kind: str) -> None:
    """Everything is measured, so that nothing is promising; the scores are those of the twin, or all others' worse."""
    points = [flags(seats, tokens, 0.9) for seats in (4, 16) for tokens in (256, 1024)]
    results = [trial(0, points[0])]
    for number, of in enumerate(points[1:], 1):
        one = trial(number, of)
        assert one.metrics is not None
        results.append(
            changed(one, metrics={**one.metrics, **{name: (one.metrics[name] or 1.0) * factor for name in NAMES}})
        )
    where = space(max_num_seqs=[4, 16], max_num_batched_tokens=[256, 1024], gpu_memory_utilization=[0.9])
    found = Adviser(Ledger.stored(write(tmp_path / "s", results)), where, OBJECTIVE, 0).advise(4)
    assert found.kind == kind
    assert ("off by" in found.reason) is (kind == "unfit")


def test_failed_trials_are_known_and_not_learnt_from(tmp_path: Path) -> None:
    failure = Failure("out_of_memory", "start", "x", "y", False, True, "tell_search")
    dead = changed(
        trial(1, flags(64, 256, 0.8)), status=TrialStatus.INFEASIBLE, metrics=None, score=None, failure=failure,
        requests=(), rounds=(),
    )  # fmt: skip
    study = write(tmp_path / "s", [trial(0, flags(16, 1024, 0.9)), dead])
    found = Adviser(Ledger.stored(study), space(), OBJECTIVE, 0).advise(2)
    assert found.kind in ("improve", "separate")
    dead_flags = {name: dead.spec.flags[name] for name in space().names}
    assert dead_flags not in found.ranked


def test_asked_again_for_a_trial_it_goes_down_its_list_and_says_nothing_more(tmp_path: Path) -> None:
    said: list[str] = []
    adviser = Adviser(
        Ledger.stored(write(tmp_path / "s", [trial(0, flags(16, 1024, 0.9))])), space(), OBJECTIVE, 0, said.append
    )
    first = adviser.advise(1)
    assert adviser.advise(1, first.ranked[:2]).ranked == first.ranked[2:]
    assert len(said) == 1


def test_the_study_stays_as_it_is(tmp_path: Path) -> None:
    study = write(tmp_path / "s", [trial(0, flags(16, 1024, 0.9))])
    before = {path: path.read_bytes() for path in sorted(study.rglob("*")) if path.is_file()}
    Adviser(Ledger.stored(study), space(), OBJECTIVE, 0).advise(1)
    assert {path: path.read_bytes() for path in sorted(study.rglob("*")) if path.is_file()} == before
