"""Running a prepared study with Ray Tune, from its record to its recommendation."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.exceptions import RayError
from ray.tune.error import TuneError

from sweep.atomic_file import WriteFailed, disk_is_full
from sweep.best_yaml import write_best_yaml
from sweep.calibrated import auto_rate, calibration_lines
from sweep.cluster import first_line
from sweep.confirm import Confirmed, recommended
from sweep.console import View
from sweep.copies import copies_of
from sweep.crew import Crew
from sweep.desk import Desk
from sweep.earlier import earlier_trials
from sweep.equivalence import Findings, findings
from sweep.errors import ClusterLost, HostError
from sweep.fleet import Fleet, holds_for, needs_of
from sweep.front import Front, make_front
from sweep.gate import Tally, tally
from sweep.gpu import Gpus
from sweep.journal import read_progress
from sweep.neighbours import describe
from sweep.plan import StudyPlan
from sweep.planned import jury_of
from sweep.prepare import Prepared, at_rate
from sweep.process import end_leftovers
from sweep.production import write_production
from sweep.proposals import best_of_search, equivalence_rules
from sweep.ray_logs import TensorBoardFiles
from sweep.recommend import Recommendation, not_for_production
from sweep.reference import drift_notes, drifted
from sweep.scheduler import RaceScheduler
from sweep.searcher.tune_searcher import TuneSearcher
from sweep.store import RemoteResults, StoredTrial, read_passed, read_trials
from sweep.study_folder import StudyFolder
from sweep.trainable import Worker, trial
from sweep.trial import Finished, Phase, TrialKind, TrialSpec
from sweep.unfinished import store_cut, store_lost, wait_for_servers
from sweep.wire import BUNDLE, PLACES, SPEC


@dataclass(frozen=True, slots=True)
class StudyOutcome:
    """What a run of a study came to."""

    trials: tuple[StoredTrial, ...]
    recommendation: Recommendation
    confirmed: Confirmed | None
    command: str | None
    best_yaml: Path | None
    stop_reason: str | None
    failed: bool
    front: Front | None = None
    production: Path | None = None
    gate: Tally | None = None
    equal: Findings = field(default_factory=Findings)
    notes: tuple[str, ...] = ()


def gate_tally(prepared: Prepared, known: Mapping[int, Finished]) -> Tally | None:
    """How the gate did so far; None for a study without one."""
    return tally(read_passed(prepared.setup.folder), known) if prepared.config.study.gate else None


def at_auto_rate(prepared: Prepared, folder: StudyFolder) -> Prepared:
    """The study at the rate that its calibration, now stored, gives for `auto`; the rate is recorded for all later
    runs. Raises UserError or HostError where it cannot be.
    """
    rate_per_s = auto_rate(folder.path, prepared.config.load, prepared.config.baseline_flags())
    if rate_per_s is None:
        raise HostError("the calibration cannot be read back; type the same command again")
    known = at_rate(prepared, rate_per_s)
    folder.adopt(known.fingerprint, known.config.model_dump(mode="json"), known.redactor)
    return known


class _EveryStep(tune.Callback):
    """Calls `checks` in each round of Ray Tune's loop, some ten times a second; what one raises ends the loop.

    Of a cluster it looks which nodes there are, and remembers which worker has which trial.

    Trials that are overdue by the plan are cut: their worker is killed, and the supervisor then ends the server. One
    that is stopping its server already may end by itself, which has a limit of its own.
    """

    def __init__(
        self,
        checks: Sequence[Callable[[], None]],
        plan: StudyPlan,
        folder: StudyFolder,
        crew: Crew | None,
    ) -> None:
        self._checks, self._plan, self._folder, self._crew = checks, plan, folder, crew
        self._cut: set[str] = set()

    def on_step_begin(self, iteration: int, trials: list[Any], **_: object) -> None:
        del iteration
        for check in self._checks:
            check()
        if self._crew is not None:
            self._crew.step(trials)
        if self._plan.overdue():
            for one in trials:
                actor = one.temporary_state.ray_actor
                if actor is not None and one.trial_id not in self._cut and not self._stopping(one):
                    self._cut.add(one.trial_id)
                    ray.kill(actor)

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Ray pickles callbacks into a file of its own, which is never read, and a plan leads to secrets."""
        return {}

    def _stopping(self, ray_trial: Any) -> bool:
        progress = read_progress(self._folder.log_folder(ray_trial.config[SPEC]["number"]))
        return progress is not None and progress.phase == Phase.STOP


def run_study(
    prepared: Prepared,
    plan: StudyPlan,
    folder: StudyFolder,
    gpus: Gpus,
    view: View,
    checks: Sequence[Callable[[], None]] = (),
    fleet: Fleet | None = None,
    remote: RemoteResults | None = None,
) -> StudyOutcome:
    """Run what the plan still wants on the Ray that is up; everything is stored when this returns.

    `fleet`: the nodes of a cluster that was joined; `remote`: where trials are copied to. `checks` are called all the
    time and may raise to end it. Raises ClusterLost when Ray fails; what was measured until then is stored, too, and
    UserError, before anything is launched, for a `study.optuna_storage` that cannot be used.
    """
    with copies_of(prepared, plan.finished, remote, view.say) as copy:
        return _run(prepared, plan, folder, gpus, view, checks, fleet, copy)


def _run(
    prepared: Prepared,
    plan: StudyPlan,
    folder: StudyFolder,
    gpus: Gpus,
    view: View,
    checks: Sequence[Callable[[], None]],
    fleet: Fleet | None,
    copy: Callable[[Finished], None],
) -> StudyOutcome:
    devices = gpus.devices if prepared.setup.uses_gpus else ()
    worker = Worker(
        setup=prepared.setup,
        schema=prepared.schema,
        metadata=prepared.fingerprint.as_metadata(),
        resting=gpus.baseline(devices),
        holder=folder.holder(folder.path),
        umask=_umask(),
        stand_in=prepared.stand_in,
        intake=f"sweep-intake-{uuid.uuid4().hex}",
    )
    crew = None if fleet is None else Crew(fleet, plan, worker, prepared.config.resources.concurrent_trials, view.say)
    desk = Desk.of(prepared.setup, racing=prepared.config.study.racing)
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(trial, worker=worker), _resources),
        tune_config=tune.TuneConfig(
            search_alg=_searcher(prepared, plan, folder, view, worker, desk, crew, copy),
            scheduler=RaceScheduler(desk, prepared.setup.log_folder, *([] if crew is None else [crew.stranded])),
            num_samples=-1,
            reuse_actors=True,  # a worker's start costs seconds and nothing of a trial stays in it
            trial_name_creator=_trial_name,
            trial_dirname_creator=_trial_name,
        ),
        run_config=tune.RunConfig(
            name=time.strftime("%Y%m%d-%H%M%S"),
            storage_path=str(folder.ray.absolute()),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=0),
            callbacks=[_EveryStep(checks, plan, folder, crew), TensorBoardFiles(folder.tensorboard)],
        ),
    )
    try:
        tuner.fit()
    except (RayError, TuneError, RuntimeError, OSError) as error:
        # The last two: what Ray raises when its own files or processes fail it. Ours do not pass through here.
        raise ClusterLost(why_tune_gave_up(error)) from error
    if plan.stop_reason is None and not plan.paused:
        raise ClusterLost("Ray Tune ended before the study did")
    return conclude(prepared, plan.stop_reason, failed=plan.failed)


def _searcher(
    prepared: Prepared,
    plan: StudyPlan,
    folder: StudyFolder,
    view: View,
    worker: Worker,
    desk: Desk | None,
    crew: Crew | None,
    copy: Callable[[Finished], None],
) -> TuneSearcher:
    """The plan behind Ray's searcher, with what to do and to say when a trial starts, ends or is lost."""

    def recover(spec: TrialSpec) -> Finished | None:
        if plan.overdue():  # cut; nobody waits for its devices, so its server may take its time to stop
            wait_for_servers(folder)
        else:  # the supervisor ends the server as soon as the worker is gone, unless it died, too
            end_leftovers(folder.processes)
        found = next((known for known in earlier_trials(prepared) if known.number == spec.number), None)
        if crew is not None and found is None and not plan.overdue():
            crew.lost(spec)
        return found

    def started(spec: TrialSpec) -> None:
        while plan.said:
            view.say(plan.said.pop(0))
        view.started(spec)

    def ended(finished: Finished) -> None:
        copy(finished)
        view.ended(finished)
        if crew is not None:
            crew.ended(finished)
        if finished.kind is TrialKind.CALIBRATION:
            for line in calibration_lines(folder.path, prepared.config.load, finished.flags):
                view.say(line)
        if finished.kind is TrialKind.NEIGHBOUR and plan.server_sd is not None:
            for line in describe(plan.finished.values(), plan.server_sd):
                view.say(line)
        if drifted(finished):
            view.say(drift_notes({**plan.finished, finished.number: finished})[-1])

    def why_again(spec: TrialSpec) -> str:
        cause = None if crew is None else crew.cause(spec)
        return "its worker died" if cause is None else f"{cause.line_of_cause()} (node {cause.node})"

    return TuneSearcher(
        plan,
        on_start=started,
        on_end=ended,
        recover=recover,
        on_again=lambda spec: view.say(f"trial {spec.number}: {why_again(spec)}; it runs once more"),
        on_busy=lambda finished: view.say(f"trial {finished.number} waits: {finished.line_of_cause()}"),
        give_up=lambda spec: store_lost(spec, worker, None if crew is None else crew.cause(spec)),
        cut=lambda spec: store_cut(spec, worker),
        rival=lambda spec, finished: None if desk is None else desk.rival(spec, finished),
        places=(lambda _spec: {}) if crew is None else crew.places,
        bundle=lambda spec: needs_of(prepared.config, spec.flags).bundle(),
        on_elsewhere=(lambda _finished: None) if crew is None else crew.failed,
        stranded=(lambda _spec: False) if crew is None else crew.never_started,
    )


def why_tune_gave_up(error: Exception) -> str:
    """Why Ray Tune ended: its own files lie in the study's folder, so that a full disk may be met there first."""
    if disk_is_full(error):
        return f"The disk is full, so that Ray Tune gave up: {first_line(error)}; make room"
    return f"Ray Tune gave up: {first_line(error)}"


def _umask() -> int:
    """This process's umask, which can only be read by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _trial_name(ray_trial: Any) -> str:
    """Ray's own names spell out the whole configuration: too long for some file systems."""
    return f"{ray_trial.config[SPEC]['number']:04d}-{ray_trial.trial_id}"


def _resources(trial_config: dict[str, Any]) -> tune.PlacementGroupFactory:
    """What one trial asks of Ray, all of one node.

    Of the study itself it knows nothing: Ray keeps it in a file, and there are secrets in a study.
    """
    nodes = trial_config.get(PLACES)
    where = {"bundle_label_selector": [{"ray.io/node-id": f"in({','.join(sorted(nodes))})"}]} if nodes else {}
    return tune.PlacementGroupFactory([trial_config[BUNDLE]], strategy="STRICT_PACK", **where)


def anything_left(plan: StudyPlan) -> bool:
    """Whether the plan still has a trial to give; asked before Ray Tune is started for nothing."""
    try:
        spec = plan.next()
    except StopIteration:
        return False
    if spec is not None:
        plan.give_back(spec)
    return True


def conclude(prepared: Prepared, stop_reason: str | None, *, failed: bool) -> StudyOutcome:
    """The recommendation of all that is stored, written to `best.yaml` and the files of production.

    What it was measured on is what the record says: on a cluster, nodes that may not be there any more.
    """
    fingerprint = StudyFolder.recorded(prepared.setup.folder) or prepared.fingerprint
    prepared = dataclasses.replace(prepared, fingerprint=fingerprint)
    known = {one.number: one for one in earlier_trials(prepared)}
    objective = prepared.setup.objective
    confirmed = jury_of(prepared).confirmed(known)
    recommendation = best_of_search(prepared, known) if confirmed is None else recommended(confirmed)
    trials = read_trials(prepared.setup.folder)
    command = best_yaml = production = None
    if prepared.stand_in is not None:
        recommendation = not_for_production(recommendation, prepared.stand_in.word)
    else:
        with contextlib.suppress(WriteFailed):  # a full disk: the verdict is shown all the same
            production = write_production(prepared, recommendation, trials)
    if prepared.stand_in is None and recommendation.flags is not None:
        command = prepared.redactor.text(prepared.setup.command_line(recommendation.flags))
        with contextlib.suppress(WriteFailed):  # a full disk: the command is shown all the same
            best_yaml = write_best_yaml(
                prepared.setup, prepared.redactor, recommendation.flags, recommendation.sentence
            )
    return StudyOutcome(
        trials,
        recommendation,
        confirmed,
        command,
        best_yaml,
        stop_reason,
        failed,
        make_front(known.values(), objective.front) if objective.front else None,
        production,
        gate_tally(prepared, known),
        findings(known.values(), equivalence_rules(prepared)) if prepared.config.study.equivalence else Findings(),
        (*([holds_for(prepared.fingerprint)] if prepared.config.resources.group_by else []), *drift_notes(known)),
    )
