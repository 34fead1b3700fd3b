from __future__ import annotations

import importlib.util
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from ray.tune.search import Searcher

from sweep.config.models import SearchSpaceConfig
from sweep.plan import StudyPlan
from sweep.search_space import SearchSpace
from sweep.searcher.proposer import Outcome, Proposer
from sweep.searcher.tune_searcher import TuneSearcher
from sweep.trial import Finished, Flag, Flags, TrialKind, TrialSpec, TrialStatus
from sweep.wire import RESULT, finished_to_result

UNIT: dict[str, Any] = {
    "x": {"type": "float", "low": 0.0, "high": 1.0},
    "y": {"type": "float", "low": 0.0, "high": 1.0},
}
NUMBERS: dict[str, Any] = {
    "gpu-memory-utilization": {"type": "float", "low": 0.6, "high": 0.95, "step": 0.05},
    "max-num-seqs": {"type": "int", "low": 8, "high": 256, "log": True},
    "max-num-batched-tokens": {"type": "choice", "values": [512, 128, 2048]},
}
MIXED: dict[str, Any] = {
    **NUMBERS,
    "kv-cache-dtype": {"type": "choice", "values": ["auto", "fp8"]},
    "swap": {"type": "float", "low": 0.1, "high": 10.0, "log": True, "or_null": True},
}
FRONT = {"nsga2": 2}
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="gp needs torch")
LEARNERS = ["tpe", "cmaes", "nsga2", pytest.param("gp", marks=(needs_torch, pytest.mark.night))]


def space(parameters: dict[str, Any], *constraints: str) -> SearchSpace:
    config = SearchSpaceConfig.model_validate({"parameters": parameters, "constraints": constraints})
    return SearchSpace.from_config(config, {})


def number(flags: Flags, name: str) -> float:
    value = flags[name]
    assert isinstance(value, (int, float))
    return value


def run(proposer: Proposer, trials: int, outcome: Callable[[Flags], Outcome]) -> list[tuple[dict[str, Flag], Outcome]]:
    record = []
    for trial in range(1, trials + 1):
        flags = proposer.propose(trial)
        assert flags is not None
        record.append((flags, outcome(flags)))
        proposer.tell(trial, *record[-1])
    return record


def half_fails(flags: Flags) -> Outcome:
    """Where x is above 0.5 nothing starts."""
    x, y = number(flags, "x"), number(flags, "y")
    value = 0.5 + abs(x - 0.25) + (y - 0.3) ** 2
    return Outcome("infeasible") if x > 0.5 else Outcome("complete", value, front=(value, 0.5 + y))


def failing(sampler: str, seed: int, trials: int = 44) -> list[bool]:
    proposer = Proposer(space(UNIT), seed=seed, sampler=sampler, front=FRONT.get(sampler, 0))
    proposer.tell(0, {"x": 0.2, "y": 0.9}, Outcome("complete", 1.0, front=(1.0, 1.4)))
    return [outcome.kind == "infeasible" for _, outcome in run(proposer, trials, half_fails)]


@pytest.mark.parametrize("sampler", LEARNERS)
def test_a_sampler_learns_where_nothing_starts(sampler: str) -> None:
    # A Gaussian process takes a second for each proposal, and learns sooner.
    runs = [failing(sampler, 1, 17)] if sampler == "gp" else [failing(sampler, seed) for seed in range(3)]
    late = statistics.mean(statistics.mean(one[12 if sampler == "gp" else 30 :]) for one in runs)
    # Chance is a half, and what is drawn before a sampler is asked is chance.
    assert late < 0.4
    if sampler in ("tpe", "gp"):
        assert late < 0.3


def mixed_outcome(flags: Flags) -> Outcome:
    seqs = number(flags, "max-num-seqs")
    if number(flags, "gpu-memory-utilization") > 0.85:
        return Outcome("infeasible")
    return Outcome("complete", 1 + 1 / seqs, {"p95_ttft_ms": 40 / seqs - 1}, (1 + 1 / seqs, 2 - 1 / seqs))


# A Gaussian process is fitted again for each point that breaks the constraint: its own is broken rarely.
PARAMETERS = {"cmaes": NUMBERS, "gp": {name: MIXED[name] for name in MIXED if name != "max-num-batched-tokens"}}
CONSTRAINTS = {"gp": "max-num-seqs >= 9"}


def mixed(sampler: str) -> Proposer:
    return Proposer(
        space(PARAMETERS.get(sampler, MIXED), CONSTRAINTS.get(sampler, "max-num-batched-tokens >= max-num-seqs")),
        seed=4,
        sampler=sampler,
        slo_names=("p95_ttft_ms",),
        front=FRONT.get(sampler, 0),
    )


@pytest.mark.parametrize("sampler", LEARNERS)
def test_a_sampler_rebuilt_from_the_record_goes_on_the_same(sampler: str) -> None:
    trials = 12 if sampler == "gp" else 24
    first = {**dict.fromkeys(PARAMETERS.get(sampler, MIXED), None), "gpu-memory-utilization": 0.9}
    proposer = mixed(sampler)
    proposer.tell(0, first, Outcome("infeasible"))
    record = run(proposer, trials, mixed_outcome)
    assert {outcome.kind for _, outcome in record} == {"complete", "infeasible"}
    for told in (11,) if sampler == "gp" else range(9, trials, 3):
        rebuilt = mixed(sampler)
        for trial in reversed(range(told)):
            rebuilt.tell(trial + 1, *record[trial])
        rebuilt.tell(0, first, Outcome("infeasible"))
        pending = [record[0][0]]
        assert rebuilt.propose(told + 1) == record[told][0]
        assert rebuilt.propose(told + 1, pending) == rebuilt.propose(told + 1, pending)


def test_another_seed_is_another_search() -> None:
    for sampler in ("cmaes", "nsga2"):
        one, two = failing(sampler, 1), failing(sampler, 2)
        assert one == failing(sampler, 1)
        assert one != two


def test_cma_goes_downhill() -> None:
    """Away from a start in the corner, to a bowl at the other side of the space."""
    proposer = Proposer(space(UNIT), seed=2, sampler="cmaes")
    proposer.tell(0, {"x": 0.9, "y": 0.9}, Outcome("complete", 2.0))

    def bowl(flags: Flags) -> Outcome:
        return Outcome("complete", 1 + (number(flags, "x") - 0.2) ** 2 + (number(flags, "y") - 0.2) ** 2)

    record = run(proposer, 60, bowl)
    values = [outcome.value or 9.0 for _, outcome in record]
    assert statistics.mean(values[40:]) < statistics.mean(values[:15]) - 0.1


class Listening:
    """A proposer that notes what it had heard whenever it was asked."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        self.asked: list[tuple[int, list[int]]] = []

    def propose(self, number: int, pending: Sequence[Flags]) -> Flags | None:
        assert not pending
        self.asked.append((number, list(self.heard)))
        return {"x": number}

    def ended(self, number: int) -> str:
        return f"no trial {number}"

    def hear(self, finished: Finished) -> None:
        self.heard.append(finished.number)


def test_one_trial_at_a_time_is_proposed_with_the_one_before_known() -> None:
    """However far ahead Ray asks: it keeps one trial in waiting while another one runs."""
    proposer = Listening()
    plan = StudyPlan(proposer, 5, {"x": 0})

    def never(_: TrialSpec) -> Finished:
        raise AssertionError("nothing was lost")

    searcher = TuneSearcher(plan, give_up=never, cut=never)
    for number in range(5):
        config = searcher.suggest(f"ray-{number}")
        assert isinstance(config, dict)
        assert [searcher.suggest(f"ray-{number + 1}") for _ in range(3)] == [None] * 3
        kind = TrialKind.SEARCH if number else TrialKind.BASELINE
        finished = Finished(number, kind, {"x": number}, TrialStatus.COMPLETE, 1.0, metrics={"p95_ttft_ms": 1.0})
        searcher.on_trial_complete(f"ray-{number}", {RESULT: finished_to_result(finished)})
    assert proposer.asked == [(number, list(range(number))) for number in range(1, 5)]
    assert searcher.suggest("ray-5") == Searcher.FINISHED


@needs_torch
@pytest.mark.night  # imports torch
def test_a_gaussian_process_proposes_the_same_anew_with_nulls_failures_and_what_was_never_measured() -> None:
    """The first trials failed, so their value is infinite until one is complete; some have no number at all."""
    few = space({"x": UNIT["x"], "swap": MIXED["swap"]})
    outcomes = [Outcome("infeasible"), *(Outcome("complete", 1 + n / 9) for n in range(9)), Outcome("censored")]

    def asked() -> dict[str, Flag] | None:
        proposer, rng = Proposer(few, seed=4, sampler="gp"), random.Random(5)
        for trial, outcome in enumerate(outcomes):
            proposer.tell(trial, {**few.draw(rng), "swap": None if trial % 3 else 1.0}, outcome)
        return proposer.propose(11, [few.draw(rng)])

    first = asked()
    assert first is not None
    assert few.contains(first)
    assert asked() == first
