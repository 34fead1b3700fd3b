"""The calibration in the plan of a night: first, alone, once; never told to the search, and nobody's measure."""

from __future__ import annotations

from typing import Any

import pytest
from test_plan import BASELINE, Queue, done, ends, failed, plan_of, take

from sweep.plan import StudyPlan
from sweep.trial import CUT, Finished, TrialKind, TrialSpec, TrialStatus


def plan(trials: int = 3, **settings: Any) -> StudyPlan:
    return plan_of(trials, calibrate=True, **settings)


def paused(one: StudyPlan) -> bool:
    """Whether no trial comes now although the study has not ended."""
    with pytest.raises(StopIteration):
        one.next()
    return one.stop_reason is None and one.paused


def test_it_comes_first_and_alone_and_is_none_of_the_trials() -> None:
    night = plan(3, concurrent=4)
    first = take(night)
    assert (first.number, first.kind, first.flags) == (1, TrialKind.CALIBRATION, BASELINE)
    assert night.next() is None
    night.hear(done(first))
    baseline = take(night)
    assert (baseline.number, baseline.kind) == (0, TrialKind.BASELINE)
    assert night.next() is None
    night.hear(done(baseline))
    for number in (2, 3):
        spec = take(night)
        assert (spec.number, spec.kind) == (number, TrialKind.SEARCH)
        night.hear(done(spec))
    assert ends(night) == "all trials done"
    assert isinstance(night.proposer, Queue)
    assert night.proposer.heard == [1, 0, 2, 3]


def test_its_time_is_nobody_elses() -> None:
    night = plan(9, time_left_s=lambda: 1000.0)
    night.hear(done(take(night), total_s=900.0))
    assert night.expected_left_s() is None
    night.hear(done(take(night), total_s=50.0))
    assert night.expected_left_s() == (400.0, 0.0)
    assert take(night).kind is TrialKind.SEARCH


def test_a_night_that_goes_on_does_not_repeat_it() -> None:
    night = plan()
    night.hear(done(TrialSpec(1, TrialKind.CALIBRATION, BASELINE)), earlier=True)
    assert take(night).number == 0
    measured = plan()
    measured.hear(done(TrialSpec(0, TrialKind.BASELINE, BASELINE)), earlier=True)
    assert take(measured).kind is TrialKind.SEARCH  # the search has begun: it comes too late


def test_a_failed_one_is_no_obstacle_and_no_cause() -> None:
    night = plan(4, stop_after_same_failure=3)
    night.hear(failed(take(night)))
    assert take(night).number == 0
    night.hear(done(TrialSpec(0, TrialKind.BASELINE, BASELINE)))
    for _ in range(2):
        night.hear(failed(take(night)))
    assert night.stop_reason is None


@pytest.mark.parametrize("policy", ["stop_now", "host", CUT])
def test_what_no_trial_can_mend_ends_the_study(policy: str) -> None:
    night = plan()
    night.hear(failed(take(night), policy=policy))
    assert ends(night)


def test_an_open_rate_pauses_the_plan_after_it() -> None:
    night = plan(rate_open=True)
    spec = take(night)
    assert not night.paused
    night.hear(done(spec))
    assert paused(night)


@pytest.mark.parametrize("status", [TrialStatus.FAILED, TrialStatus.INFEASIBLE])
def test_an_open_rate_needs_it(status: TrialStatus) -> None:
    night = plan(rate_open=True)
    night.hear(Finished(1, TrialKind.CALIBRATION, BASELINE, status, failure_class="engine_died", advice="look there"))
    assert ends(night) == "the calibration failed, so the request rate is not known: engine_died - look there"
    assert night.failed


def test_a_lost_worker_tries_once_more() -> None:
    night = plan(rate_open=True)
    spec = take(night)
    assert night.lost(spec.number)
    assert take(night) == spec
