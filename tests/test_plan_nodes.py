"""The plan of a night on several nodes: the baseline on each, and what is compared on one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sweep.neighbours import describe
from sweep.plan import StudyPlan
from sweep.plan_nodes import home, measured
from sweep.reference import node_baseline, reference_metrics
from sweep.trial import Finished, Flags, TrialKind, TrialSpec, TrialStatus

BASELINE = {"max-num-seqs": 8}


class Points:
    """Proposes 1, 2, 3, ..."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def propose(self, number: int, pending: Sequence[Flags]) -> Flags | None:
        del pending
        return {"max-num-seqs": 100 + number}

    def ended(self, number: int) -> str:
        return f"nothing is left for trial {number}"

    def hear(self, finished: Finished) -> None:
        self.heard.append(finished.number)


def plan_of(trials: int, concurrent: int = 4, **nodes: int) -> StudyPlan:
    return StudyPlan(Points(), trials, BASELINE, concurrent=concurrent, nodes=nodes)


def done(spec: TrialSpec, node: str, ttft_ms: float = 5.0, **facts: object) -> Finished:
    return Finished(
        spec.number,
        spec.kind,
        spec.flags,
        TrialStatus.COMPLETE,
        1.0,
        metrics={"p95_ttft_ms": ttft_ms},
        node=node,
        **facts,  # type: ignore[arg-type]
    )


def failed(spec: TrialSpec, node: str) -> Finished:
    return Finished(spec.number, spec.kind, spec.flags, TrialStatus.FAILED, failure_class="x", policy="host", node=node)


def take(plan: StudyPlan) -> TrialSpec:
    spec = plan.next()
    assert spec is not None
    return spec


def begun(**nodes: int) -> StudyPlan:
    """A plan whose trial 0 has ended on n1."""
    plan = plan_of(20, sum(nodes.values()), **nodes)
    plan.hear(done(take(plan), "n1"))
    return plan


def test_each_further_node_measures_the_baseline_before_it_takes_trials() -> None:
    plan = begun(n1=1, n2=1, n3=1)
    kinds = [(spec.kind, spec.node, spec.flags == BASELINE) for spec in (take(plan), take(plan), take(plan))]
    assert kinds == [
        (TrialKind.NODE, "n2", True),
        (TrialKind.NODE, "n3", True),
        (TrialKind.SEARCH, None, False),
    ]
    assert plan.next() is None, "there is room for no more"
    plan.hear(done(plan.live[1], "n2", 6.0))
    assert take(plan).kind is TrialKind.SEARCH
    assert plan.next() is None, "n3 is at its baseline"


def test_trials_wait_for_a_node_that_can_score_them() -> None:
    plan = begun(n1=1, n2=1)
    node, search = take(plan), take(plan)
    plan.nodes = {"n2": 1}
    assert plan.lost(search.number)
    assert plan.next() is None, "n2 has no baseline yet, n1 is gone"
    plan.hear(done(node, "n2"))
    assert take(plan) == search


def test_without_a_node_nothing_starts_and_nothing_ends() -> None:
    plan = plan_of(3)
    assert plan.next() is None
    plan.nodes = {"n1": 1}
    plan.hear(done(take(plan), "n1"))
    plan.nodes = {}
    assert plan.next() is None
    assert plan.stop_reason is None


def test_a_lost_baseline_of_a_node_runs_again_there_or_not_at_all() -> None:
    plan = begun(n1=1, n2=1)
    node = take(plan)
    assert plan.lost(node.number)
    assert [take(plan), take(plan).kind] == [node, TrialKind.SEARCH]
    assert plan.lost(node.number)
    plan.nodes = {"n1": 1}
    assert plan.next() is None, "n1 has its trial, and n2 is gone"
    numbers = {*plan.live, *plan.finished}
    assert numbers == {0, 2}, "the number of a baseline that will not come is free again"


def test_a_baseline_that_fails_on_a_node_stops_nothing_and_is_tried_twice() -> None:
    plan = begun(n1=1, n2=1)
    plan.hear(failed(take(plan), "n2"))
    assert plan.stop_reason is None
    again = take(plan)
    assert (again.kind, again.node) == (TrialKind.NODE, "n2")
    plan.hear(failed(again, "n2"))
    assert take(plan).kind is TrialKind.SEARCH
    assert plan.next() is None


def test_numbers_of_trials_that_run_again_are_not_given_away() -> None:
    plan = begun(n1=2)
    first = take(plan)
    plan.lost(first.number)
    plan.nodes = {"n1": 2, "n2": 1}
    node = take(plan)
    assert (node.kind, node.number) == (TrialKind.NODE, 2)
    assert take(plan) == first


def test_what_is_compared_runs_on_the_node_of_trial_0() -> None:
    plan = plan_of(12, 2, n1=1, n2=1)
    plan.drift = True
    plan.hear(done(take(plan), "n2"))
    plan.hear(done(take(plan), "n1"))
    while (spec := take(plan)).kind is not TrialKind.DRIFT:
        plan.hear(done(spec, "n1"))
    assert spec.node == "n2"
    assert home({"n1": 1, "n3": 1}, plan.finished) == "n1", "the first that is measured, while n2 is gone"


def test_each_trial_is_a_ratio_to_the_baseline_of_its_node() -> None:
    base = TrialSpec(0, TrialKind.BASELINE, BASELINE)
    own = TrialSpec(3, TrialKind.NODE, BASELINE)
    finished = {0: done(base, "n1", 5.0), 3: done(own, "n2", 8.0)}
    assert reference_metrics(finished, 7, "n1") == {"p95_ttft_ms": 5.0}
    assert reference_metrics(finished, 7, "n2") == {"p95_ttft_ms": 8.0}
    assert reference_metrics(finished, 7) == {"p95_ttft_ms": 5.0}
    assert reference_metrics(finished, 2, "n2") == {"p95_ttft_ms": 5.0}, "a score does not change afterwards"
    disturbed = {0: finished[0], 3: dataclasses.replace(finished[3], disturbed=True)}
    assert node_baseline(disturbed, "n2") is None
    assert measured(["n2", "n1"], finished) == ("n1", "n2")


def test_drift_of_one_node_says_nothing_of_another() -> None:
    finished = {
        0: done(TrialSpec(0, TrialKind.BASELINE, BASELINE), "n1", 5.0),
        1: done(TrialSpec(1, TrialKind.NODE, BASELINE), "n2", 8.0),
        2: dataclasses.replace(done(TrialSpec(2, TrialKind.DRIFT, BASELINE), "n1", 9.0), score=1.8),
    }
    assert reference_metrics(finished, 5, "n1") == {"p95_ttft_ms": 9.0}
    assert reference_metrics(finished, 5, "n2") == {"p95_ttft_ms": 8.0}


class TestNeighbours:
    def begun(self, concurrent: int = 4) -> StudyPlan:
        plan = StudyPlan(Points(), 20, BASELINE, concurrent=concurrent, server_sd=0.06)
        plan.hear(done(take(plan), "here"))
        return plan

    def beside(self, plan: StudyPlan, *scores: float) -> None:
        """The check, with these scores."""
        pair = [take(plan), take(plan)]
        assert [spec.kind for spec in pair] == [TrialKind.NEIGHBOUR] * 2
        assert plan.next() is None, "nothing beside them"
        for spec, score in zip(pair, scores, strict=True):
            plan.hear(dataclasses.replace(done(spec, "here"), score=score))

    def test_two_baselines_at_a_time_before_trials_share_a_machine(self) -> None:
        plan = self.begun()
        self.beside(plan, 1.05, 1.02)
        assert [take(plan).kind for _ in range(4)] == [TrialKind.SEARCH] * 4
        assert not plan.one_a_node

    def test_one_trial_at_a_time_where_they_disturb_each_other(self) -> None:
        plan = self.begun()
        self.beside(plan, 1.3, 1.25)
        assert plan.one_a_node
        assert take(plan).kind is TrialKind.SEARCH
        assert plan.next() is None

    def test_one_at_a_time_needs_no_check(self) -> None:
        assert take(self.begun(concurrent=1)).kind is TrialKind.SEARCH

    def test_a_check_that_failed_says_nothing_and_is_not_repeated(self) -> None:
        plan = self.begun()
        pair = [take(plan), take(plan)]
        plan.hear(dataclasses.replace(failed(pair[0], "here"), policy="retry"))
        plan.hear(done(pair[1], "here"))
        assert [take(plan).kind for _ in range(4)] == [TrialKind.SEARCH] * 4

    def test_on_a_cluster_they_run_on_the_node_of_trial_0(self) -> None:
        plan = StudyPlan(Points(), 20, BASELINE, concurrent=4, nodes={"n1": 2, "n2": 2}, server_sd=0.06)
        plan.hear(done(take(plan), "n1"))
        found = [(spec.kind, spec.node) for spec in (take(plan), take(plan), take(plan))]
        assert found == [(TrialKind.NEIGHBOUR, "n1"), (TrialKind.NEIGHBOUR, "n1"), (TrialKind.NODE, "n2")]

    def test_what_is_said(self) -> None:
        pair = [
            dataclasses.replace(done(TrialSpec(number, TrialKind.NEIGHBOUR, BASELINE), "n1"), score=1.3)
            for number in (1, 2)
        ]
        assert describe(pair[:1], 0.06) == ()
        (line,) = describe(pair, 0.06)
        assert line == (
            "two trials at a time on one node: the baseline scores 1.300 of alone, beyond what launches differ by "
            "(15%): one trial at a time on a node from here on"
        )
