"""What the search is told of trials that were stopped early."""

from __future__ import annotations

from typing import Any

import pytest

from sweep.config.models import SearchSpaceConfig
from sweep.search_space import SearchSpace
from sweep.searcher.proposer import Outcome, Proposer
from sweep.trial import Finished, TrialKind, TrialStatus

PARAMETERS: dict[str, Any] = {"a": {"type": "int", "low": 1, "high": 50}}


def proposer(*slo_names: str) -> Proposer:
    config = SearchSpaceConfig.model_validate({"parameters": PARAMETERS, "constraints": ()})
    return Proposer(SearchSpace.from_config(config, {}), seed=1, slo_names=slo_names)


def value_of(found: Proposer, number: int) -> float | None:
    return next(trial.value for trial in found.seen() if trial.number == number + 1)


@pytest.mark.parametrize(
    ("own", "told"),
    [
        (1.7, 1.7),
        (0.5, 0.8),  # flattered by the rounds it finished: no better than the best that was measured to its end
        (None, 1.2),  # nothing was finished: the worst of them
    ],
)
def test_a_stopped_trial_is_never_better_than_the_best(own: float | None, told: float) -> None:
    found = proposer()
    for number, score in enumerate((1.0, 0.8, 1.2)):
        found.tell(number, {"a": number + 1}, Outcome("complete", score))
    found.tell(3, {"a": 9}, Outcome("censored", own))
    found.tell(4, {"a": 10}, Outcome("complete", 0.1))  # later: it changes nothing
    assert value_of(found, 3) == told
    assert found.propose(5, []) not in ({"a": 9}, {"a": 10})


def test_its_slos_are_told_as_far_as_they_were_measured() -> None:
    found = proposer("p95_ttft_ms")
    found.tell(0, {"a": 1}, Outcome("complete", 1.0, {"p95_ttft_ms": -0.5}))
    found.tell(1, {"a": 2}, Outcome("censored", 3.0, {"p95_ttft_ms": 3.0}))
    found.tell(2, {"a": 3}, Outcome("censored", None, {"p95_ttft_ms": float("inf")}))
    misses = [trial.constraints["p95_ttft_ms"] for trial in found.seen()]
    assert misses == [-0.5, 0.75, 1.0]
    with pytest.raises(ValueError, match="p95_ttft_ms"):
        found.tell(3, {"a": 4}, Outcome("censored", 3.0))


def test_hearing_of_a_stopped_trial() -> None:
    found = proposer("p95_ttft_ms")
    kept = {"p95_ttft_ms": -0.1}
    found.hear(Finished(0, TrialKind.BASELINE, {"a": 1}, TrialStatus.COMPLETE, 1.0, kept))
    found.hear(Finished(1, TrialKind.SEARCH, {"a": 2}, TrialStatus.CENSORED, 2.0, kept))
    found.hear(Finished(2, TrialKind.SEARCH, {"a": 3}, TrialStatus.CENSORED, 2.0, kept, disturbed=True))
    found.hear(Finished(3, TrialKind.SEARCH, {"a": 4}, TrialStatus.CENSORED))
    assert [(trial.number, trial.value) for trial in found.seen()] == [(1, 1.0), (2, 2.0)]
