"""From finished trials to a recommendation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from sweep.recommend import Verdict, changed_flags, nearest_to_today, rank_key, recommend
from sweep.trial import CUT, Finished, Flags, TrialKind, TrialStatus

TODAY: Flags = {"max-num-seqs": 8, "block-size": None}


def trial(
    number: int,
    score: float | None,
    *,
    status: TrialStatus = TrialStatus.COMPLETE,
    violations: Mapping[str, float] | None = None,
    disturbed: bool = False,
) -> Finished:
    kind = TrialKind.BASELINE if number == 0 else TrialKind.SEARCH
    flags = TODAY if number == 0 else {"max-num-seqs": 8 * (number + 1), "block-size": None}
    return Finished(number, kind, flags, status, score, violations or {}, disturbed=disturbed)


def test_the_lowest_score_wins_and_says_by_how_much() -> None:
    found = recommend([trial(0, 1.0), trial(1, 0.9), trial(2, 0.75), trial(3, 1.2)])
    assert found.verdict is Verdict.BETTER
    assert found.number == 2
    assert found.flags == {"max-num-seqs": 24, "block-size": None}
    assert found.gain_share == pytest.approx(0.25)
    assert "25.0% better than the baseline" in found.sentence
    assert "unconfirmed" in found.sentence


def test_keep_your_flags_when_nothing_beat_them() -> None:
    found = recommend([trial(0, 1.0), trial(1, 1.3), trial(2, 1.0)])
    assert found.verdict is Verdict.KEEP
    assert (found.number, found.flags, found.gain_share) == (0, TODAY, 0.0)
    assert "Keep your flags" in found.sentence


def test_the_baseline_alone_is_kept() -> None:
    assert recommend([trial(0, 1.0)]).verdict is Verdict.KEEP


def test_failed_trials_never_win() -> None:
    failed = trial(1, 0.1, status=TrialStatus.FAILED)
    infeasible = trial(2, 0.0, status=TrialStatus.INFEASIBLE)
    unscored = trial(3, None)
    assert recommend([trial(0, 1.0), failed, infeasible, unscored]).number == 0


def test_a_disturbed_trial_never_wins() -> None:
    found = recommend([trial(0, 1.0), trial(1, 0.5, disturbed=True), trial(2, 0.8)])
    assert found.number == 2


def test_a_disturbed_baseline_is_still_what_the_others_are_measured_by() -> None:
    found = recommend([trial(0, 1.0, disturbed=True), trial(1, 0.9)])
    assert (found.verdict, found.number) == (Verdict.BETTER, 1)


def test_keeping_an_slo_comes_before_the_score() -> None:
    fast = trial(1, 0.5, violations={"p95_tpot_ms": 0.1})
    slow = trial(2, 0.9, violations={"p95_tpot_ms": -0.1})
    found = recommend([trial(0, 1.0, violations={"p95_tpot_ms": -0.2}), fast, slow])
    assert found.number == 2


def test_a_worse_score_that_keeps_the_slo_is_recommended_and_said() -> None:
    today = trial(0, 1.0, violations={"p95_tpot_ms": 0.5})
    kept = trial(1, 1.25, violations={"p95_tpot_ms": -0.1})
    found = recommend([today, kept])
    assert (found.verdict, found.number) == (Verdict.BETTER, 1)
    assert "25.0% worse than the baseline by the weights" in found.sentence
    assert "keeps the SLOs, which the baseline does not" in found.sentence


def test_where_all_break_an_slo_the_least_breach_leads_and_is_said() -> None:
    far = trial(0, 1.0, violations={"p95_ttft_ms": 2.0})
    near = trial(1, 0.9, violations={"p95_ttft_ms": 0.5})
    lost = trial(2, 0.1, violations={"p95_ttft_ms": float("inf")})
    found = recommend([far, near, lost])
    assert found.number == 1
    assert "breaks the SLO on p95_ttft_ms" in found.sentence
    assert rank_key(near) < rank_key(far) < rank_key(lost)


def test_of_equals_the_lower_number_wins() -> None:
    assert recommend([trial(2, 0.9), trial(1, 0.9), trial(0, 1.0)]).number == 1


def test_without_a_baseline_there_is_no_verdict_on_the_others() -> None:
    found = recommend([trial(0, None, status=TrialStatus.FAILED), trial(1, 0.5)])
    assert (found.verdict, found.flags) == (Verdict.NO_BASELINE, None)


def test_all_failed() -> None:
    found = recommend([trial(0, None, status=TrialStatus.FAILED)])
    assert (found.verdict, found.number, found.flags, found.score) == (Verdict.ALL_FAILED, None, None, None)


def test_changed_flags_are_those_that_differ() -> None:
    assert changed_flags({"a": 1, "b": None, "c": True}, {"a": 1, "b": 16}) == {"b": (16, None), "c": (None, True)}


def test_trials_that_were_cut_are_not_decided() -> None:
    cut = [dataclasses.replace(trial(number, None, status=TrialStatus.FAILED), policy=CUT) for number in (0, 1)]
    for none in ([], cut[:1]):
        found = recommend(none)
        assert (found.verdict, found.flags, found.sentence) == (Verdict.NOTHING_YET, None, "Nothing measured yet.")
    assert recommend([trial(0, 1.0), cut[1]]).verdict is Verdict.KEEP
    assert recommend([trial(0, None, status=TrialStatus.FAILED), cut[1]]).verdict is Verdict.ALL_FAILED


def test_of_equal_winners_the_one_nearest_to_today_is_recommended() -> None:
    found = recommend([trial(0, 1.0), trial(1, 0.8)])
    assert found.flags is not None
    nearer = nearest_to_today(found, TODAY, lambda flags: {**flags, "max-num-seqs": 12})
    assert nearer.flags == {"max-num-seqs": 12, "block-size": None}
    assert (nearer.number, nearer.score, nearer.confirmed) == (1, 0.8, False)
    assert "its max-num-seqs 16 made no difference: 12 instead" in nearer.sentence
    assert "unconfirmed" in nearer.sentence
    same = nearest_to_today(found, TODAY, lambda _flags: TODAY)
    assert (same.verdict, same.flags, same.gain_share) == (Verdict.KEEP, TODAY, 0.0)
    assert "trial 1" in same.sentence
    assert nearest_to_today(found, TODAY, lambda flags: flags) is found
    kept = recommend([trial(0, 1.0), trial(1, 1.2)])
    assert nearest_to_today(kept, TODAY, lambda _flags: {"max-num-seqs": 12}) is kept
