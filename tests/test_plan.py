"""Which trial runs next, and when a study ends."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from sweep.clock import deadline_clock, grace_of
from sweep.plan import StudyPlan
from sweep.trial import CUT, Finished, Flags, TrialKind, TrialSpec, TrialStatus

BASELINE = {"max-num-seqs": 8}


@dataclass
class Queue:
    """Proposes a fixed list of points, and remembers what it was asked and told."""

    points: list[int]
    asked: list[tuple[int, list[Flags]]] = field(default_factory=list)
    heard: list[int] = field(default_factory=list)

    def propose(self, number: int, pending: Sequence[Flags]) -> Flags | None:
        self.asked.append((number, list(pending)))
        return {"max-num-seqs": self.points.pop(0)} if self.points else None

    def ended(self, number: int) -> str:
        return f"nothing is left for trial {number}"

    def hear(self, finished: Finished) -> None:
        self.heard.append(finished.number)


def plan_of(trials: int, points: int = 100, **settings: object) -> StudyPlan:
    return StudyPlan(Queue(list(range(100, 100 + points))), trials, BASELINE, **settings)  # type: ignore[arg-type]


def done(spec: TrialSpec, status: TrialStatus = TrialStatus.COMPLETE, **facts: object) -> Finished:
    metrics = {"p95_ttft_ms": 5.0} if status is TrialStatus.COMPLETE else None
    score = 1.0 if status is TrialStatus.COMPLETE else None
    return Finished(spec.number, spec.kind, spec.flags, status, score, metrics=metrics, **facts)  # type: ignore[arg-type]


def failed(
    spec: TrialSpec, cause: str = "client_error", policy: str = "retry", line: str | None = "seen in the log"
) -> Finished:
    return done(spec, TrialStatus.FAILED, failure_class=cause, failure_line=line, advice="do this", policy=policy)


def take(plan: StudyPlan) -> TrialSpec:
    spec = plan.next()
    assert spec is not None
    return spec


def ends(plan: StudyPlan) -> str:
    """The reason with which the plan ends now."""
    with pytest.raises(StopIteration):
        plan.next()
    assert plan.stop_reason is not None
    return plan.stop_reason


def test_baseline_first_and_alone_then_its_metrics_go_with_each_trial() -> None:
    plan = plan_of(4, concurrent=3)
    first = take(plan)
    assert (first.number, first.kind, first.flags) == (0, TrialKind.BASELINE, BASELINE)
    assert plan.next() is None
    plan.hear(done(first))
    others = [take(plan), take(plan), take(plan)]
    assert [spec.number for spec in others] == [1, 2, 3]
    assert all(spec.baseline_metrics == {"p95_ttft_ms": 5.0} for spec in others)
    assert isinstance(plan.proposer, Queue)
    assert plan.proposer.asked == [
        (1, []),
        (2, [{"max-num-seqs": 100}]),
        (3, [{"max-num-seqs": n} for n in (100, 101)]),
    ]


def test_no_more_at_once_than_there_is_room_for() -> None:
    plan = plan_of(9, concurrent=2)
    plan.hear(done(take(plan)))
    first, _ = take(plan), take(plan)
    assert plan.next() is None
    plan.hear(done(first))
    assert take(plan).number == 3


def test_ends_after_the_asked_trials_and_not_before_the_last_has_ended() -> None:
    plan = plan_of(2, concurrent=2)
    plan.hear(done(take(plan)))
    last = take(plan)
    assert plan.next() is None
    plan.hear(done(last))
    assert ends(plan) == "all trials done"
    assert not plan.failed
    assert isinstance(plan.proposer, Queue)
    assert plan.proposer.heard == [0, 1]


def test_ends_when_every_point_is_known() -> None:
    plan = plan_of(9, points=1)
    plan.hear(done(take(plan)))
    plan.hear(done(take(plan)))
    assert ends(plan) == "nothing is left for trial 2"
    assert not plan.failed


@pytest.mark.parametrize("status", [TrialStatus.FAILED, TrialStatus.INFEASIBLE])
def test_failed_baseline_ends_the_study_with_its_cause(status: TrialStatus) -> None:
    plan = plan_of(40)
    plan.hear(done(take(plan), status, failure_class="startup_oom", failure_line="CUDA out of memory", advice="less"))
    assert ends(plan) == "the baseline failed: startup_oom - CUDA out of memory - less"
    assert plan.failed


def test_failed_baseline_of_an_earlier_run_ends_the_study_too() -> None:
    plan = plan_of(40)
    spec = TrialSpec(0, TrialKind.BASELINE, BASELINE)
    plan.hear(failed(spec), earlier=True)
    assert ends(plan).startswith("the baseline failed: client_error")
    assert plan.failed


def test_causes_that_are_not_the_flags_end_the_study_after_some_in_a_row() -> None:
    plan = plan_of(40, stop_after_same_failure=3)
    plan.hear(done(take(plan)))
    plan.hear(failed(take(plan)))
    plan.hear(failed(take(plan)))
    plan.hear(done(take(plan)))  # one that works: the row is broken
    plan.hear(failed(take(plan)))
    plan.hear(failed(take(plan), "engine_died"))  # another cause: counted from one
    plan.hear(failed(take(plan), "engine_died"))
    assert plan.stop_reason is None
    plan.hear(failed(take(plan), "engine_died"))
    assert ends(plan).startswith("3 trials in a row failed of one cause that is not the flags: engine_died")
    assert plan.failed


@pytest.mark.parametrize(
    ("cause", "lines", "ended"),
    [
        ("other", ("No module named x", "ninja: build stopped", "No module named x"), False),
        ("unknown", ("exit code 1", "exit code 1", "exit code 139"), False),
        ("other", ("no room at 0x7f31, 4096 B", "no room at 0x7c00, 1024 B", "no room at 0x11, 12.5 B"), True),
        ("unknown", (None, None, None), True),
        ("engine_died", ("an illegal memory access", "misaligned address", None), True),
    ],
)
def test_one_cause_is_one_class_that_names_it_or_one_line(
    cause: str, lines: tuple[str | None, ...], ended: bool
) -> None:
    plan = plan_of(40, stop_after_same_failure=3)
    plan.hear(done(take(plan)))
    for line in lines:
        plan.hear(failed(take(plan), cause, "stop", line))
    assert plan.failed is ended
    if not ended:
        for _ in range(2):
            assert plan.stop_reason is None
            plan.hear(failed(take(plan), cause, "stop", lines[-1]))
    assert ends(plan).startswith(f"3 trials in a row failed of one cause that is not the flags: {cause}")


def test_infeasible_flags_never_end_the_study() -> None:
    plan = plan_of(12, stop_after_same_failure=2)
    plan.hear(done(take(plan)))
    for _ in range(11):
        plan.hear(done(take(plan), TrialStatus.INFEASIBLE, failure_class="load_oom", informative_for_search=True))
    assert ends(plan) == "all trials done"
    assert not plan.failed


@pytest.mark.parametrize("policy", ["stop_now", "host"])
def test_what_needs_a_person_ends_the_study_at_once(policy: str) -> None:
    plan = plan_of(40)
    plan.hear(done(take(plan)))
    plan.hear(failed(take(plan), "driver_error", policy))
    assert ends(plan) == "driver_error - seen in the log - do this"
    assert plan.failed


def test_lost_trial_runs_again_with_the_same_flags_and_no_other_in_between() -> None:
    plan = plan_of(4, max_lost=2)
    plan.hear(done(take(plan)))
    spec = take(plan)
    assert plan.lost(spec.number)
    assert plan.times_lost(spec.number) == 1
    assert take(plan) is spec
    assert plan.lost(spec.number)
    assert take(plan) is spec
    assert not plan.lost(spec.number)
    assert plan.times_lost(spec.number) == 3
    plan.hear(failed(spec))
    assert take(plan).number == 2


def test_trial_given_back_comes_first() -> None:
    plan = plan_of(4)
    spec = take(plan)
    plan.give_back(spec)
    assert not plan.live
    assert take(plan) is spec


def test_goes_on_where_an_earlier_run_stopped() -> None:
    plan = plan_of(4)
    plan.hear(done(TrialSpec(0, TrialKind.BASELINE, BASELINE)), earlier=True)
    plan.hear(done(TrialSpec(2, TrialKind.SEARCH, {"max-num-seqs": 7})), earlier=True)
    assert take(plan).number == 1  # was running when it was stopped
    plan.hear(done(TrialSpec(1, TrialKind.SEARCH, {"max-num-seqs": 100})))
    assert take(plan).number == 3


@dataclass(slots=True)
class Clock:
    """A budget that a test spends."""

    left_s: float = 100.0

    def __call__(self) -> float:
        return self.left_s


def test_no_trial_starts_that_would_end_too_late() -> None:
    clock = Clock()
    plan = plan_of(40, time_left_s=clock)
    plan.hear(done(take(plan), total_s=30.0))
    clock.left_s = 40.0
    spec = take(plan)  # 30 s and a margin fit
    clock.left_s = 30.0
    plan.hear(done(spec, total_s=20.0))
    assert "time" in ends(plan)  # the slowest of the last few counts, not the last
    assert not plan.failed


def test_trials_that_failed_at_once_do_not_shorten_what_a_trial_is_planned_to_take() -> None:
    plan = plan_of(20, time_left_s=lambda: 50.0)
    plan.hear(done(take(plan), total_s=60.0))
    for _ in range(6):
        plan.hear(done(TrialSpec(len(plan.finished), TrialKind.SEARCH, {}), TrialStatus.INFEASIBLE, total_s=2.0))
    assert ends(plan) == "the time left is shorter than a trial"


def test_lost_trial_is_not_begun_again_without_time_for_it() -> None:
    left_s = [1000.0]
    plan = plan_of(20, time_left_s=lambda: left_s[0])
    plan.hear(done(take(plan), total_s=60.0))
    spec = take(plan)
    left_s[0] = 50.0
    assert plan.lost(spec.number)
    assert ends(plan) == "the time left is shorter than a trial"


@dataclass(slots=True)
class After:
    """What follows a search: so many launches of the baseline."""

    launches: int
    rooms: list[int | None] = field(default_factory=list)

    def next(self, number: int, finished: Mapping[int, Finished], room: int | None) -> TrialSpec | None:
        self.rooms.append(room)
        done = sum(one.kind is TrialKind.CONFIRM for one in finished.values())
        if done >= self.launches:
            return None
        return TrialSpec(number, TrialKind.CONFIRM, BASELINE, block=done)

    def least_launches(self) -> int:
        return self.launches


def test_what_follows_the_search_runs_one_at_a_time_and_alone() -> None:
    plan = plan_of(3, follow=After(2), concurrent=2)
    plan.hear(done(take(plan)))
    first, second = take(plan), take(plan)
    plan.hear(done(first))
    assert plan.next() is None  # a trial of the search still runs
    plan.hear(done(second))
    launch = take(plan)
    assert (launch.number, launch.kind, launch.block) == (3, TrialKind.CONFIRM, 0)
    assert plan.next() is None
    plan.hear(done(launch))
    plan.hear(done(take(plan)))
    assert ends(plan) == "all trials done"
    assert [one.kind for one in plan.finished.values()].count(TrialKind.CONFIRM) == 2


def test_more_trials_asked_for_afterwards_are_searched_and_the_proposer_hears_of_every_launch() -> None:
    plan = plan_of(2, follow=After(1))
    for _ in range(3):
        plan.hear(done(take(plan)))
    assert ends(plan) == "all trials done"
    longer = plan_of(3, follow=After(1))
    for finished in plan.finished.values():
        longer.hear(finished, earlier=True)
    assert take(longer).kind is TrialKind.SEARCH
    assert isinstance(longer.proposer, Queue)
    assert longer.proposer.heard == [0, 1, 2]


def test_time_kept_for_what_follows_is_not_spent_on_trials() -> None:
    clock = Clock(left_s=1000.0)
    after = After(2)
    plan = plan_of(40, time_left_s=clock, follow=after, follow_share=0.1)
    plan.hear(done(take(plan), total_s=30.0))
    assert plan.reserve_s() == pytest.approx(66.0)
    clock.left_s = 98.0
    assert take(plan).kind is TrialKind.CONFIRM
    assert after.rooms[-1] == 2
    idle = plan_of(40, time_left_s=Clock(left_s=1000.0), follow=After(0))
    idle.hear(done(take(idle), total_s=30.0))
    assert idle.reserve_s() == 0.0


def test_the_baseline_is_measured_again_in_the_middle_and_at_the_end() -> None:
    plan = plan_of(14, drift=True, follow=After(1))
    kinds = []
    with contextlib.suppress(StopIteration):
        while True:
            spec = take(plan)
            kinds.append(spec.kind)
            plan.hear(done(spec))
    assert [number for number, kind in enumerate(kinds) if kind is TrialKind.DRIFT] == [7, 15]
    assert kinds[-1] is TrialKind.CONFIRM
    assert kinds.count(TrialKind.SEARCH) == 13
    short = plan_of(6, drift=True)
    for _ in range(6):
        short.hear(done(take(short)))
    assert ends(short) == "all trials done"


def test_time_that_is_out_launches_nothing() -> None:
    assert "time" in ends(plan_of(40, time_left_s=lambda: 0.0))


def test_baseline_does_not_start_where_its_load_alone_cannot_end_in_time() -> None:
    plan = plan_of(40, time_left_s=lambda: 60.0, minimum_s=90.0)
    assert ends(plan) == "the time left, 60 s, is shorter than the load of one trial, 90 s"
    assert not plan.failed
    measured = plan_of(40, time_left_s=lambda: 60.0, minimum_s=90.0)
    measured.hear(done(TrialSpec(0, TrialKind.BASELINE, BASELINE), total_s=50.0), earlier=True)
    assert take(measured).number == 1  # what was seen counts for more


def test_what_runs_after_the_time_and_its_grace_is_overdue() -> None:
    clock = Clock()
    plan = plan_of(40, time_left_s=clock, grace_s=3.0)
    assert not plan.overdue()
    clock.left_s = -2.5
    assert not plan.overdue()
    clock.left_s = -3.5
    assert plan.overdue()
    assert not plan_of(40).overdue()
    assert [grace_of(left_s) for left_s in (10.0, 8 * 3600.0, float("inf"))] == [0.2, 30.0, 30.0]


@pytest.mark.parametrize("number", [0, 1])
def test_trial_that_was_cut_ends_the_study_and_is_no_failure_of_it(number: int) -> None:
    plan = plan_of(2, stop_after_same_failure=1)
    spec = take(plan)
    if number:
        plan.hear(done(spec))
        spec = take(plan)
    plan.hear(failed(spec, policy=CUT))
    assert ends(plan) == "the time is out; what was cut is measured when the same command is typed again"
    assert not plan.failed


def test_the_end_of_the_time_is_said_in_a_line() -> None:
    assert plan_of(2).describe_time() is None
    line = plan_of(2, time_left_s=lambda: 100.0, grace_s=2.0, minimum_s=20.0).describe_time()
    assert line is not None
    assert re.match(r"the study ends at \d\d:\d\d:\d\d: no trial starts that would end later ", line)
    assert "(a load takes 20 s or more); one that still runs 2 s after is cut" in line


def test_devices_held_after_a_measurement_are_taken_out_before_the_next_trial() -> None:
    plan = plan_of(3)
    plan.hear(done(take(plan)))
    finished = done(take(plan), dirty_devices=("1",))
    assert not finished.postponed
    plan.hear(finished)
    assert plan.finished[1] is finished
    with pytest.raises(StopIteration, match="busy devices"):
        plan.next()
    assert (plan.stop_reason, plan.busy_devices) == (None, {"1"})
    plan.busy_devices.clear()
    plan.hear(done(take(plan), dirty_devices=("0",)))
    assert ends(plan) == "all trials done"  # nothing left to free a device for


def test_trial_that_only_met_busy_devices_is_postponed() -> None:
    plan = plan_of(3)
    finished = done(take(plan), TrialStatus.FAILED, dirty_devices=("1",))
    assert finished.postponed
    plan.postpone(finished)
    plan.busy_devices.clear()
    assert take(plan).number == 0


def test_expected_time_left() -> None:
    plan = plan_of(5, concurrent=2)
    assert plan.expected_left_s() is None
    plan.hear(done(take(plan), total_s=10.0))
    assert plan.expected_left_s() == pytest.approx((10.0 * 4 / 2, 0.0))


def test_deadline_clock_counts_down_from_its_start() -> None:
    assert deadline_clock(None)() == float("inf")
    assert 99.0 < deadline_clock(100.0)() <= 100.0


def test_the_last_trials_of_a_search_look_again_at_its_best() -> None:
    plan = plan_of(20, second_looks=0.2)
    specs = []
    with contextlib.suppress(StopIteration):
        while True:
            spec = take(plan)
            specs.append(spec)
            plan.hear(done(spec))
    assert [spec.flags for spec in specs[16:]] == [spec.flags for spec in specs[1:5]]
    assert len({str(spec.flags) for spec in specs[:16]}) == 16
    assert len(specs) == 20
