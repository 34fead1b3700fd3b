"""Configurations measured more than once, and which deserve a second look."""

from __future__ import annotations

import dataclasses

import pytest

from sweep.looks import ranked, second_look
from sweep.trial import Finished, Flags, TrialKind, TrialStatus


def flags(seqs: int) -> Flags:
    return {"max-num-seqs": seqs}


def trial(number: int, seqs: int, score: float | None, **changes: object) -> Finished:
    kind = TrialKind.SEARCH if number else TrialKind.BASELINE
    one = Finished(number, kind, flags(seqs), TrialStatus.COMPLETE, score)
    return dataclasses.replace(one, **changes)  # type: ignore[arg-type]


def test_two_looks_are_one_configuration_with_their_mean() -> None:
    found = ranked([trial(0, 4, 1.0), trial(1, 8, 0.8), trial(2, 16, 0.7), trial(3, 16, 0.9)])
    assert [(one.number, one.score) for one in found] == [(2, pytest.approx(0.8)), (1, 0.8)]


def test_the_best_are_looked_at_again_best_first_and_once() -> None:
    night = [trial(0, 4, 1.0), trial(1, 8, 0.9), trial(2, 16, 0.7), trial(3, 32, 0.8)]
    assert second_look(night, [], 2) == flags(16)
    assert second_look(night, [flags(16)], 2) == flags(32)
    assert second_look(night, [flags(16), flags(32)], 2) is None
    night.append(trial(4, 16, 0.95))
    assert second_look(night, [], 2) == flags(32)
    night.append(trial(5, 32, None, status=TrialStatus.FAILED))
    assert second_look(night, [], 2) is None
    assert second_look(night, [], 3) == flags(8)


def test_what_misses_an_slo_was_disturbed_or_is_the_baseline_comes_last_or_not_at_all() -> None:
    missed = trial(1, 8, 0.5, violations={"p95_ttft_ms": 0.2})
    kept = trial(2, 16, 0.9, violations={"p95_ttft_ms": -0.1})
    shaken = trial(3, 32, 0.1, disturbed=True)
    cut = trial(4, 64, 0.1, status=TrialStatus.CENSORED)
    assert [one.number for one in ranked([trial(0, 4, 1.0), missed, kept, shaken, cut])] == [2, 1]
