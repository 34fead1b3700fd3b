"""Which nodes take part in a study, and what a trial asks of one."""

from __future__ import annotations

import pytest
from node_facts import facts, seen

from sweep.cluster import ClusterNode, Needs, room_for
from sweep.errors import HostError
from sweep.fleet import choose

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
        with pytest.raises(HostError, match=r"64 GiB of memory and 1 nvme, but .* 4, 8, 32 GiB and 0;"):
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
