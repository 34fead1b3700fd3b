"""Which flags mattered, on searches whose answer is known."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import optuna
import pytest

from sweep.searcher.importance import MIN_TRIALS, Importance, flag_importance
from sweep.trial import Finished, Flag, TrialKind, TrialStatus


def search(count: int, score: Callable[[Mapping[str, Flag], random.Random], float], seed: int = 1) -> list[Finished]:
    rng = random.Random(seed)
    found = []
    for number in range(count):
        flags: dict[str, Flag] = {
            "seqs": rng.choice((8, 16, 32, 64)),
            "block": rng.choice((16, 32, 64)),
            "cache": rng.choice(("auto", "fp8", None)),
            "fixed": 7,
        }
        kind = TrialKind.SEARCH if number else TrialKind.BASELINE
        found.append(Finished(number, kind, flags, TrialStatus.COMPLETE, score(flags, rng)))
    return found


def by_seqs(flags: Mapping[str, Flag], rng: random.Random) -> float:
    seqs = flags["seqs"]
    assert isinstance(seqs, int)
    return 64 / seqs + rng.gauss(0, 0.2)


def noise(flags: Mapping[str, Flag], rng: random.Random) -> float:
    return 1 + rng.gauss(0, 0.1) + 0.0 * len(flags)


def test_the_flag_that_makes_the_score_is_first_and_beyond_chance() -> None:
    trials = search(60, by_seqs)
    before = optuna.logging.get_verbosity()
    found = flag_importance(trials)
    assert found.trials == 60
    assert found.flags[0].name == "seqs"
    assert {one.name for one in found.flags} == {"seqs", "block", "cache"}
    assert sum(one.share for one in found.flags) == pytest.approx(1.0)
    first, *others = found.flags
    assert first.beyond_chance
    assert first.share > 2 * max(one.share for one in others)
    assert all(one.low <= one.share <= one.high for one in found.flags)
    assert flag_importance(trials[::-1]) == found  # the order in which they are given does not matter
    assert optuna.logging.get_verbosity() == before


def test_where_nothing_matters_chance_explains_most_flags() -> None:
    """Nineteen of twenty are told so; of nine flags no more than two are not."""
    told = [one.beyond_chance for seed in range(3) for one in flag_importance(search(40, noise, seed)).flags]
    assert len(told) == 9
    assert sum(told) <= 2


def test_a_flag_that_is_left_to_vllm_counts_with_its_switch() -> None:
    def by_null(flags: Mapping[str, Flag], rng: random.Random) -> float:
        return (0.5 if flags["cache"] is None else 1.0) + rng.gauss(0, 0.05)

    found = {one.name: one for one in flag_importance(search(120, by_null)).flags}
    assert found["cache"].beyond_chance
    assert found["cache"].share > 0.4


def test_few_trials_say_nothing() -> None:
    assert flag_importance(search(MIN_TRIALS - 1, by_seqs)) == Importance((), MIN_TRIALS - 1)
    assert flag_importance([]) == Importance((), 0)
    failed = [Finished(n, TrialKind.SEARCH, {"seqs": n}, TrialStatus.INFEASIBLE) for n in range(40)]
    assert flag_importance(failed).trials == 0
