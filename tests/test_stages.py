"""What follows the search: which launch comes next, from the record alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sweep.stages import Confirmation, ConfirmRules, Launch, Standing, contenders, soak_ladder, survivor
from sweep.trial import Finished, Flags, TrialKind, TrialStatus

BASE: Flags = {"max-num-seqs": 4, "gpu-memory-utilization": 0.7}
RULES = ConfirmRules(candidates=2, launches=2, max_launches=4)


def _flags(seqs: int) -> Flags:
    return {"max-num-seqs": seqs, "gpu-memory-utilization": 0.8}


def _night(*scores: float) -> dict[int, Finished]:
    """The baseline, then a search trial a score."""
    found = {0: _trial(0, TrialKind.BASELINE, BASE, 1.0)}
    for number, score in enumerate(scores, start=1):
        found[number] = _trial(number, TrialKind.SEARCH, _flags(8 * number), score)
    return found


def _trial(number: int, kind: TrialKind, flags: Flags, score: float, block: int | None = None) -> Finished:
    return Finished(
        number=number,
        kind=kind,
        flags=flags,
        status=TrialStatus.COMPLETE,
        score=score,
        metrics={"p95_ttft_ms": 100.0 * score},
        block=block,
    )


def _ended(night: dict[int, Finished], launch: Launch, **changes: object) -> None:
    number = len(night)
    one = _trial(number, launch.kind, launch.flags, 1.0, launch.block)
    night[number] = dataclasses.replace(one, **changes)  # type: ignore[arg-type]


def _confirmation(standing: Standing | None = None) -> Confirmation:
    return Confirmation(RULES, BASE, lambda _counting: standing or Standing(enough=True))


def _sure(launch: Launch | None) -> Launch:
    assert launch is not None
    return launch


def _all(confirmation: Confirmation, night: dict[int, Finished], *, most: int = 60) -> list[Launch]:
    launches = []
    while (launch := confirmation.next(night)) is not None:
        launches.append(launch)
        _ended(night, launch)
        assert len(launches) < most, "it never ends"
    return launches


def _seqs(launches: Sequence[Launch]) -> list[tuple[object, int | None]]:
    return [(launch.flags["max-num-seqs"], launch.block) for launch in launches]


def test_the_best_and_the_baseline_are_interleaved_and_turned_round() -> None:
    launches = _all(_confirmation(), _night(0.9, 0.7, 0.8, 1.2))
    assert _seqs(launches) == [(4, 0), (16, 0), (24, 0), (24, 1), (16, 1), (4, 1)]
    assert {launch.kind for launch in launches} == {TrialKind.CONFIRM}


def test_what_looks_clearly_worse_than_the_baseline_is_not_confirmed() -> None:
    assert _all(_confirmation(), _night(1.2, 1.3)) == []
    assert contenders(_night(0.99, 1.01, 1.11), 3) == [_flags(8), _flags(16)]


def test_what_misses_an_slo_that_the_baseline_keeps_is_not_confirmed() -> None:
    night = _night(0.7, 1.0)
    night[1] = dataclasses.replace(night[1], violations={"p95_ttft_ms": 0.1})
    assert contenders(night, 3) == [_flags(16)]


def test_a_disturbed_an_infeasible_and_a_repeated_trial_do_not_stand_for_election() -> None:
    night = _night(0.5, 0.6, 0.9)
    night[1] = dataclasses.replace(night[1], disturbed=True)
    night[2] = dataclasses.replace(night[2], status=TrialStatus.CENSORED)
    night[4] = _trial(4, TrialKind.SEARCH, {**_flags(24), "max-num-seqs": 24.0}, 0.91)
    assert contenders(night, 3) == [_flags(24)]


def test_more_launches_follow_until_enough_for_those_that_still_contend() -> None:
    launches = _all(_confirmation(Standing(enough=False, contending=(_flags(16),))), _night(0.9, 0.7))
    assert _seqs(launches)[6:] == [(4, 2), (16, 2), (16, 3), (4, 3)]


def test_a_study_cut_short_goes_on_with_the_launch_that_is_missing() -> None:
    night, other = _night(0.9, 0.7), _night(0.9, 0.7)
    whole = _all(_confirmation(), other)
    for done in range(len(whole)):
        assert _confirmation().next(night) == whole[done]
        _ended(night, whole[done])


def test_a_launch_that_shows_that_the_flags_cannot_work_rules_them_out() -> None:
    night = _night(0.9, 0.7)
    confirmation = _confirmation()
    _ended(night, _sure(confirmation.next(night)))
    second = _sure(confirmation.next(night))
    _ended(night, second, status=TrialStatus.INFEASIBLE, metrics=None, score=None)
    assert second.flags not in [launch.flags for launch in _all(confirmation, night)]


def test_a_launch_lost_to_the_machine_is_made_up_for_once() -> None:
    night = _night(0.9)
    confirmation = _confirmation()
    for _ in range(2):
        launch = _sure(confirmation.next(night))
        assert _seqs([launch]) == [(4, 0)]
        _ended(night, launch, status=TrialStatus.FAILED, metrics=None, score=None)
    assert _seqs(_all(confirmation, night)) == [(8, 0), (8, 1), (4, 1)]


def test_a_disturbed_launch_is_not_judged() -> None:
    night, judged = _night(0.9), []

    def judge(counting: Sequence[Finished]) -> Standing:
        judged.append([one.number for one in counting])
        return Standing(enough=True)

    confirmation = Confirmation(RULES, BASE, judge)
    _ended(night, _sure(confirmation.next(night)), disturbed=True)
    _all(confirmation, night)
    assert judged
    assert 2 not in judged[-1]
    assert len(judged[-1]) == 4


def test_short_of_time_fewer_are_confirmed_and_none_is_begun_in_vain() -> None:
    night = _night(0.9, 0.7)
    assert _seqs([_sure(_confirmation().next(night, room=6))]) == [(4, 0)]
    begun = _sure(_confirmation().next(night, room=4))
    _ended(night, begun)
    assert _seqs([_sure(_confirmation().next(night, room=3))]) == [(16, 0)]
    assert _confirmation().next(night, room=2) is None
    assert _confirmation().next(_night(0.9), room=3) is None
    assert _confirmation().next(_night(0.9), room=0) is None


def test_the_winner_is_soaked_once() -> None:
    night = _night(0.7)
    launches = _all(_confirmation(Standing(enough=True, winner=_flags(8))), night)
    assert launches[-1] == Launch(TrialKind.SOAK, _flags(8), None)
    assert [launch.kind for launch in launches].count(TrialKind.SOAK) == 1
    assert survivor(night, _flags(8), 0.02) == _flags(8)


def test_a_winner_that_fails_the_soak_goes_a_step_down_and_is_measured_again() -> None:
    night = _night(0.7)
    confirmation = _confirmation(Standing(enough=True, winner=_flags(8)))
    while (launch := confirmation.next(night)) is not None and launch.kind is not TrialKind.SOAK:
        _ended(night, launch)
    _ended(night, _sure(launch), status=TrialStatus.INFEASIBLE, metrics=None, score=None)
    lower = {**_flags(8), "gpu-memory-utilization": 0.78}
    assert _all(confirmation, night) == [
        Launch(TrialKind.SOAK, lower, None),
        Launch(TrialKind.CONFIRM, lower, 0),
        Launch(TrialKind.CONFIRM, lower, 1),
    ]
    assert survivor(night, _flags(8), 0.02) == lower


def test_nothing_is_recommended_when_no_step_survives_the_soak() -> None:
    night = _night(0.7)
    for flags in soak_ladder(_flags(8), 0.02):
        _ended(night, Launch(TrialKind.SOAK, flags, None), status=TrialStatus.INFEASIBLE, metrics=None, score=None)
    assert survivor(night, _flags(8), 0.02) is None
    assert len(soak_ladder({"max-num-seqs": 8}, 0.02)) == 1
