"""What TensorBoard opens: the score and the metrics of every trial that ended, written by a callback of Ray Tune."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from ray import tune

from sweep.atomic_file import WriteFailed, write_atomically
from sweep.event_file import event_file
from sweep.trial import Finished
from sweep.wire import RESULT, finished_from_result


class TensorBoardFiles(tune.Callback):
    """Writes `FOLDER/NNNN-KIND/events.out.tfevents.sweep` for each trial with metrics, its flags as hyperparameters.

    The step of every figure is the trial's number. A file that cannot be written is none: no night should end for it.
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
            with contextlib.suppress(OSError, WriteFailed):
                write_events(self._folder, finished_from_result(payload))


def write_events(folder: Path, finished: Finished) -> None:
    """One trial's file, in place of an earlier one of its number; none without metrics.

    Raises OSError and WriteFailed.
    """
    found = numbers_of(finished)
    if not found:
        return
    place = folder / f"{finished.number:04d}-{finished.kind}"
    place.mkdir(parents=True, exist_ok=True)
    flags = {name: "(vLLM's default)" if value is None else value for name, value in finished.flags.items()}
    content = event_file(finished.number, time.time(), found, flags)
    write_atomically(place / "events.out.tfevents.sweep", content)


def numbers_of(finished: Finished) -> dict[str, float]:
    """Score and metrics by name; empty for a trial that was not measured."""
    if finished.metrics is None:
        return {}
    known = {"score": finished.score, **finished.metrics}
    return {name: value for name, value in known.items() if value is not None}
