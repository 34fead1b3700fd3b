"""The gate within a search: what it refuses costs no launch, is told once, and is the same when a study goes on."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from test_gate import MIDDLE, Night, knowledge

from sweep.config import SearchSpaceConfig
from sweep.gate import Gatekeeper, Outlook, Sums, learn, outlook, tally
from sweep.gate.knowledge import Knowledge
from sweep.guide import Guides, PassedOver
from sweep.memory import Unknown
from sweep.search_space import SearchSpace
from sweep.searcher.proposer import Proposer
from sweep.trial import Finished, Flags, TrialKind, TrialStatus

TRIALS = 26
PARAMETERS: dict[str, Any] = {
    "gpu-memory-utilization": {"type": "float", "low": 0.3, "high": 0.98, "step": 0.02},
    "max-num-seqs": {"type": "choice", "values": [16, 64, 256]},
    "max-num-batched-tokens": {"type": "choice", "values": [128, 1024, 8192]},
    "block-size": {"type": "choice", "values": [8, 16, 24, 32]},
}
BASELINE: Flags = {**MIDDLE, "block-size": 16, "max-num-batched-tokens": 1024}  # type: ignore[dict-item]


def space(parameters: dict[str, Any] = PARAMETERS) -> SearchSpace:
    return SearchSpace.from_config(SearchSpaceConfig.model_validate({"parameters": parameters}), {})


class Search:
    """Proposals one after the other, each launched in a simulated night; may be ended and begun again at any trial."""

    def __init__(self, sampler: str, *, share: float = 0.1, known: Knowledge | None = None) -> None:
        self.sampler, self.share = sampler, share
        self.known = knowledge() if known is None else known
        self.night = Night(11)
        self.passed: list[PassedOver] = []
        self.record: dict[int, Finished] = {}
        self.begin()

    def begin(self) -> None:
        gate = Gatekeeper(self.known, seed=3, audit_share=self.share)
        self.proposer = Proposer(
            space(), seed=3, sampler=self.sampler, guide=Guides(gate=gate), on_passed_over=self.passed.append
        )
        for point in list(self.passed):
            self.proposer.recall(point)
        for ended in self.record.values():
            self.proposer.hear(ended)

    def run(self, until: int) -> None:
        for number in range(len(self.record), until):
            flags = BASELINE if number == 0 else self.proposer.propose(number)
            assert flags is not None
            self.hear(number, flags)

    def hear(self, number: int, flags: Flags) -> None:
        ended = self.night.launch(number, {name.replace("-", "_"): value for name, value in flags.items()})
        if number == 0:
            ended = Finished(0, TrialKind.BASELINE, flags, TrialStatus.COMPLETE, 1.0, engine_config=ended.engine_config)
        self.record[number] = ended
        self.proposer.hear(ended)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_refused_candidates_cost_no_launch_and_a_search_that_goes_on_is_the_same(
    sampler: Literal["tpe", "random"],
) -> None:
    whole = Search(sampler)
    whole.run(TRIALS)
    stopped = Search(sampler)
    for end in (1, 4, 15, TRIALS):
        stopped.begin()
        stopped.run(end)
    assert {number: one.flags for number, one in stopped.record.items()} == {
        number: one.flags for number, one in whole.record.items()
    }
    assert stopped.passed == whole.passed
    refused = [one for one in whole.passed if not one.audited]
    launched = [dict(one.flags) for one in whole.record.values()]
    assert len(refused) > 5
    assert all(dict(one.flags) not in launched or later_launched(whole, one) for one in refused)
    assert all(dict(one.flags) == dict(whole.record[one.number].flags) for one in whole.passed if one.audited)
    assert len(whole.record) == TRIALS


def later_launched(search: Search, passed: PassedOver) -> bool:
    """Whether a refused point was launched for another trial: the gate had learned better, or to be checked."""
    return any(number != passed.number and one.flags == passed.flags for number, one in search.record.items())


def test_a_search_with_a_gate_has_fewer_failures_than_one_without() -> None:
    def failures(known: Knowledge) -> int:
        search = Search("random", share=0.0, known=known)
        search.run(TRIALS)
        return sum(one.status is TrialStatus.INFEASIBLE for one in search.record.values())

    with_gate, without = failures(knowledge()), failures(Knowledge(Unknown("no model"), Unknown("no device")))
    assert with_gate <= 0.4 * without


def test_precision_comes_from_the_audits_of_a_search() -> None:
    search = Search("random", share=0.5)
    search.run(TRIALS)
    found = tally(search.passed, search.record)
    assert found.audited >= 3
    assert found.precision is not None
    assert found.precision > 0.9


def test_a_search_of_which_all_is_refused_ends() -> None:
    endless = knowledge(fixed={"tensor-parallel-size": 4, "max-model-len": 2_000_000})
    gate = Gatekeeper(endless, seed=3, audit_share=0.0)
    passed: list[PassedOver] = []
    few = space({"max-num-seqs": PARAMETERS["max-num-seqs"], "block-size": PARAMETERS["block-size"]})
    proposer = Proposer(few, seed=3, guide=Guides(gate=gate), on_passed_over=passed.append)
    assert proposer.propose(1) is None
    assert passed
    assert proposer.ended(1) == (
        "every combination of the search space is known or refused as unable to work (12 refused)"
    )
    endless_space = space({"max-num-seqs": PARAMETERS["max-num-seqs"], "gpu-memory-utilization": {
        "type": "float", "low": 0.3, "high": 0.9}})  # fmt: skip
    proposer = Proposer(endless_space, seed=3, sampler="random", guide=Guides(gate=gate))
    assert proposer.propose(1) is None
    assert proposer.ended(1) == "no new combination that may be launched was found in 5,000 random draws"


def test_the_outlook_of_a_space() -> None:
    def look(known: Knowledge) -> Outlook:
        return outlook(learn(Sums(known), ()), space(), BASELINE, seed=1)

    found = look(knowledge())
    assert found == look(knowledge())
    assert found.judged == 35 * 3 * 3 * 4
    assert dict(found.refused_by).keys() == {"kv_cache", "batched_tokens"}
    assert 0.1 < found.refused_share < 0.4
    assert found.most is not None
    assert found.least is not None
    assert found.most[0]["gpu-memory-utilization"] == 0.98
    assert (found.least[0]["gpu-memory-utilization"], found.least[0]["max-num-seqs"]) == (0.3, 256)
    text = "\n".join(found.lines())
    assert "memory of the baseline, a device: 42.75 GiB = 15.26 weights + " in text
    assert "starts with 0 %" in text
    assert "the gate would refuse" in text
    nothing = look(Knowledge(Unknown("no model here"), Unknown("no device")))
    assert (nothing.baseline, nothing.most, nothing.refused_share) == (None, None, 0.0)
    assert nothing.lines() == [
        "memory is not known, and no ground for a refusal: no model here",
        "the gate would refuse 0 % of the space",
    ]
