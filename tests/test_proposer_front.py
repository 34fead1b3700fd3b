"""A search for a Pareto front: what Optuna is told, and that it finds one."""

from __future__ import annotations

import math
import statistics
from typing import Any, Literal

import pytest

from sweep.config.models import SearchSpaceConfig
from sweep.pareto import front_of
from sweep.search_space import SearchSpace
from sweep.searcher.proposer import Outcome, Proposer
from sweep.trial import Finished, Flags, Score, TrialKind, TrialSpec, TrialStatus
from sweep.wire import finished_from_result, finished_to_result

UNIT: dict[str, Any] = {
    "x": {"type": "float", "low": 0.0, "high": 1.0},
    "y": {"type": "float", "low": 0.0, "high": 1.0},
}
METRICS = ("p95_ttft_ms", "p95_tpot_ms")


def proposer(seed: int = 1, sampler: Literal["tpe", "random"] = "tpe", front: int = 2) -> Proposer:
    config = SearchSpaceConfig.model_validate({"parameters": UNIT, "constraints": ()})
    space = SearchSpace.from_config(config, {})
    return Proposer(space, seed=seed, sampler=sampler, slo_names=("p95_e2el_ms",), front=front)


def point(flags: Flags) -> tuple[float, float]:
    x, y = flags["x"], flags["y"]
    assert isinstance(x, float)
    assert isinstance(y, float)
    return x, y


def trade(flags: Flags) -> Outcome:
    """x trades one metric for the other, y is bad for both: the front is y = 0. Above x = 0.8 an SLO breaks."""
    x, y = point(flags)
    return Outcome("complete", 1 + y, {"p95_e2el_ms": x / 0.8 - 1}, (0.5 + x + y, 1.5 - x + y))


def search(proposer: Proposer, trials: int) -> list[Flags]:
    tried: list[Flags] = []
    for number in range(1, trials + 1):
        flags = proposer.propose(number)
        assert flags is not None
        proposer.tell(number, flags, trade(flags))
        tried.append(flags)
    return tried


def test_each_trial_is_told_as_its_ratios() -> None:
    found = proposer()
    flags: list[Flags] = [{"x": 0.1 * n, "y": 0.5} for n in range(8)]
    kept, missed = {"p95_e2el_ms": -0.5}, {"p95_e2el_ms": 1.0}
    found.tell(0, flags[0], Outcome("complete", 1.0, kept, (1.0, 1.0)))
    found.tell(1, flags[1], Outcome("complete", 0.9, missed, (0.5, 2.0)))
    found.tell(2, flags[2], Outcome("infeasible"))
    found.tell(3, flags[3], Outcome("censored", 1.5, kept, (1.2, 1.5)))  # beaten by trial 0 in both
    found.tell(4, flags[4], Outcome("censored", 0.4, kept, (0.4, 0.4)))  # flattered by the rounds it finished
    found.tell(5, flags[5], Outcome("censored", None, kept, None))
    found.tell(6, flags[6], Outcome("ignored"))
    seen = found.seen()
    assert [trial.number - 1 for trial in seen] == [0, 1, 2, 3, 4, 5]
    assert [trial.values for trial in seen] == [[1.0, 1.0], [0.5, 2.0], [1.0, 2.0], [1.2, 1.5], [1.0, 2.0], [1.0, 2.0]]
    assert seen[1].constraints == {"p95_e2el_ms": 0.5, "launch": -1.0}
    assert seen[2].constraints == {"p95_e2el_ms": 1.0, "launch": 1.0}
    first = proposer()
    first.tell(0, flags[0], Outcome("infeasible"))
    assert first.seen()[0].values == [math.inf, math.inf]


@pytest.mark.parametrize("front", [None, (1.0,), (1.0, 1.0, 1.0)])
def test_a_complete_trial_must_say_where_it_stands(front: tuple[float, ...] | None) -> None:
    with pytest.raises(ValueError, match="front of 2 metrics"):
        proposer().tell(0, {"x": 0.1, "y": 0.1}, Outcome("complete", 1.0, {"p95_e2el_ms": 0.0}, front))
    with pytest.raises(ValueError, match="not a number"):
        Outcome("complete", 1.0, {}, (1.0, math.nan))


def test_a_trial_without_a_metric_of_the_front_is_not_heard() -> None:
    found = proposer()
    spec = TrialSpec(0, TrialKind.BASELINE, {"x": 0.1, "y": 0.1})
    score = Score(1.0, {}, {"p95_e2el_ms": 0.0}, (1.0, 1.0))
    for front in (None, score.front):
        told = Finished.of(
            spec,
            TrialStatus.COMPLETE,
            Score(score.value, {}, score.violations, front),
            {},
            None,
            total_s=1.0,
            disturbed=False,
        )
        assert finished_from_result(finished_to_result(told)) == told
        found.hear(told)
        assert len(found.seen()) == (front is not None)


def test_a_proposer_rebuilt_from_the_record_goes_on_the_same() -> None:
    tried = search(proposer(), 18)
    for told in (11, 14, 17):
        rebuilt = proposer()
        for number in reversed(range(1, told + 1)):
            rebuilt.tell(number, tried[number - 1], trade(tried[number - 1]))
        assert rebuilt.propose(told + 1) == tried[told]


def test_the_front_is_approached_along_its_length_and_slos_are_kept() -> None:
    """Against random points of the same seeds: nearer to the front, over all of it, and fewer broken SLOs."""
    away: dict[str, list[float]] = {"tpe": [], "random": []}
    broken: dict[str, int] = {"tpe": 0, "random": 0}
    samplers: tuple[Literal["tpe", "random"], ...] = ("tpe", "random")
    for sampler in samplers:
        for seed in range(3):
            late = [point(flags) for flags in search(proposer(seed, sampler), 40)[15:]]
            away[sampler].append(statistics.fmean(y for _, y in late))
            broken[sampler] += sum(x > 0.8 for x, _ in late)
    assert statistics.fmean(away["tpe"]) < 0.6 * statistics.fmean(away["random"])
    assert broken["tpe"] < broken["random"]
    tried = search(proposer(), 40)
    outcomes = {n: trade(flags) for n, flags in enumerate(tried) if trade(flags).violations["p95_e2el_ms"] <= 0}
    kept = front_of({n: one.front or () for n, one in outcomes.items()}, METRICS)
    places = sorted(point(tried[n])[0] for n in kept)
    assert len(places) >= 4
    assert places[0] < 0.25
    assert places[-1] > 0.55
