"""What a study has cost, and how its nodes differ."""

from __future__ import annotations

import dataclasses

from sweep.spent import gpu_hours, spent_lines
from sweep.store import StoredTrial
from sweep.trial import TrialKind, TrialStatus


def trial(number: int, node: str | None = None, kind: TrialKind = TrialKind.SEARCH, score: float = 1.0) -> StoredTrial:
    return StoredTrial(
        number=number,
        kind=TrialKind.BASELINE if number == 0 else kind,
        flags={"tensor-parallel-size": 2 if number % 2 else 4},
        status=TrialStatus.COMPLETE,
        metrics={},
        score=score,
        feasible=True,
        violations={},
        failure=None,
        attempts=1,
        command="",
        started_wall_s=0.0,
        startup_s=None,
        load_s=None,
        total_s=1800.0,
        node=node,
    )


def gpus(flags: object) -> int:
    assert isinstance(flags, dict)
    return int(flags["tensor-parallel-size"])


def test_devices_of_each_trial_by_its_hours() -> None:
    assert gpu_hours([trial(0), trial(1)], gpus) == 3.0
    assert spent_lines([trial(0), trial(1)], gpus) == ["spent: 3.00 GPU hours in 2 trials"]


def test_nothing_to_say_of_one_machine_without_devices() -> None:
    assert spent_lines([trial(0)], lambda _flags: 0) == []
    assert spent_lines([], gpus) == []
    assert spent_lines([trial(0, "n1"), trial(1, "n1")], lambda _flags: 0) == []


def test_nodes_and_how_their_baselines_differ() -> None:
    trials = [trial(0, "n2"), trial(1, "n1", TrialKind.NODE, 1.034), trial(2, "n1"), trial(3, "n2"), trial(4, "n3")]
    assert spent_lines(trials, lambda _flags: 0) == [
        "node n1: 2 trials, its baseline scores 1.034 of that of n2: its trials are ratios to its own",
        "node n2: 2 trials, where trial 0 ran",
        "node n3: 1 trials, no baseline of its own",
    ]
    unscored = dataclasses.replace(trials[1], score=None)
    assert "node n1: 1 trials, no baseline of its own" in spent_lines([trials[0], unscored], lambda _flags: 0)
