"""Whom a trial is raced against, and what is decided from the record."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from race_records import BALANCED
from raced import (
    BASELINE,
    COUNT,
    RIVAL,
    ROUNDS,
    ZERO,
    candidate,
    finished,
    prepared_setup,
    rival_of,
    slow_rounds,
    stored,
)

from sweep.desk import Desk
from sweep.objective import Objective
from sweep.racing import CPU_NOISE, GPU_NOISE
from sweep.runner import TrialSetup
from sweep.trial import TrialKind, TrialStatus


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
