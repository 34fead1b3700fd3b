"""`CUDA_VISIBLE_DEVICES` by CUDA's rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweep.gpu.values import DeviceInfo
from sweep.gpu.visible import select_visible


def card(index: int, uuid: str, name: str = "NVIDIA RTX A6000") -> DeviceInfo:
    return DeviceInfo(index, uuid, name, 48.0, "550.54.14", "12.4")


def instance(of: DeviceInfo, number: int, uuid: str) -> DeviceInfo:
    return replace(
        of,
        uuid=uuid,
        mig=True,
        mig_index=number,
        parent_uuid=of.uuid,
        gpu_instance_id=7 + number,
        compute_instance_id=0,
    )


CARDS = (card(0, "GPU-aa11-0"), card(1, "GPU-aa22-1"), card(2, "GPU-bb33-2"), card(3, "GPU-cc44-3"))
SPLIT = card(1, "GPU-dd55-1")
MIXED = (CARDS[0], instance(SPLIT, 0, "MIG-01ab"), instance(SPLIT, 2, "MIG-02cd"), CARDS[2])


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("0,1,2,3", [0, 1, 2, 3]),
        ("2,1", [2, 1]),
        (" 3 , 0 ", [3, 0]),
        ("1gpu,+2", [1, 2]),
        ("GPU-bb33-2", [2]),
        ("GPU-b", [2]),
        ("gpu-CC44,GPU-aa1", [3, 0]),
        ("0,GPU-bb", [0, 2]),
        ("", []),
        ("  ", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,2,-1,1", [0, 2]),
    ],
)
def test_what_cuda_would_see(value: str | None, indices: list[int]) -> None:
    chosen, warning = select_visible(value, CARDS)
    assert [device.index for device in chosen] == indices
    assert warning is None


@pytest.mark.parametrize(
    ("value", "indices", "said"),
    [
        ("0,9,1", [0], "'9' names no device here"),
        ("all", [], "'all' names no device here"),
        ("GPU-aa", [], "'GPU-aa' fits several devices"),
        ("3,GPU-ffff", [3], "'GPU-ffff' names no device here"),
        ("MIG-01", [], "'MIG-01' names no device here"),
        ("0,,1", [0], "'' names no device here"),
        ("1,2,1", [], "names GPU 1 twice"),
        ("1,GPU-aa2", [], "names GPU 1 twice"),
    ],
)
def test_a_value_that_misleads_is_said(value: str, indices: list[int], said: str) -> None:
    chosen, warning = select_visible(value, CARDS)
    assert [device.index for device in chosen] == indices
    assert warning is not None
    assert said in warning
    assert repr(value) in warning
    assert "\n" not in warning


@pytest.mark.parametrize(
    ("value", "uuids"),
    [
        ("MIG-02cd", ["MIG-02cd"]),
        ("MIG-02", ["MIG-02cd"]),
        ("MIG-GPU-dd55-1/9/0", ["MIG-02cd"]),
        ("MIG-GPU-dd55-1/7/0,0", ["MIG-01ab", "GPU-aa11-0"]),
        ("1", ["MIG-01ab"]),
        ("GPU-dd", ["MIG-01ab"]),
        ("2,MIG-01ab", ["GPU-bb33-2", "MIG-01ab"]),
        (None, ["GPU-aa11-0", "MIG-01ab", "MIG-02cd", "GPU-bb33-2"]),
    ],
)
def test_instances(value: str | None, uuids: list[str]) -> None:
    chosen, warning = select_visible(value, MIXED)
    assert [device.uuid for device in chosen] == uuids
    assert warning is None


@pytest.mark.parametrize("value", ["MIG-GPU-dd55-1/8/0", "MIG-GPU-ee/7/0", "MIG-0"])
def test_an_instance_that_is_not_there_or_not_one(value: str) -> None:
    chosen, warning = select_visible(value, MIXED)
    assert chosen == ()
    assert warning is not None


def test_indices_among_unlike_cards_need_an_order() -> None:
    cards = (CARDS[0], card(1, "GPU-ee66-1", "NVIDIA T1000"))
    assert select_visible("1", cards, device_order="PCI_BUS_ID")[1] is None
    assert select_visible("GPU-ee", cards)[1] is None
    chosen, warning = select_visible("1", cards)
    assert chosen == cards[1:]
    assert warning is not None
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in warning
