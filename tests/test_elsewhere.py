"""Trials that fail of their node, or have none left: taken back, run elsewhere, and the search hears nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial

from sweep.plan import StudyPlan
from sweep.scheduler import RaceScheduler
from sweep.searcher.tune_searcher import TuneSearcher
from sweep.trial import Finished, Flags, TrialKind, TrialSpec, TrialStatus
from sweep.wire import PLACES, RESULT, SPEC, finished_to_result


class Points:
    """Proposes the numbers of trials."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def propose(self, number: int, pending: Sequence[Flags]) -> Flags | None:
        del pending
        return {"max-num-seqs": number}

    def ended(self, number: int) -> str:
        return f"nothing is left for trial {number}"

    def hear(self, finished: Finished) -> None:
        self.heard.append(finished.number)


@dataclasses.dataclass
class Waiting:
    """A trial of Ray's, as a scheduler sees it."""

    config: dict[str, Any]
    trial_id: str = "t"
    status: str = Trial.PENDING


@dataclasses.dataclass
class Controller:
    """What Ray hands to a scheduler: its live trials, and a way to stop one."""

    trials: list[Waiting]
    search: TuneSearcher | None = None

    def get_live_trials(self) -> list[Waiting]:
        return self.trials

    def stop_trial(self, one: Waiting) -> None:
        one.status = Trial.TERMINATED
        if self.search is not None:
            self.search.on_trial_complete(one.trial_id)


def logs(number: int) -> Path:
    return Path(str(number))


def searcher(plan: StudyPlan, said: list[str], stranded: set[int]) -> TuneSearcher:
    def give_up(spec: TrialSpec) -> Finished:
        said.append(f"gave up {spec.number}")
        return Finished(spec.number, spec.kind, spec.flags, TrialStatus.FAILED, policy="retry")

    return TuneSearcher(
        plan,
        give_up=give_up,
        cut=give_up,
        on_again=lambda spec: said.append(f"again {spec.number}"),
        on_elsewhere=lambda one: said.append(f"{one.node} failed {one.number}"),
        places=lambda spec: {"id": {"number": spec.number}},
        stranded=lambda spec: spec.number in stranded,
    )


def begun(said: list[str], stranded: set[int]) -> tuple[TuneSearcher, Points]:
    """A search whose baseline has ended and whose first trial runs as `one`."""
    points = Points()
    search = searcher(StudyPlan(points, 9, {"max-num-seqs": 0}, concurrent=2), said, stranded)
    assert isinstance(search.suggest("zero"), dict)
    base = Finished(0, TrialKind.BASELINE, {}, TrialStatus.COMPLETE, 1.0, metrics={"p95_ttft_ms": 1.0})
    search.on_trial_complete("zero", {RESULT: finished_to_result(base)})
    config = search.suggest("one")
    assert isinstance(config, dict)
    assert config[PLACES] == {"id": {"number": 1}}
    return search, points


def failed_of_node(number: int) -> Mapping[str, Any]:
    one = Finished(
        number,
        TrialKind.SEARCH,
        {"max-num-seqs": 1},
        TrialStatus.FAILED,
        policy="host",
        node="n1",
        again_elsewhere=True,
    )
    return {RESULT: finished_to_result(one)}


def test_a_trial_that_failed_of_its_node_runs_elsewhere_and_is_never_told() -> None:
    said: list[str] = []
    search, points = begun(said, set())
    for attempt in range(2):
        search.on_trial_complete("one", dict(failed_of_node(1)))
        assert said[-2:] == ["n1 failed 1", "again 1"]
        config = search.suggest("one")
        assert isinstance(config, dict)
        assert config[SPEC]["number"] == 1
        assert config[SPEC]["first_attempt"] == attempt + 2
    search.on_trial_complete("one", dict(failed_of_node(1)))
    assert said[-1] == "gave up 1", "as often as a worker may die"
    assert points.heard == [0, 1]
    assert search.plan.stop_reason is None


def test_a_trial_without_a_node_is_taken_back_and_counts_as_no_attempt() -> None:
    said: list[str] = []
    stranded = {1}
    search, _ = begun(said, stranded)
    scheduler = RaceScheduler(None, logs, lambda config: config[SPEC]["number"] in stranded)
    waiting = [Waiting({SPEC: {"number": 2}}, "two"), Waiting({SPEC: {"number": 1}}, "one")]
    controller = Controller(waiting, search)
    chosen: object = scheduler.choose_trial_to_run(controller)
    assert chosen is waiting[0]
    assert waiting[1].status == Trial.TERMINATED
    assert said == []
    assert search.plan.times_lost(1) == 0
    stranded.clear()
    config = search.suggest("one more")
    assert isinstance(config, dict)
    assert (config[SPEC]["number"], config[SPEC]["first_attempt"]) == (1, 1)


def test_the_lowest_number_starts_first_and_running_ones_are_let_be() -> None:
    scheduler = RaceScheduler(None, logs, lambda _config: True)
    running = Waiting({SPEC: {"number": 1}}, status=Trial.RUNNING)
    assert scheduler.choose_trial_to_run(Controller([running])) is None
    assert running.status == Trial.RUNNING
    free = RaceScheduler(None, logs)
    waiting = [Waiting({SPEC: {"number": number}}) for number in (5, 3, 4)]
    chosen: object = free.choose_trial_to_run(Controller([running, *waiting]))
    assert chosen is waiting[1]
