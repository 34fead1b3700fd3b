"""Who a trial is raced against, what its worker and Ray Tune's scheduler say to each other, and what may go wrong."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fake_study
import numpy as np
import pytest
from race_records import BALANCED, records, rounds
from ray.tune.schedulers import TrialScheduler

from sweep.config import load
from sweep.desk import Desk
from sweep.gpu import Gpus
from sweep.objective import Objective
from sweep.prepare import prepare
from sweep.racer import Racer
from sweep.racing import CPU_NOISE, GPU_NOISE, Round, measure, pack, unpack
from sweep.records import EngineConfig, EngineSample, RequestRecord, RoundRecord
from sweep.redact import Redactor
from sweep.runner import RoundProgress, RoundReport, TrialSetup
from sweep.scheduler import RaceScheduler
from sweep.store import Schema, Store
from sweep.trial import Finished, Flag, TrialKind, TrialResult, TrialSpec, TrialStatus
from sweep.wire import (
    ATTEMPT,
    COLUMNS,
    RESULT,
    ROUND,
    SPEC,
    Rival,
    Verdict,
    read_verdict,
    rival_from_config,
    spec_from_config,
    spec_to_config,
    write_verdict,
)

COUNT, ROUNDS = 60, 3
FLAGS: dict[str, Flag] = {"max-num-seqs": 64, "gpu-memory-utilization": 0.8}
PACE_S, ROUND_S = 100.0, 60.0  # a round begins every 100 s and lasts a minute
BASELINE = measure(rounds(seed=100, count=COUNT), BALANCED)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialSetup]:
    """The setup of a study of three rounds."""
    folder = tmp_path_factory.mktemp("scheduler")
    changes = {"rounds": ROUNDS, "num_prompts": ROUNDS * COUNT}
    with pytest.MonkeyPatch.context() as patch, Gpus() as gpus:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        path = fake_study.write(folder / "study.yaml", fake_study.study(folder, load=changes))
        yield prepare(load(path), path, folder / "results" / "night", gpus).setup


@pytest.fixture
def setup(tmp_path: Path, prepared: TrialSetup) -> TrialSetup:
    """The same with a record of its own, in which trial 3 is stored."""
    stored(tmp_path, 3, seed=1)
    return dataclasses.replace(prepared, folder=tmp_path)


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


@pytest.fixture
def desk(setup: TrialSetup) -> Desk:
    found = Desk.of(setup)
    assert found is not None
    return found


ZERO = finished(0, 1.0, TrialKind.BASELINE)


class TestWhoIsTheRival:
    def test_the_best_complete_one(self, desk: Desk) -> None:
        trials = (ZERO, finished(1, 1.2), finished(2, 0.8), finished(3, 0.9))
        rival = rival_of(desk, candidate(), *trials)
        assert rival is not None
        assert (rival.number, rival.compared, rival.launches) == (2, 4, (0,))
        assert set(rival.metrics) == set(BALANCED.metrics_needed())
        assert rival.metrics["p95_ttft_ms"] == pytest.approx(0.8 * (BASELINE["p95_ttft_ms"] or 0.0))

    def test_only_trials_of_lower_number(self, desk: Desk) -> None:
        """What ran later, or was measured before a trial in the middle was lost, must not change a decision."""
        rival = rival_of(desk, candidate(2), ZERO, finished(1, 0.9), finished(3, 0.5), finished(8, 0.4))
        assert rival is not None
        assert (rival.number, rival.compared) == (1, 2)

    @pytest.mark.parametrize(
        "worthless",
        [
            {"status": TrialStatus.CENSORED},
            {"status": TrialStatus.FAILED, "metrics": None, "score": None},
            {"disturbed": True},
            {"kind": TrialKind.CONFIRM, "block": 0},
            {"kind": TrialKind.DRIFT},
        ],
    )
    def test_never_one_that_was_not_measured_well_under_this_load(self, desk: Desk, worthless: dict[str, Any]) -> None:
        rival = rival_of(desk, candidate(), ZERO, dataclasses.replace(finished(1, 0.9), **worthless))
        assert rival is not None
        assert (rival.number, rival.compared) == (0, 1)

    def test_one_that_keeps_the_slos_comes_first(self, setup: TrialSetup) -> None:
        limit = 0.95 * (BASELINE["p95_ttft_ms"] or 0.0)
        objective = Objective.of(
            None, {"p95_ttft_ms": 0.5, "output_throughput_tokens_per_s": -0.5}, {"p95_ttft_ms": limit}
        )
        desk = Desk.of(dataclasses.replace(setup, objective=objective))
        assert desk is not None
        slow = finished(1, 0.94)  # keeps it barely
        fast = finished(2, 1.0)
        assert fast.metrics is not None
        throughput = {"output_throughput_tokens_per_s": 9.0 * (BASELINE["output_throughput_tokens_per_s"] or 0.0)}
        fast = dataclasses.replace(fast, metrics={**fast.metrics, **throughput})
        rival = rival_of(desk, candidate(), ZERO, slow, fast)
        assert rival is not None
        assert rival.number == 1

    def test_a_machine_that_drifted_is_compared_with_itself(self, desk: Desk) -> None:
        trials = (ZERO, finished(1, 0.8), finished(2, 1.4, TrialKind.DRIFT), finished(3, 1.2))
        now = dataclasses.replace(candidate(), baseline_metrics=trials[2].metrics)
        rival = rival_of(desk, now, *trials)
        assert rival is not None
        assert (rival.number, rival.compared, rival.launches) == (3, 2, (0, 2))
        rival = rival_of(desk, now, *trials[:3])
        assert rival is not None
        assert (rival.number, rival.compared) == (2, 1)
        within_noise = finished(2, 1.1, TrialKind.DRIFT)
        rival = rival_of(desk, candidate(), ZERO, finished(1, 0.8), within_noise, finished(3, 1.2))
        assert rival is not None
        assert (rival.number, rival.compared, rival.launches) == (1, 3, (0, 2))

    @pytest.mark.parametrize("kind", [kind for kind in TrialKind if kind is not TrialKind.SEARCH])
    def test_only_trials_of_the_search_have_one(self, desk: Desk, kind: TrialKind) -> None:
        assert rival_of(desk, candidate(kind=kind), ZERO, finished(1, 0.8)) is None

    def test_none_without_a_trial_to_compare_with(self, desk: Desk) -> None:
        assert rival_of(desk, candidate()) is None
        assert rival_of(desk, candidate(), dataclasses.replace(ZERO, disturbed=True)) is None

    def test_a_single_round_or_a_front_is_not_raced_nor_what_is_not_to_be(self, setup: TrialSetup) -> None:
        assert Desk.of(setup, racing=False) is None
        one = dataclasses.replace(setup.plan, rounds=setup.plan.rounds[:1])
        assert Desk.of(dataclasses.replace(setup, plan=one)) is None
        front = Objective.of("balanced", {}, {}, front=("p95_ttft_ms", "p95_tpot_ms"))
        assert Desk.of(dataclasses.replace(setup, objective=front)) is None

    def test_what_is_believed_depends_on_the_devices(self, setup: TrialSetup, desk: Desk) -> None:
        gpus = Desk.of(dataclasses.replace(setup, uses_gpus=True))
        assert gpus is not None
        assert (desk.prior, gpus.prior) == (CPU_NOISE, GPU_NOISE)
        assert desk.planned.rounds == ROUNDS
        assert desk.planned.requests == ROUNDS * COUNT
        assert desk.planned.output_tokens == 4 * ROUNDS * COUNT


RIVAL = Rival(3, measure(rounds(seed=1, count=COUNT), BALANCED), 5, ())


def slow_rounds(many: int, slow: float) -> dict[int, Round]:
    return dict(enumerate(rounds(many, seed=2, slow=slow, count=COUNT)))


class TestTheDecision:
    def test_a_hopeless_one_and_an_equal_one(self, desk: Desk) -> None:
        behind = desk.judge(candidate(), RIVAL, slow_rounds(1, 8.0))
        assert (behind.stop, behind.rule) == (True, "behind")
        assert "trial 3" in behind.reason
        for many in (1, 2):
            assert not desk.judge(candidate(), RIVAL, slow_rounds(many, 1.0)).stop

    def test_a_disturbed_round_leaves_the_others_paired(self, desk: Desk) -> None:
        later = {1: slow_rounds(2, 8.0)[1]}
        decision = desk.judge(candidate(), RIVAL, later)
        assert decision.stop
        assert decision.evidence is not None
        assert decision.evidence.pairs == COUNT
        nothing = desk.judge(candidate(), RIVAL, {})
        assert not nothing.stop
        assert "disturbed" in nothing.reason

    def test_launches_that_differ_widen_the_margin(self, desk: Desk, setup: TrialSetup) -> None:
        for number, slow in ((0, 1.0), (4, 2.5), (5, 0.4)):
            stored(setup.folder, number, seed=10 + number, slow=slow)
        known = desk.judge(candidate(), dataclasses.replace(RIVAL, launches=(0, 4, 5)), slow_rounds(1, 4.0))
        prior = desk.judge(candidate(), RIVAL, slow_rounds(1, 4.0))
        assert known.evidence is not None
        assert prior.evidence is not None
        assert known.evidence.needed_log > 1.2 * prior.evidence.needed_log
        assert prior.stop
        assert not known.stop

    def test_the_record_is_read_once(self, desk: Desk, setup: TrialSetup) -> None:
        before = desk.judge(candidate(), RIVAL, slow_rounds(1, 8.0))
        (setup.folder / "requests" / "0003.parquet").unlink()
        assert desk.judge(candidate(), RIVAL, slow_rounds(1, 8.0)) == before


class TestWhatTravels:
    @pytest.mark.parametrize("gaps", [True, False])
    def test_rounds(self, gaps: bool) -> None:
        there = slow_rounds(2, 1.0)
        back = unpack(pack(there, gaps=gaps))
        assert list(back) == [0, 1]
        for number, part in there.items():
            assert back[number].keys == part.keys
            for name in ("ttft_ms", "e2el_ms", "input_tokens", "output_tokens"):
                assert np.array_equal(getattr(back[number].columns, name), getattr(part.columns, name))
            assert np.array_equal(back[number].start_s, part.start_s)
            found, wanted = back[number].columns.itl_ms, part.columns.itl_ms
            assert wanted is not None
            assert (found is None) if not gaps else (found is not None and np.array_equal(found, wanted))
        if gaps:
            assert measure(list(back.values()), BALANCED) == measure(list(there.values()), BALANCED)

    def test_unknown_numbers(self) -> None:
        bare = RequestRecord(0, 4, "p", None, None, None, None, None, 5.0, (), None, None)
        back = unpack(pack({2: Round.of([bare])}, gaps=True))[2]
        assert np.isnan([back.start_s[0], back.columns.e2el_ms[0], back.columns.output_tokens[0]]).all()
        assert len(back.where(np.array([True]))) == 1

    def test_the_rival(self) -> None:
        config = json.loads(json.dumps(spec_to_config(candidate(), 2, RIVAL)))
        assert spec_from_config(config) == (candidate(), 2)
        assert rival_from_config(config) == RIVAL
        assert rival_from_config(spec_to_config(candidate(), 1)) is None

    def test_verdicts(self, tmp_path: Path) -> None:
        assert read_verdict(tmp_path, 1, 0) is None
        first = Verdict(1, 0, False, None, "equal")
        again = Verdict(2, 0, True, "behind", "far behind")
        write_verdict(tmp_path, first)
        write_verdict(tmp_path, again)
        with (tmp_path / "race.jsonl").open("a") as file:
            file.write('{"attempt": 2, "rou')
        assert (read_verdict(tmp_path, 1, 0), read_verdict(tmp_path, 2, 0)) == (first, again)
        assert read_verdict(tmp_path, 2, 1) is None


class RayTrial:
    """What the scheduler reads of a trial of Ray's."""

    def __init__(self, rival: Rival | None = RIVAL) -> None:
        self.config = {SPEC: spec_to_config(candidate(), 1, rival)}


def log_folder(setup: TrialSetup) -> Path:
    folder = setup.log_folder(7)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def after(report: Mapping[str, Any], scheduler: RaceScheduler, **ray: Any) -> str:
    """What Ray does with a result."""
    trial: Any = RayTrial()
    return scheduler.on_trial_result(None, trial, {**report, "training_iteration": 1, **ray})


def result_of(slow: float, number: int = 0, attempt: int = 1) -> dict[str, Any]:
    return {ATTEMPT: attempt, ROUND: number, COLUMNS: pack(slow_rounds(number + 1, slow), gaps=True)}


class TestTheScheduler:
    @pytest.fixture
    def scheduler(self, desk: Desk, setup: TrialSetup) -> RaceScheduler:
        log_folder(setup)
        return RaceScheduler(desk, setup.log_folder)

    def test_writes_its_verdict_and_never_stops_the_function(self, scheduler: RaceScheduler, setup: TrialSetup) -> None:
        assert after(result_of(1.0), scheduler) == TrialScheduler.CONTINUE
        assert after(result_of(8.0, 1), scheduler) == TrialScheduler.CONTINUE
        equal, behind = (read_verdict(setup.log_folder(7), 1, number) for number in (0, 1))
        assert equal is not None
        assert behind is not None
        assert (equal.stop, equal.rule) == (False, None)
        assert (behind.stop, behind.rule) == (True, "behind")

    def test_hears_nothing_in_final_and_repeated_results(self, scheduler: RaceScheduler, setup: TrialSetup) -> None:
        after({RESULT: "{}"}, scheduler)
        after(result_of(8.0), scheduler, done=True)
        assert read_verdict(setup.log_folder(7), 1, 0) is None

    def test_a_fault_of_its_own_stops_nothing(self, scheduler: RaceScheduler, setup: TrialSetup) -> None:
        assert after({**result_of(8.0), COLUMNS: "no rounds"}, scheduler) == TrialScheduler.CONTINUE
        (setup.folder / "requests" / "0003.parquet").write_bytes(b"damaged")
        assert after(result_of(8.0, 1), scheduler) == TrialScheduler.CONTINUE
        for number in (0, 1):
            verdict = read_verdict(setup.log_folder(7), 1, number)
            assert verdict is not None
            assert not verdict.stop
            assert verdict.reason.startswith("not judged: ")
        (setup.log_folder(7) / "race.jsonl").unlink()
        setup.log_folder(7).rmdir()
        assert after(result_of(8.0), scheduler) == TrialScheduler.CONTINUE

    def test_ray_may_copy_and_pickle_it(self, scheduler: RaceScheduler) -> None:
        assert copy.deepcopy(scheduler) is scheduler
        assert isinstance(pickle.loads(pickle.dumps(scheduler)), RaceScheduler)
        assert not scheduler.supports_buffered_results


def report_of(slow: float, many: int = 1, *, disturbed: tuple[str, ...] = (), attempt: int = 1) -> RoundReport:
    every = tuple(tuple(records(number=k, seed=2, slow=slow, count=COUNT)) for k in range(many))
    seen = [round_record(k, disturbed if k == 0 else (), attempt) for k in range(many)]
    return RoundReport(7, many - 1, ROUNDS, every, tuple(seen), (), 400.0)


class TestTheWorker:
    @pytest.fixture
    def racer(self, desk: Desk, setup: TrialSetup) -> Racer:
        """A racer whose reports a scheduler sees at once."""
        log_folder(setup)
        scheduler = RaceScheduler(desk, setup.log_folder)

        def to_ray(report: dict[str, Any]) -> None:
            after(report, scheduler)

        return Racer(candidate(), RIVAL, setup, to_ray)

    def test_stops_itself_for_the_reason_it_hears(self, racer: Racer) -> None:
        assert racer.after_round(report_of(1.0)) is None
        assert racer.after_round(report_of(1.0, 2)) is None
        assert racer.after_round(report_of(1.0, attempt=2)) is None
        reason = racer.after_round(report_of(8.0, attempt=3))
        assert reason is not None
        assert "times the score of trial 3" in reason

    def test_leaves_out_what_was_disturbed(self, racer: Racer) -> None:
        assert racer.after_round(report_of(8.0, disturbed=("late",))) is None
        assert racer.after_round(report_of(8.0, 2, disturbed=("late",))) is not None

    def test_goes_on_without_an_answer(self, setup: TrialSetup) -> None:
        heard: list[dict[str, Any]] = []
        racer = Racer(candidate(), RIVAL, setup, heard.append)
        log_folder(setup)
        write_verdict(setup.log_folder(7), Verdict(1, 0, True, "behind", "of an attempt that was killed"))
        assert racer.after_round(report_of(8.0, attempt=2)) is None
        assert [sorted(one) for one in heard] == [sorted((ATTEMPT, ROUND, COLUMNS))]

    def test_sends_gaps_between_tokens_only_where_they_count(self, setup: TrialSetup) -> None:
        sizes = []
        for weights in ({"p95_ttft_ms": 1.0}, {"p95_itl_ms": 1.0}):
            heard: list[dict[str, Any]] = []
            objective = Objective.of(None, weights, {})
            Racer(candidate(), RIVAL, dataclasses.replace(setup, objective=objective), heard.append).after_round(
                report_of(1.0)
            )
            sizes.append(len(heard[0][COLUMNS]))
        assert sizes[0] < 0.6 * sizes[1]


def progress(waiting_per_s: float, pace: float, number: int = 1) -> RoundProgress:
    began_at_s = 555.0  # the candidate's start-up took longer
    seen = [EngineSample(at_s=1.0, phase="start", waiting=900.0), *reversed(engine(began_at_s, waiting_per_s, pace))]
    return RoundProgress(7, number, ROUNDS, began_at_s, 10, COUNT, (), tuple(seen))


class TestWithinARound:
    def racer(self, setup: TrialSetup, **more: Any) -> Racer:
        heard: list[dict[str, Any]] = []
        return Racer(candidate(), RIVAL, setup, heard.append, **{"look_every_s": 0.0, **more})

    def test_a_queue_without_end_stops_it(self, setup: TrialSetup) -> None:
        racer = self.racer(setup)
        assert racer.during_round(progress(0.0, 1.0)) is None
        reason = racer.during_round(progress(5.0, 0.2))
        assert reason is not None
        assert "the queue grows without end" in reason

    def test_it_looks_every_few_seconds(self, setup: TrialSetup) -> None:
        racer = self.racer(setup, look_every_s=60.0)
        assert racer.during_round(progress(0.0, 1.0)) is None
        assert racer.during_round(progress(5.0, 0.2)) is None

    def test_a_record_that_cannot_be_read_stops_nothing(self, setup: TrialSetup) -> None:
        (setup.folder / "engine" / "0003.parquet").write_bytes(b"damaged")
        assert self.racer(setup).during_round(progress(5.0, 0.2)) is None

    def test_a_rival_whose_engine_told_nothing_stops_nothing(self, setup: TrialSetup, desk: Desk) -> None:
        incumbent = desk.incumbent(candidate(), RIVAL)
        assert [trace is not None and len(trace.at_s) for trace in incumbent.traces] == [int(ROUND_S)] * ROUNDS
        assert self.racer(setup).during_round(progress(5.0, 0.2, number=ROUNDS)) is None
