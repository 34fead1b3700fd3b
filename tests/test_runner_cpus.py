"""CPUs of its own for each server: which ones, and that they are applied."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from pathlib import Path

import pytest

from sweep.errors import HostNotReady
from sweep.gpu import DeviceInfo
from sweep.process import SupervisedProcess
from sweep.runner.cpus import cores_of, node_of, of_devices, own_cpus, parse_cpus, shares, spelled

# Two sockets of four cores with two threads each, as Linux numbers them.
CORES = tuple((core // 4, frozenset({core, core + 8})) for core in range(8))


def card(index: int) -> DeviceInfo:
    return DeviceInfo(index, f"GPU-{index}", "NVIDIA RTX A6000", 48.0, "570.1", "12.8")


FOUR = tuple(map(card, range(4)))
# Two cards at each socket, not in the order of their numbers.
NODES = dict(zip(FOUR, (1, 0, 1, 0), strict=True))


class TestSets:
    def test_each_device_gets_its_part_of_its_own_node(self) -> None:
        sets = [of_devices([one], FOUR, CORES, NODES) for one in FOUR]
        assert list(map(spelled, sets)) == ["4-5,12-13", "0-1,8-9", "6-7,14-15", "2-3,10-11"]

    def test_a_trial_of_several_devices_has_those_of_each(self) -> None:
        first, second = of_devices(FOUR[:2], FOUR, CORES, NODES), of_devices(FOUR[2:], FOUR, CORES, NODES)
        assert first | second == frozenset(range(16))
        assert not first & second

    @pytest.mark.parametrize("node", [None, 7], ids=["not known", "without a core of ours"])
    def test_where_a_node_says_nothing_all_are_shared_among_all(self, node: int | None) -> None:
        sets = [of_devices([one], FOUR, CORES, {**NODES, FOUR[3]: node}) for one in FOUR]
        assert list(map(spelled, sets)) == ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]

    def test_shares_are_whole_cores_and_as_equal_as_can_be(self) -> None:
        assert list(map(spelled, shares(CORES, 3))) == ["0-1,8-9", "2-4,10-12", "5-7,13-15"]
        assert spelled(shares(CORES, 1)[0]) == "0-15"
        with pytest.raises(HostNotReady, match="8 cores cannot be shared among 9 servers"):
            shares(CORES, 9)

    def test_lists_as_the_kernel_writes_them(self) -> None:
        assert parse_cpus("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
        assert parse_cpus("") == set()
        assert spelled(frozenset(parse_cpus("0-3,8,10-11"))) == "0-3,8,10-11"


class TestMachine:
    def test_cores_and_their_nodes(self, tmp_path: Path) -> None:
        for cpu in range(4):
            place = tmp_path / f"cpu{cpu}"
            (place / "topology").mkdir(parents=True)
            (place / "topology" / "thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
            (place / f"node{1 - cpu % 2}").mkdir()
        assert cores_of({0, 1, 2, 3}, tmp_path) == ((0, frozenset({1, 3})), (1, frozenset({0, 2})))
        assert cores_of({1, 2}, tmp_path) == ((0, frozenset({1})), (1, frozenset({2}))), "of those that may be used"
        assert cores_of({0, 5}, tmp_path / "none") == ((None, frozenset({0})), (None, frozenset({5})))

    @pytest.mark.parametrize(("said", "node"), [("1\n", 1), ("-1\n", None), ("", None)])
    def test_where_a_card_sits(self, tmp_path: Path, said: str, node: int | None) -> None:
        driver, pci = tmp_path / "gpus", tmp_path / "pci"
        for index, bus in enumerate(("0000:3B:00.0", "0000:AF:00.0")):
            (driver / bus).mkdir(parents=True)
            (driver / bus / "information").write_text(f"Model: \t NVIDIA RTX A6000\nGPU UUID: \t GPU-{index}\n")
        (pci / "0000:af:00.0").mkdir(parents=True)
        (pci / "0000:af:00.0" / "numa_node").write_text(said)
        assert node_of(card(1), driver, pci) == node
        instance = dataclasses.replace(card(9), uuid="MIG-x", parent_uuid="GPU-1")
        assert node_of(instance, driver, pci) == node
        assert node_of(card(2), driver, pci) is None
        assert node_of(card(0), driver, pci) is None


@pytest.mark.skipif(len(cores_of(os.sched_getaffinity(0))) < 2, reason="one core only")
def test_two_servers_at_a_time_have_cpus_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = os.sched_getaffinity(0)
    allowed: dict[str, set[int]] = {}
    both = threading.Barrier(2)

    def one(name: str) -> None:
        with own_cpus((), (), 2) as cpus:
            server = SupervisedProcess.start(
                [sys.executable, "-c", "import signal; signal.pause()"],
                env=dict(os.environ),
                log_path=tmp_path / f"{name}.log",
                record_path=tmp_path / f"{name}.json",
            )
            try:
                status = Path(f"/proc/{server.pid}/status").read_text()
                allowed[name] = parse_cpus(status.partition("Cpus_allowed_list:")[2].splitlines()[0])
                assert allowed[name] == cpus
                both.wait(300)
            finally:
                server.stop()

    other = threading.Thread(target=one, args=("b",))
    other.start()
    one("a")
    other.join()
    assert allowed["a"]
    assert allowed["b"]
    assert not allowed["a"] & allowed["b"]
    assert os.sched_getaffinity(0) == before


def test_a_share_too_many_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    taken = "all 1 shares of this machine's CPUs are taken"
    with own_cpus((), (), 1), pytest.raises(HostNotReady, match=taken), own_cpus((), (), 1):
        pass
    with own_cpus((), (), 1) as cpus:
        assert cpus == os.sched_getaffinity(0)
