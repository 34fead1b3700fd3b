"""`python -m sweep.tune STUDY.yaml`: tune the serve flags of a vLLM server overnight."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from sweep.clock import deadline_clock
from sweep.cluster import ray_cluster, room_for, room_here
from sweep.config import StudyConfig, load, located
from sweep.console import print_json
from sweep.crew import join
from sweep.devices import take_out_devices
from sweep.dry_run import dry_run_json, print_dry_run
from sweep.earlier import check_record, look_at_record
from sweep.ending import finish, to_stderr
from sweep.engines import prepare_study
from sweep.errors import ClusterLost, UserError
from sweep.exporter import metrics_endpoint
from sweep.fleet import Group, check_accelerator, needs_of
from sweep.gpu import Gpus
from sweep.groups import elsewhere, find_groups, of_group, run_groups
from sweep.interrupts import Interrupts, Stopped
from sweep.notify import STOPPED
from sweep.options import PlainCommand, budget_s, with_trials
from sweep.planned import make_plan, opening_lines
from sweep.prepare import Prepared
from sweep.process import end_leftovers
from sweep.store import RemoteResults, copy_missing, set_aside_broken
from sweep.study import anything_left, at_auto_rate, conclude, run_study
from sweep.study_folder import StudyFolder
from sweep.unfinished import wait_for_servers
from sweep.views import view_of

_USER_MISTAKE = 2
_KEPT = "everything measured is kept, type the same command to go on"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=PlainCommand)
def main(
    study: Annotated[
        Path,
        typer.Argument(metavar="STUDY", help="The study file; see search_spaces/ for examples.", show_default=False),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, show what would be launched, launch nothing.")
    ] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="One JSON object a trial on standard output, the verdict last.")
    ] = False,
    ray_address: Annotated[
        str | None, typer.Option(help="Join this Ray cluster, such as auto, instead of starting a local one.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a study with resources.group_by: this group of nodes alone.")
    ] = None,
    time_budget: Annotated[
        str | None,
        typer.Option(help="Start no trial that would end later than this from now, and cut one that does: 8h, 90m."),
    ] = None,
    deadline: Annotated[str | None, typer.Option(help="The same as a time of day, today or tomorrow: 07:00.")] = None,
    trials: Annotated[str | None, typer.Option(metavar="N", help="Trials in all, instead of the study file's.")] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=1, max=65535, help="Figures for Prometheus on this port of 127.0.0.1."),
    ] = None,
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Take the whole conversations of a truncated ShareGPT file.")
    ] = False,
) -> None:
    """Tune the serve flags of a vLLM server.

    Each trial starts a real server with candidate flags, sends it the study's load with `vllm bench serve`, and stops
    it. The flags of today are trial 0. Everything measured lands as Parquet in RESULTS/NAME. Typed again, the same
    command goes on where it was stopped.

    Exit codes: 0 a verdict ("keep your flags" is one), 1 the study failed, 2 a mistake in what was asked,
    130 and the like: stopped by a signal.
    """
    try:
        config = with_trials(load(study), trials)
        time_left_s = deadline_clock(budget_s(config, time_budget, deadline))
        how = {"dry_run": dry_run, "as_json": json_output, "salvage": salvage}
        names = _groups(config, study, group, ray_address, metrics_port, dry_run=dry_run, salvage=salvage)
        if len(names) > 1:
            given = {"--time-budget": time_budget, "--deadline": deadline, "--trials": trials}
            code = _each_group(names, config, study, ray_address or "", given, as_json=json_output, salvage=salvage)
        else:
            one = names[0].name if names else group
            known = config if one is None else of_group(config, one)
            code = _run(known, study, time_left_s, address=ray_address, metrics_port=metrics_port, group=one, **how)
    except UserError as error:
        _refuse(str(error))
    except Stopped as stopped:
        to_stderr(f"stopped by {stopped}; {_KEPT}")
        code = 128 + stopped.number
    raise typer.Exit(code)


def _groups(
    config: StudyConfig,
    study: Path,
    group: str | None,
    address: str | None,
    metrics_port: int | None,
    *,
    dry_run: bool,
    salvage: bool,
) -> tuple[Group, ...]:
    """The groups of nodes that the study is to run on; none where it is one study. Raises UserError."""
    grouped = config.resources.group_by is not None
    if group is not None and not (grouped and address is not None):
        raise UserError("--group is one of those that resources.group_by makes of a cluster: set it, and --ray-address")
    if not grouped or group is not None or address is None or dry_run:
        return ()
    found = find_groups(config, study, address, salvage=salvage, say=to_stderr)
    if metrics_port is not None and len(found) > 1:
        raise UserError(f"--metrics-port is of one group: add --group, of {', '.join(one.name for one in found)}")
    return found


def _each_group(
    groups: tuple[Group, ...],
    config: StudyConfig,
    study: Path,
    address: str,
    given: Mapping[str, str | None],
    *,
    as_json: bool,
    salvage: bool,
) -> int:
    switches = [word for word, on in (("--json", as_json), ("--salvage", salvage)) if on]
    values = [word for name, value in given.items() if value is not None for word in (name, value)]
    command = [sys.executable, "-u", "-m", "sweep.tune", str(study), "--ray-address", address, *switches, *values]
    return run_groups(groups, command, config.study.folder, config.study.name, as_json=as_json)


def _run(
    config: StudyConfig,
    study: Path,
    time_left_s: Callable[[], float],
    *,
    dry_run: bool,
    as_json: bool,
    address: str | None,
    metrics_port: int | None,
    salvage: bool,
    group: str | None,
) -> int:
    notices = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    with Interrupts() as interrupts, Gpus() as gpus:
        if gpus.notice and config.gpus(config.baseline_flags()) > 0:
            notices.print(gpus.notice)
        results, store = config.study.folder, config.study.store
        if dry_run:
            prepared = prepare_study(config, study, results / config.study.name, gpus, salvage=salvage)
            if address is not None:
                prepared = elsewhere(prepared, grouped=group is not None)
            _say(notices, prepared.notices)
            return _dry_run(prepared, study, address, gpus, interrupts, notices, as_json=as_json)
        remote = None if store is None else RemoteResults.open(store, config.study.name)
        with StudyFolder.open(results, config.study.name) as folder:
            if remote is not None and (fetched := remote.fetch(folder.path)):
                notices.print(f"{len(fetched)} trials that are not here were fetched from {remote}")
            prepared = prepare_study(config, study, folder.path, gpus, salvage=salvage)
            if address is not None:
                prepared = elsewhere(prepared, grouped=group is not None)
            _say(notices, prepared.notices)
            with located(study):
                _say(notices, _take_over(prepared, folder))
            try:
                return _night(
                    prepared,
                    folder,
                    gpus,
                    interrupts,
                    time_left_s,
                    as_json=as_json,
                    address=address,
                    metrics_port=metrics_port,
                    notices=notices,
                    remote=remote,
                    group=group,
                )
            finally:
                if remote is not None:
                    copy_missing(remote, folder.path, notices.print)


def _say(notices: Console, lines: Iterable[str]) -> None:
    for line in lines:
        notices.print(line)


def _dry_run(
    prepared: Prepared,
    study: Path,
    address: str | None,
    gpus: Gpus,
    interrupts: Interrupts,
    notices: Console,
    *,
    as_json: bool,
) -> int:
    """What the real run would refuse is refused; the machine's room last, so that the commands are seen anywhere."""
    with located(study):
        _say(notices, look_at_record(prepared))
    if as_json:
        print_json(dry_run_json(prepared))
    else:
        print_dry_run(prepared, Console(highlight=False, markup=False, soft_wrap=True))
    wanted, asked = needs_of(prepared.config), prepared.config.resources.concurrent_trials
    if address is None:
        check_accelerator(prepared.config.resources.accelerator, [one.name or "" for one in gpus.devices])
        room_here(wanted, asked)
        return 0
    with (
        TemporaryDirectory() as folder,
        ray_cluster(address, messages=Path(folder) / "ray.log", when_stuck=_refuse_lost, starting=interrupts.held),
    ):
        room_for(wanted, asked)
    return 0


def _take_over(prepared: Prepared, folder: StudyFolder) -> Iterator[str]:
    """Clear up after an earlier run of this study, and refuse what cannot be compared with it."""
    # The study is ours alone: whoever still owns a server of it is a worker whose driver is gone.
    for leftover in end_leftovers(folder.processes, even_owned=True):
        if leftover.ended or leftover.left:
            yield f"left behind by an earlier run and ended: processes {', '.join(map(str, leftover.ended)) or 'none'}"
        if leftover.left:
            yield f"could not be ended: processes {', '.join(map(str, leftover.left))}"
    folder.clear_ray()
    yield from set_aside_broken(folder.path)
    yield from check_record(prepared)
    yield from folder.adopt(prepared.fingerprint, prepared.config.model_dump(mode="json"), prepared.redactor)


def _room_alone(config: StudyConfig, gpus: Gpus) -> int:
    """How many trials run at once on this machine. Raises HostError where its devices are others than asked for."""
    check_accelerator(config.resources.accelerator, [one.name or "" for one in gpus.devices])
    return room_for(needs_of(config), config.resources.concurrent_trials)


def _night(
    prepared: Prepared,
    folder: StudyFolder,
    gpus: Gpus,
    interrupts: Interrupts,
    time_left_s: Callable[[], float],
    *,
    as_json: bool,
    address: str | None,
    metrics_port: int | None,
    notices: Console,
    remote: RemoteResults | None = None,
    group: str | None = None,
) -> int:
    plan = make_plan(prepared, time_left_s=time_left_s)
    _say(notices, opening_lines(prepared, plan))
    if not anything_left(plan):
        return finish(prepared, conclude(prepared, plan.stop_reason, failed=plan.failed), as_json=as_json)

    def lost_ray(lost: ClusterLost) -> int:
        wait_for_servers(folder)
        return finish(prepared, conclude(prepared, f"{lost}; {_KEPT}", failed=True), as_json=as_json)

    messages = folder.path / "logs" / "ray.log"
    try:
        while True:
            with ray_cluster(address, messages=messages, when_stuck=lost_ray, starting=interrupts.held) as check_ray:
                fleet = None
                if address is not None:
                    prepared, fleet = join(prepared, folder, notices.print, group=group)
                else:
                    plan.concurrent = _room_alone(prepared.config, gpus)
                while True:
                    with (
                        metrics_endpoint(metrics_port, prepared.config.study.name, plan, prepared.setup.log_folder),
                        view_of(prepared, folder, plan, gpus, as_json=as_json) as view,
                        interrupts.held(),
                    ):
                        checks = (interrupts.check, check_ray)
                        outcome = run_study(prepared, plan, folder, gpus, view, checks, fleet, remote)
                    if plan.stop_reason is not None or plan.busy_devices or not plan.paused:
                        break
                    prepared = at_auto_rate(prepared, folder)
                    plan = make_plan(prepared, time_left_s=time_left_s)
            if plan.stop_reason is not None or not plan.paused:
                break
            notices.print(take_out_devices(plan, gpus, prepared.config.most_gpus(), address))
            if plan.failed:
                outcome = conclude(prepared, plan.stop_reason, failed=True)
                break
    except Stopped as stopped:
        wait_for_servers(folder)
        outcome = conclude(prepared, f"stopped by {stopped}", failed=False)
        finish(prepared, outcome, as_json=as_json, event=STOPPED, shown=as_json or bool(outcome.trials))
        raise
    except ClusterLost as lost:
        return lost_ray(lost)
    if not outcome.failed:
        folder.clear_ray()
    return finish(prepared, outcome, as_json=as_json)


def _refuse_lost(lost: ClusterLost) -> None:
    to_stderr(str(lost))


def _refuse(line: str) -> NoReturn:
    to_stderr(line)
    raise typer.Exit(_USER_MISTAKE)


if __name__ == "__main__":
    app()
