"""What TensorBoard opens: the score and the metrics of every trial that ended, written by a callback of Ray Tune.

Ray's own logger for TensorBoard writes from a thread, which a full disk ends; whoever waits for it then waits for ever.
Here a file is written at once and in one piece, and one that cannot be written is none.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from ray import tune
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.summary import hparams, scalar

from sweep.trial import Finished
from sweep.wire import RESULT, finished_from_result


class TensorBoardFiles(tune.Callback):
    """Writes `FOLDER/NNNN-KIND/events.out.tfevents.*` for each trial with metrics, its flags as hyperparameters.

    The step of every figure is the trial's number.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: object
    ) -> None:
        """One of a finished trial; those after a round have no result of ours."""
        del iteration, trials, trial
        payload = result.get(RESULT)
        if payload is not None:
            with contextlib.suppress(OSError):  # nobody's night should end for it
                write_events(self._folder, finished_from_result(payload))


def write_events(folder: Path, finished: Finished) -> None:
    """One trial's file, in place of an earlier one of its number; none without metrics. Raises OSError."""
    found = numbers_of(finished)
    if not found:
        return
    place = folder / f"{finished.number:04d}-{finished.kind}"
    place.mkdir(parents=True, exist_ok=True)
    for earlier in place.glob("events.out.tfevents.*"):
        earlier.unlink()
    flags = {name: "(vLLM's default)" if value is None else value for name, value in finished.flags.items()}
    summaries = [scalar(name, value) for name, value in found.items()]
    summaries += hparams(flags, found) if flags else ()
    writer = EventsWriter(str(place / "events"))
    try:
        for summary in summaries:
            writer.write_event(Event(wall_time=time.time(), step=finished.number, summary=summary))
    finally:
        writer.close()


def numbers_of(finished: Finished) -> dict[str, float]:
    """Score and metrics by name; empty for a trial that was not measured."""
    if finished.metrics is None:
        return {}
    known = {"score": finished.score, **finished.metrics}
    return {name: value for name, value in known.items() if value is not None}
