"""The files that TensorBoard opens."""

from __future__ import annotations

import dataclasses
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
    assert len(found) == 6  # the version, three figures, the flags, that it ended
    assert b"brain.Event:2" in found[0]
    assert b"score" in found[1]
    assert b"(vLLM's default)" in found[-2]


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


@pytest.mark.night  # imports TensorBoard
def test_tensorboard_itself_shows_scalars_and_flags(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install tensorboard")
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2, backend_context, get_experiment, list_session_groups

    base = dataclasses.replace(MEASURED, number=0, kind=TrialKind.BASELINE, flags={"max-num-seqs": 8}, score=1.0)
    for one in (base, MEASURED):
        write_events(tmp_path, one)
    runs = EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    runs.Reload()
    read = EventAccumulator(str(tmp_path / "0003-search")).Reload()
    assert [(event.step, event.value) for event in read.Scalars("p95_ttft_ms@8")] == [(3, 130.5)]
    shown = RequestContext()
    plugin: Any = backend_context.Context(TBContext(data_provider=MultiplexerDataProvider(runs, str(tmp_path))))
    ask: Any = api_pb2.GetExperimentRequest()
    experiment = get_experiment.Handler(shown, plugin, "", ask).run()
    assert {one.name for one in experiment.hparam_infos} == {*MEASURED.flags}
    assert {one.name.tag for one in experiment.metric_infos} == {"score", "p95_ttft_ms", "p95_ttft_ms@8"}
    wanted: Any = api_pb2.ListSessionGroupsRequest(
        start_index=0, slice_size=10, allowed_statuses=[api_pb2.STATUS_SUCCESS], include_metrics=True,
        col_params=[api_pb2.ColParams(metric=one.name) for one in experiment.metric_infos],
    )  # fmt: skip
    groups = list_session_groups.Handler(shown, plugin, "", wanted).run().session_groups
    rows = {
        group.name: ({**group.hparams}, {one.name.tag: one.value for one in group.metric_values}) for group in groups
    }
    assert rows.keys() == {"0000-baseline", "0003-search"}
    flags, metrics = rows["0003-search"]
    assert (flags["max-num-seqs"].number_value, flags["block-size"].string_value) == (64.0, "(vLLM's default)")
    assert metrics == {"score": 0.875, "p95_ttft_ms": 120.5, "p95_ttft_ms@8": 130.5}
    assert rows["0000-baseline"][1]["score"] == 1.0


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
