"""Which nodes take part in a study, and what a trial asks of one."""

from __future__ import annotations

import json

import pytest
from node_facts import FINGERPRINT, WANTED, facts, seen

from sweep.cluster import ClusterNode, Needs, NodeLook, NodeLooks, room_for
from sweep.errors import HostError
from sweep.fleet import Fleet, check_accelerator, choose, places_for, without_devices
from sweep.gpu import DeviceMemory
from sweep.objective import Objective
from sweep.trial import Finished, TrialKind, TrialSpec, TrialStatus
from sweep.wire import PLACES, Place, place_from_config, places_to_config

FOUR = Needs(4, 8.0)


def node(name: str, **have: float) -> ClusterNode:
    return ClusterNode(f"id-{name}", name, have)


class TestRoom:
    def test_a_trial_takes_its_resources_from_one_node(self) -> None:
        two = [node("a", GPU=2, CPU=64), node("b", GPU=2, CPU=64)]
        with pytest.raises(HostError) as error:
            room_for(FOUR, None, two)
        assert str(error.value) == (
            "a trial needs 4 GPUs and 8 CPUs of one node, but of these the nodes have: a 2 and 64; b 2 and 64; "
            "see resources in the study file"
        )

    def test_each_node_holds_what_fits_it(self) -> None:
        nodes = [node("a", GPU=8, CPU=64), node("b", GPU=8, CPU=12), node("c", GPU=3, CPU=64)]
        assert room_for(FOUR, None, nodes) == 3
        assert room_for(FOUR, 2, nodes) == 2

    def test_without_devices_one_a_node_unless_more_are_asked_for(self) -> None:
        nodes = [node("a", CPU=8), node("b", CPU=8)]
        assert room_for(Needs(0, 1.0), None, nodes) == 2
        assert room_for(Needs(0, 1.0), 5, nodes) == 5

    def test_memory_and_further_resources(self) -> None:
        needs = Needs(1, 0.5, 64.0, {"nvme": 1.0})
        assert needs.bundle() == {"CPU": 0.5, "GPU": 1.0, "memory": 64 * 2.0**30, "nvme": 1.0}
        assert needs.fits({"CPU": 8, "GPU": 4, "memory": 200 * 2.0**30, "nvme": 2}) == 2
        with pytest.raises(
            HostError, match=r"64 GiB of memory and 1 nvme, but a has 4 GPUs, 8 CPUs, 32 GiB of memory and 0 nvme;"
        ):
            room_for(needs, None, [node("a", CPU=8, GPU=4, memory=32 * 2.0**30)])

    def test_shares_of_a_cpu_add_up(self) -> None:
        assert Needs(0, 0.1).fits({"CPU": 1}) == 10

    def test_many_nodes_make_a_short_line(self) -> None:
        with pytest.raises(HostError, match="and 94 nodes with less; see"):
            room_for(FOUR, None, [node(f"n{number:03}", GPU=1, CPU=1) for number in range(100)])


class TestChoice:
    def test_nodes_of_one_fingerprint(self) -> None:
        looks = [seen("a", driver="560"), seen("b"), seen("c"), seen("d", vllm="0.31.0")]
        choice = choose(looks, FOUR, None)
        assert [one.node.name for one in choice.taking_part] == ["b", "c"]
        assert choice.left_out == {
            "a": "of another fingerprint: driver 560 instead of 570.1",
            "d": "vLLM 0.31.0, but the study was checked with 0.32.0; install 0.32.0 there",
        }

    def test_the_group_that_holds_more_trials(self) -> None:
        choice = choose([seen("a", driver="560"), seen("b", driver="560"), seen("c", gpus=16)], FOUR, None)
        assert [one.node.name for one in choice.taking_part] == ["c"]

    def test_of_equals_the_first_by_name_whatever_the_order(self) -> None:
        looks = [seen("b", driver="560"), seen("a")]
        for order in (looks, looks[::-1]):
            assert [one.node.name for one in choose(order, FOUR, None).taking_part] == ["a"]

    def test_one_that_joins_later_must_be_like_the_others(self) -> None:
        choice = choose([seen("late", gpus=64, driver="560")], FOUR, None, like=facts())
        assert choice.taking_part == ()
        assert choice.left_out == {"late": "of another fingerprint: driver 560 instead of 570.1"}

    def test_the_devices_that_are_asked_for(self) -> None:
        looks = [seen("a"), seen("b", gpus=4, driver="570.1")]
        assert len(choose(looks, FOUR, "a6000").taking_part) == 2
        assert choose(looks, FOUR, "H100").left_out["a"] == (
            "resources.accelerator is H100, its devices are NVIDIA RTX A6000"
        )


class TestFleet:
    """A fleet of made-up nodes; how nodes come and go is tested on a real cluster."""

    def fleet(self, *looks: NodeLook, said: list[str] | None = None) -> Fleet:
        words: list[str] = [] if said is None else said
        made = Fleet(NodeLooks(WANTED, None), FOUR, None, words.append, 0.0)
        made.take(looks)
        return made

    def test_what_takes_part_and_what_does_not_is_said(self) -> None:
        said: list[str] = []
        fleet = self.fleet(seen("a"), seen("b", gpus=8), seen("c", driver="560"), said=said)
        assert fleet.nodes == {"a": 1, "b": 2}
        assert said == ["node c is left out: of another fingerprint: driver 560 instead of 570.1"]

    def test_a_node_that_keeps_failing_is_left_out_and_named(self) -> None:
        said: list[str] = []
        fleet = self.fleet(seen("a"), seen("b"), said=said)
        fleet.failed("a", 3, "the worker of trial 3 died")
        assert fleet.lost_on(3) == {"a"}
        fleet.worked("a")
        fleet.failed("a", 4, "x")
        assert set(fleet.nodes) == {"a", "b"}, "not in a row"
        fleet.failed("a", 5, "no driver")
        assert set(fleet.nodes) == {"b"}
        assert said == ["node a is left out: 2 trials in a row failed there, the last one: no driver"]
        fleet.failed("b", 6, "x")
        fleet.failed("b", 7, "x")
        assert set(fleet.nodes) == {"b"}, "the last one stays: then it is not the node"

    def test_the_fingerprint_is_that_of_the_nodes(self) -> None:
        known = without_devices(FINGERPRINT)
        assert known.gpus is None
        assert known.hostname is None
        found = self.fleet(seen("a", gpus=8), seen("b")).fingerprint(known)
        assert found.gpus == ("NVIDIA RTX A6000",) * 4
        assert (found.driver, found.hostname) == ("570.1", None)
        alone = self.fleet(seen("a")).fingerprint(known)
        assert alone.hostname == "n1"
        assert alone.differences(found).incomparable == ()


class TestPlaces:
    def places(self, spec: TrialSpec, fleet: Fleet, finished: dict[int, Finished]) -> dict[str, Place]:
        found = places_for(spec, fleet, finished, Objective.of(None, {"p95_ttft_ms": 1.0}, {}, "mean", ()))
        return {place.name: place for place in found.values()}

    def done(self, number: int, kind: TrialKind, node: str, ttft_ms: float) -> Finished:
        metrics = {"p95_ttft_ms": ttft_ms}
        return Finished(number, kind, {}, TrialStatus.COMPLETE, 1.0, metrics=metrics, node=node)

    def test_where_a_trial_may_run_and_what_it_is_scored_against(self) -> None:
        fleet = TestFleet().fleet(seen("a"), seen("b"), seen("c", shared=False), seen("d"))
        finished = {
            0: self.done(0, TrialKind.BASELINE, "a", 10.0),
            1: self.done(1, TrialKind.NODE, "b", 10.2),
            2: self.done(2, TrialKind.NODE, "c", 14.0),
        }
        found = self.places(TrialSpec(5, TrialKind.SEARCH, {}), fleet, finished)
        assert list(found) == ["a", "b", "c"], "d has no baseline yet"
        assert [place.baseline for place in found.values()] == [None, {"p95_ttft_ms": 10.2}, {"p95_ttft_ms": 14.0}]
        assert [place.raced for place in found.values()] == [True, True, False], "c is slower than what races allow for"
        assert [place.shared for place in found.values()] == [True, True, False]
        assert all(place.others for place in found.values())

    def test_not_again_where_it_was_lost_unless_nothing_else_is_left(self) -> None:
        fleet = TestFleet().fleet(seen("a"), seen("b"))
        finished = {
            0: self.done(0, TrialKind.BASELINE, "a", 10.0),
            1: self.done(1, TrialKind.NODE, "b", 10.0),
        }
        spec = TrialSpec(5, TrialKind.SEARCH, {})
        fleet.failed("a", 5, "x")
        assert list(self.places(spec, fleet, finished)) == ["b"]
        fleet.failed("b", 5, "x")
        assert list(self.places(spec, fleet, finished)) == ["a", "b"]

    def test_a_trial_that_is_pinned(self) -> None:
        fleet = TestFleet().fleet(seen("a"), seen("b"))
        (place,) = self.places(TrialSpec(3, TrialKind.NODE, {}, node="b"), fleet, {}).values()
        assert (place.name, place.others) == ("b", False)
        assert self.places(TrialSpec(3, TrialKind.DRIFT, {}, node="gone"), fleet, {}) == {}

    def test_it_travels_as_plain_values(self) -> None:
        fleet = TestFleet().fleet(seen("a", resting=(DeviceMemory(0, 0.5), DeviceMemory(1, None, 2))))
        spec = TrialSpec(0, TrialKind.BASELINE, {})
        found = places_for(spec, fleet, {}, Objective.of(None, {"p95_ttft_ms": 1.0}, {}, "mean", ()))
        config = {PLACES: json.loads(json.dumps(places_to_config(found)))}
        assert place_from_config(config, "id-a") == found["id-a"]
        assert place_from_config(config, "id-b") is None
        assert found["id-a"].resting == ((0, 0.5, None), (1, None, 2))


def test_the_devices_of_the_machine_it_is_typed_on() -> None:
    check_accelerator(None, [])
    check_accelerator("a6000", ["NVIDIA RTX A6000"] * 2)
    with pytest.raises(HostError) as error:
        check_accelerator("H100", ["NVIDIA RTX A6000"] * 2)
    assert "resources.accelerator is H100, the devices of this machine are NVIDIA RTX A6000; " in str(error.value)
    with pytest.raises(HostError, match="are none; "):
        check_accelerator("H100", [])
