"""What answers in a study: real servers, or what stands in for them (`study.engine`)."""

from __future__ import annotations

from pathlib import Path

from sweep.config import StudyConfig
from sweep.gpu import Gpus
from sweep.prepare import Prepared, prepare
from sweep.replayed import prepare_replay
from sweep.simulating import prepare_simulated


def prepare_study(
    config: StudyConfig, study_path: Path, folder: Path, gpus: Gpus, *, salvage: bool = False
) -> Prepared:
    """A study ready to run, by its engine. Raises UserError as `prepare` does; writes nothing.

    An engine is a function from a study file to `Prepared`, with what runs its trials as `Prepared.stand_in`.
    """
    match config.study.engine:
        case "vllm":
            return prepare(config, study_path, folder, gpus, salvage=salvage)
        case "replay":
            return prepare_replay(config, study_path, folder)
        case "simulated":
            return prepare_simulated(config, study_path, folder, gpus, salvage=salvage)
