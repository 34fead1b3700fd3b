"""The trainable of Ray Tune: one trial, stored before it is reported."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray import tune

from sweep.errors import HostError, HostNotReady
from sweep.gpu import DeviceMemory, Gpus
from sweep.racer import Racer
from sweep.redact import Redactor
from sweep.runner import StandIn, TrialOutcome, TrialSetup, run_trial, usual_of
from sweep.store import DiskFull, Schema, Store
from sweep.study_folder import StudyFolder
from sweep.trial import Finished, TrialSpec, TrialStatus
from sweep.wire import RESULT, SPEC, finished_to_result, rival_from_config, spec_from_config


@dataclass(frozen=True, slots=True)
class Worker:
    """What every worker gets beside its trial.

    `resting`: memory of the devices before the study. `holder`: who holds the study, see `StudyFolder.holder`.
    `umask`: that of the person, since a worker has that of whoever started the cluster. `stand_in`: see `Prepared`.
    """

    setup: TrialSetup
    schema: Schema
    metadata: Mapping[str, str]
    resting: tuple[DeviceMemory, ...]
    holder: str
    umask: int
    stand_in: StandIn | None = None

    def redactor(self) -> Redactor:
        """Made where it is used: the environment's secrets do not travel."""
        return Redactor({**os.environ, **self.setup.server_env, **self.setup.client_env})

    def store(self) -> Store:
        """The study's store."""
        return Store(self.setup.folder, self.schema, metadata=self.metadata, redactor=self.redactor())


def trial(config: dict[str, Any], worker: Worker) -> None:
    """Run the trial of `config`, store it, report it. One that is raced reports after each round, too.

    Nothing is stored for a driver that no longer holds the study: the next one runs this trial itself.
    """
    os.umask(worker.umask)
    spec, first_attempt = spec_from_config(config[SPEC])
    rival = rival_from_config(config[SPEC])
    try:
        store = worker.store()
        store.check_room()  # before the launch: what cannot be stored need not be measured
        racer = None if rival is None else Racer(spec, rival, worker.setup, tune.report)
        outcome = _outcome(spec, worker, first_attempt, racer)
        if StudyFolder.holder(worker.setup.folder) != worker.holder:
            return
        finished = outcome.finished()
        if not finished.postponed:
            store.append(outcome.result, engine_summary=outcome.engine_summary, telemetry=outcome.telemetry)
    except (HostError, HostNotReady, OSError) as error:
        # Not on disk: not measured. The study stops, and the next start runs this trial again. An OSError is that of a
        # log or journal, a HostError that of a recording; everything else of a trial ends as its status.
        finished = Finished(
            number=spec.number,
            kind=spec.kind,
            flags=spec.flags,
            status=TrialStatus.FAILED,
            failure_class="other",
            failure_line=str(error),
            advice=how_to_go_on(error),
            policy="stop_now",
        )
    tune.report({RESULT: finished_to_result(finished)})


def _outcome(spec: TrialSpec, worker: Worker, first_attempt: int, racer: Racer | None) -> TrialOutcome:
    after_round = None if racer is None else racer.after_round
    if worker.stand_in is not None:
        return worker.stand_in.run(spec, worker.setup, after_round=after_round)
    with Gpus() as gpus:
        return run_trial(
            spec,
            worker.setup,
            redactor=worker.redactor(),
            gpus=gpus,
            resting=worker.resting,
            usual=usual_of(worker.setup.folder) if worker.setup.uses_gpus and spec.number > 0 else None,
            first_attempt=first_attempt,
            after_round=after_round,
            during_round=None if racer is None else racer.during_round,
        )


def how_to_go_on(error: HostError | HostNotReady | OSError) -> str | None:
    """What to do about something that could not be written; None where its own words say it."""
    if isinstance(error, DiskFull):
        return None
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return f"{'make room' if full else 'mend that'}, then type the same command again"
