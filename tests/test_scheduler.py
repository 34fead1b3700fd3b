"""What the worker of a raced trial and Ray Tune's scheduler say to each other, and what may go wrong."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from race_records import BALANCED, records
from raced import (
    COUNT,
    FLAGS,
    RIVAL,
    ROUND_S,
    ROUNDS,
    ZERO,
    candidate,
    engine,
    prepared_setup,
    round_record,
    slow_rounds,
    stored,
)
from ray.tune.schedulers import TrialScheduler

from sweep.desk import Desk
from sweep.objective import Objective
from sweep.plan import StudyPlan
from sweep.racer import Racer
from sweep.racing import Round, measure, pack, unpack
from sweep.records import EngineSample, RequestRecord
from sweep.runner import RoundProgress, RoundReport, TrialSetup
from sweep.scheduler import RaceScheduler
from sweep.searcher.tune_searcher import TuneSearcher
from sweep.trial import Finished, Flag, TrialSpec
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


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrialSetup]:
    with prepared_setup(tmp_path_factory.mktemp("raced")) as setup:
        yield setup


@pytest.fixture
def setup(tmp_path: Path, prepared: TrialSetup) -> TrialSetup:
    """The setup of a study in whose record trial 3 is stored."""
    stored(tmp_path, 3, seed=1)
    return dataclasses.replace(prepared, folder=tmp_path)


@pytest.fixture
def desk(setup: TrialSetup) -> Desk:
    found = Desk.of(setup)
    assert found is not None
    return found


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


class Always:
    """An optimiser with one idea."""

    def propose(self, number: int, pending: Sequence[Mapping[str, Flag]]) -> Mapping[str, Flag]:
        del number, pending
        return FLAGS

    def ended(self, number: int) -> str:
        raise AssertionError(f"there is always something for trial {number}")

    def hear(self, finished: Finished) -> None:
        """Nothing is learnt."""


def test_a_search_hands_out_the_rival_and_waits_for_the_last_result(desk: Desk) -> None:
    again: list[int] = []
    plan = StudyPlan(Always(), 5, FLAGS)

    def never(spec: TrialSpec) -> Finished:
        raise AssertionError(spec)

    searcher = TuneSearcher(
        plan, on_again=lambda spec: again.append(spec.number), give_up=never, cut=never, rival=desk.rival
    )
    first = searcher.suggest("a")
    assert isinstance(first, dict)
    assert rival_from_config(first[SPEC]) is None  # the baseline
    plan.hear(ZERO)
    second = searcher.suggest("b")
    assert isinstance(second, dict)
    rival = rival_from_config(second[SPEC])
    assert rival is not None
    assert (rival.number, rival.compared, rival.launches) == (0, 1, (0,))
    searcher.on_trial_result("b", result_of(1.0))
    assert list(plan.live) == [1]
    # What Ray hands over when a worker went away without a word: the last that was reported.
    searcher.on_trial_complete("b", {**result_of(1.0), "done": True})
    assert (again, plan.times_lost(1)) == ([1], 1)
