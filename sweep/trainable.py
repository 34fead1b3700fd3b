"""The trainable of Ray Tune: one trial, stored before it is reported."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import ray
from ray import tune

from sweep.atomic_file import disk_is_full
from sweep.errors import HostError, HostNotReady
from sweep.gpu import DeviceMemory, Gpus
from sweep.handover import Spool
from sweep.journal import PROGRESS
from sweep.plan import NEEDS_A_PERSON
from sweep.racer import Racer
from sweep.redact import Redactor
from sweep.runner import StandIn, TrialOutcome, TrialSetup, run_trial, usual_of
from sweep.store import DiskFull, Schema, Store
from sweep.study_folder import StudyFolder
from sweep.trial import Finished, TrialSpec, TrialStatus
from sweep.wire import (
    PLACES,
    RESULT,
    SPEC,
    VERDICTS,
    Place,
    Rival,
    finished_to_result,
    place_from_config,
    rival_from_config,
    spec_from_config,
)


@dataclass(frozen=True, slots=True)
class Worker:
    """What every worker gets beside its trial.

    `resting`: memory of the devices before the study. `holder`: who holds the study, see `StudyFolder.holder`.
    `umask`: that of the person, since a worker has that of whoever started the cluster. `stand_in`: see `Prepared`.
    `intake`: the name of the actor that takes what nodes hand over that do not see the study's folder.
    """

    setup: TrialSetup
    schema: Schema
    metadata: Mapping[str, str]
    resting: tuple[DeviceMemory, ...]
    holder: str
    umask: int
    stand_in: StandIn | None = None
    intake: str = ""

    def redactor(self) -> Redactor:
        """Made where it is used: the environment's secrets do not travel."""
        return Redactor({**os.environ, **self.setup.server_env, **self.setup.client_env})

    def store(self) -> Store:
        """The study's store."""
        return Store(self.setup.folder, self.schema, metadata=self.metadata, redactor=self.redactor())

    def at(self, place: Place | None) -> tuple[Self, Spool | None]:
        """The same on the node it runs on: its own memory at rest, and where it does not share the study's folder, a
        folder of its own. Raises HostNotReady where the driver is gone."""
        if place is None:
            return self, None
        here = replace(self, resting=tuple(DeviceMemory(*one) for one in place.resting))
        if place.shared:
            return here, None
        spool = Spool(self.intake, self.setup.folder, place.name)
        return replace(here, setup=replace(self.setup, folder=spool.path)), spool


def trial(config: dict[str, Any], worker: Worker) -> None:
    """Run the trial of `config`, store it, report it. One that is raced reports after each round, too.

    Nothing is stored for a driver that no longer holds the study: the next one runs this trial itself.
    """
    os.umask(worker.umask)
    place = place_from_config(config, ray.get_runtime_context().get_node_id()) if config.get(PLACES) else None
    spec, first_attempt = spec_from_config(config[SPEC])
    rival = rival_from_config(config[SPEC])
    if place is not None:
        spec = replace(spec, node=place.name, baseline_metrics=place.baseline or spec.baseline_metrics)
        rival = rival if place.raced else None
    try:
        here, spool = worker.at(place)
        with contextlib.ExitStack() as stack:
            if spool is not None:
                spool.fetch(sorted({0, *([] if rival is None else [rival.number])}))
                stack.enter_context(spool.progress_shown(spec.number, PROGRESS))
                stack.callback(spool.put_logs, spec.number)
            finished = _run(spec, here, first_attempt, rival, spool, others=place is not None and place.others)
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
            node=spec.node,
            again_elsewhere=place is not None and place.others,
        )
    if finished is not None:
        tune.report({RESULT: finished_to_result(finished)})


def _run(
    spec: TrialSpec, worker: Worker, first_attempt: int, rival: Rival | None, spool: Spool | None, *, others: bool
) -> Finished | None:
    """The trial, stored; None where the study is no longer this driver's. Raises HostNotReady where it cannot be."""
    store = worker.store()
    store.check_room()  # before the launch: what cannot be stored need not be measured
    racer = None if rival is None else Racer(spec, rival, worker.setup, _reporter(spec, spool))
    outcome = _outcome(spec, worker, first_attempt, racer)
    finished = outcome.finished()
    if others and (finished.postponed or finished.policy in NEEDS_A_PERSON):
        return replace(finished, again_elsewhere=True, dirty_devices=())
    if spool is not None:
        if not finished.postponed:
            spool.put(spec.number, store.encoded(outcome.result, outcome.engine_summary, outcome.telemetry))
    elif StudyFolder.holder(worker.setup.folder) != worker.holder:
        return None
    elif not finished.postponed:
        store.append(outcome.result, engine_summary=outcome.engine_summary, telemetry=outcome.telemetry)
    return finished


def _reporter(spec: TrialSpec, spool: Spool | None) -> Callable[[dict[str, Any]], None]:
    """What hands a round to the scheduler; its verdict lies in the log folder when this returns."""

    def report(result: dict[str, Any]) -> None:
        tune.report(result)
        if spool is not None:
            with contextlib.suppress(HostNotReady):  # without a verdict it goes on
                spool.fetch_log(spec.number, VERDICTS)

    return report


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
    return f"{'make room' if disk_is_full(error) else 'mend that'}, then type the same command again"
