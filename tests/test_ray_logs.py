"""What a trial reports is numbers, which Ray Tune's logger for TensorBoard writes down."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ray.tune.logger import TBXLoggerCallback

from sweep.trainable import numbers_of
from sweep.trial import Finished, TrialKind, TrialStatus
from sweep.wire import RESULT, finished_to_result


class RaysTrial:
    """As much of a trial of Ray as its logger asks for."""

    evaluated_params: Mapping[str, Any] = {"trial": {"number": 3}}

    def __init__(self, folder: Path) -> None:
        self.local_path = str(folder)

    def init_local_path(self) -> None:
        Path(self.local_path).mkdir(exist_ok=True)


def scalars(folder: Path) -> dict[str, float]:
    """The scalars of an event file: records of length, checksum, event, checksum."""
    from tensorboardX.proto.event_pb2 import Event  # it imports torch, which no other test needs

    (path,) = folder.glob("events.out.tfevents.*")
    content, place, found = path.read_bytes(), 0, {}
    while place < len(content):
        (size,) = struct.unpack_from("<Q", content, place)
        event = Event.FromString(content[place + 12 : place + 12 + size])
        found.update({value.tag: value.simple_value for value in event.summary.value})
        place += 12 + size + 4
    return found


@pytest.mark.night  # imports torch
@pytest.mark.parametrize("status", [TrialStatus.COMPLETE, TrialStatus.INFEASIBLE])
def test_tensorboard_has_the_score_and_the_metrics(tmp_path: Path, status: TrialStatus) -> None:
    measured = status is TrialStatus.COMPLETE
    metrics = {"p95_ttft_ms": 120.5, "goodput_per_s": None} if measured else None
    finished = Finished(3, TrialKind.SEARCH, {}, status, 0.875 if measured else None, metrics=metrics)
    made: Any = TBXLoggerCallback  # its constructor has no types
    logger = made()
    trial: Any = RaysTrial(tmp_path / "trial")
    reported = {"training_iteration": 1, RESULT: finished_to_result(finished), **numbers_of(finished)}
    logger.log_trial_result(1, trial, reported)
    for writer in logger._trial_writer.values():
        writer.close()  # it writes in a thread of its own
    found = scalars(tmp_path / "trial")
    assert found == ({"ray/tune/score": 0.875, "ray/tune/p95_ttft_ms": 120.5} if measured else {})
