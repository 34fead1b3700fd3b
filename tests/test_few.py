"""Which of very many trials a sampler is shown."""

from __future__ import annotations

import random

from sweep.searcher.few import few
from sweep.searcher.outcome import Outcome, Told


def told(number: int, value: float, miss: float = 0.0) -> Told:
    return Told(number, {}, Outcome("complete", value, {"p95_ttft_ms": miss}))


def test_all_of_a_usual_night() -> None:
    assert few([told(number, 1.0) for number in range(1000)]) == list(range(1000))


def test_of_very_many_the_best_and_the_last() -> None:
    draw = random.Random(1)
    trials = [told(number, draw.uniform(1, 2)) for number in range(5000)]
    trials[17] = told(17, 0.5)
    trials[18] = told(18, 0.1, miss=0.2)
    kept = few(trials)
    assert len(kept) == 1000
    assert kept == sorted(kept)
    assert 17 in kept
    assert 18 not in kept, "it breaks an SLO, and is old"
    best = sorted(range(5000), key=lambda place: (place == 18, trials[place].outcome.value or 0.0))[:250]
    assert set(best) <= set(kept)
    assert set(range(4300, 5000)) <= set(kept)


def test_what_cannot_work_is_shown_while_it_is_new() -> None:
    trials = [Told(number, {}, Outcome("infeasible")) for number in range(20)]
    assert few(trials, most=6, best=2) == [0, 1, 16, 17, 18, 19]
