"""The files that TensorBoard opens, read back record by record."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from sweep.ray_logs import TensorBoardFiles, write_events
from sweep.study_folder import StudyFolder
from sweep.trial import Finished, TrialKind, TrialStatus
from sweep.wire import RESULT, ROUND, finished_to_result

MEASURED = Finished(
    3,
    TrialKind.SEARCH,
    {"max-num-seqs": 64, "block-size": None, "enable-chunked-prefill": True},
    TrialStatus.COMPLETE,
    0.875,
    metrics={"p95_ttft_ms": 120.5, "p95_ttft_ms@8": 130.5, "goodput_per_s": None},
)


def events(folder: Path) -> list[Event]:
    """The events of the one file there: records of length, checksum, event, checksum."""
    (path,) = folder.glob("events.out.tfevents.*")
    content, place, found = path.read_bytes(), 0, []
    while place < len(content):
        (size,) = struct.unpack_from("<Q", content, place)
        found.append(Event.FromString(content[place + 12 : place + 12 + size]))
        place += 12 + size + 4
    return found


def report(folder: Path, finished: Finished) -> None:
    """As Ray Tune hands a result to its callbacks: one after a round, then the trial's."""
    callback = TensorBoardFiles(folder)
    callback.on_trial_result(1, [], None, {"training_iteration": 1, ROUND: 0})
    result = {"training_iteration": 2, RESULT: finished_to_result(finished)}
    callback.on_trial_result(2, [], None, json.loads(json.dumps(result)))


def test_score_and_metrics_at_the_trials_number_with_its_flags(tmp_path: Path) -> None:
    report(tmp_path, MEASURED)
    assert [one.name for one in tmp_path.iterdir()] == ["0003-search"]
    found = events(tmp_path / "0003-search")
    assert found[0].file_version == "brain.Event:2"
    scalars = {
        value.tag: (value.simple_value, event.step)
        for event in found
        for value in event.summary.value
        if not value.tag.startswith("_hparams_")
    }
    assert scalars == {"score": (0.875, 3), "p95_ttft_ms": (120.5, 3), "p95_ttft_ms_8": (130.5, 3)}
    flags = next(
        value.metadata.plugin_data.content
        for event in found
        for value in event.summary.value
        if value.tag == "_hparams_/session_start_info"
    )
    for word in (b"max-num-seqs", b"block-size", b"(vLLM's default)", b"enable-chunked-prefill"):
        assert word in flags


def test_a_trial_has_one_file_however_often_it_ran(tmp_path: Path) -> None:
    for _ in range(2):
        write_events(tmp_path, MEASURED)
    assert len(events(tmp_path / "0003-search")) > 3


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
        assert events(held.tensorboard / "0003-search")
