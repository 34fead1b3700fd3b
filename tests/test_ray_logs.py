"""The files that TensorBoard opens."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from sweep.event_file import crc32c, event_file
from sweep.ray_logs import TensorBoardFiles, write_events
from sweep.study_folder import StudyFolder
from sweep.trial import Finished, TrialKind, TrialStatus
from sweep.wire import RESULT, ROUND, finished_to_result

MEASURED = Finished(
    3,
    TrialKind.SEARCH,
    {"max-num-seqs": 64, "block-size": None, "enable-chunked-prefill": True, "dtype": "auto"},
    TrialStatus.COMPLETE,
    0.875,
    metrics={"p95_ttft_ms": 120.5, "p95_ttft_ms@8": 130.5, "goodput_per_s": None},
)
NAME = "events.out.tfevents.sweep"


def records(content: bytes) -> list[bytes]:
    """Of a file: length, checksum, event, checksum."""
    place, found = 0, []
    while place < len(content):
        (size,) = struct.unpack_from("<Q", content, place)
        found.append(content[place + 12 : place + 12 + size])
        place += 12 + size + 4
    return found


def report(folder: Path, finished: Finished) -> None:
    """As Ray Tune hands a result to its callbacks: one after a round, then the trial's."""
    callback = TensorBoardFiles(folder)
    callback.on_trial_result(1, [], None, {"training_iteration": 1, ROUND: 0})
    result = {"training_iteration": 2, RESULT: finished_to_result(finished)}
    callback.on_trial_result(2, [], None, json.loads(json.dumps(result)))


@pytest.mark.parametrize(
    ("content", "crc"),
    [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)],  # RFC 3720, B.4
)
def test_the_checksum(content: bytes, crc: int) -> None:
    assert crc32c(content) == crc


def test_a_trial_has_one_file_however_often_it_ran(tmp_path: Path) -> None:
    for _ in range(2):
        report(tmp_path, MEASURED)
    assert [str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*.*")] == [f"0003-search/{NAME}"]
    found = records((tmp_path / "0003-search" / NAME).read_bytes())
    assert len(found) == 5  # the version, three figures, the flags
    assert b"brain.Event:2" in found[0]
    assert b"score" in found[1]
    assert b"(vLLM's default)" in found[-1]


@pytest.mark.night  # imports torch
def test_tensorboards_own_words_read_it(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData
    from tensorboardX.record_writer import masked_crc32c

    write_events(tmp_path, MEASURED)
    content = (tmp_path / "0003-search" / NAME).read_bytes()
    events: list[Any] = [Event.FromString(one) for one in records(content)]
    assert events[0].file_version == "brain.Event:2"
    values = {value.tag: (event, value) for event in events[1:] for value in event.summary.value}
    figures = {tag: (value.simple_value, event.step) for tag, (event, value) in values.items() if tag[0] != "_"}
    assert figures == {"score": (0.875, 3), "p95_ttft_ms": (120.5, 3), "p95_ttft_ms@8": (130.5, 3)}
    plugin = values["_hparams_/session_start_info"][1].metadata.plugin_data
    assert plugin.plugin_name == "hparams"
    flags = HParamsPluginData.FromString(plugin.content).session_start_info.hparams
    assert {name: flags[name].WhichOneof("kind") for name in flags} == {
        "max-num-seqs": "number_value",
        "block-size": "string_value",
        "enable-chunked-prefill": "bool_value",
        "dtype": "string_value",
    }
    assert (flags["max-num-seqs"].number_value, flags["enable-chunked-prefill"].bool_value) == (64.0, True)
    (size,) = struct.unpack_from("<Q", content)
    assert struct.unpack_from("<I", content, 8) == (masked_crc32c(content[:8]),)
    assert struct.unpack_from("<I", content, 12 + size) == (masked_crc32c(content[12 : 12 + size]),)
    long = event_file(70_000, 1.5, {"x" * 300: 1.0}, {})
    again: Any = Event.FromString(records(long)[1])
    assert (again.step, again.wall_time, again.summary.value[0].tag) == (70_000, 1.5, "x" * 300)


@pytest.mark.parametrize("status", [TrialStatus.INFEASIBLE, TrialStatus.FAILED])
def test_nothing_is_made_up_for_a_trial_that_was_not_measured(tmp_path: Path, status: TrialStatus) -> None:
    report(tmp_path, Finished(4, TrialKind.SEARCH, {"max-num-seqs": 1}, status, None))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    report(tmp_path / "taken", MEASURED)


def test_they_stay_when_what_ray_wrote_is_cleared(tmp_path: Path) -> None:
    with StudyFolder.open(tmp_path, "night") as held:
        report(held.tensorboard, MEASURED)
        (held.ray / "20261130-080000").mkdir()
        held.clear_ray()
        assert [one.name for one in held.ray.iterdir()] == ["tensorboard"]
        assert (held.tensorboard / "0003-search" / NAME).exists()
