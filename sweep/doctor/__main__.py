"""`python -m sweep.doctor STUDY`: is everything there that a night needs, on every machine that would run trials?

The study file is checked as `sweep.tune` checks it; then each machine looks at itself: vLLM and the study's flags, the
model's files, free disk and shared memory, ports, driver and NVML, its clock, its limit of open files. Nothing is
launched, and nothing stays written.

Exit codes: 0 all is well, 2 something is to be mended, one line each.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from sweep.arguments import LineParser
from sweep.cluster import ClusterNode, NodeLook, NodeLooks, alive_nodes, none_fits, ray_cluster, room_here
from sweep.config import load
from sweep.doctor.findings import Findings, as_json, print_findings
from sweep.engines import prepare_study
from sweep.errors import ClusterLost, HostError, UserError
from sweep.fleet import Group, choose, groups_of, has_accelerator, needs_of, wanted_of
from sweep.gpu import Gpus
from sweep.node import Fault, Wanted, faults_of, look
from sweep.prepare import Prepared
from sweep.study_folder import StudyFolder

_MISTAKE = 2
_PIPE_COLUMNS = 180
_HERE = "this machine"


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    try:
        given = _parser().parse_args(words)
        findings = _examine(given.study, given.ray_address)
    except UserError as error:
        print(f"sweep.doctor: {error}", file=sys.stderr)  # noqa: T201 - this is the output
        return _MISTAKE
    if given.json:
        print(json.dumps(as_json(findings), ensure_ascii=False))  # noqa: T201
    else:
        console = Console(highlight=False, markup=False)
        if not console.is_terminal:
            console = Console(highlight=False, markup=False, width=_PIPE_COLUMNS)
        print_findings(console, findings)
    return _MISTAKE if findings.faults else 0


def _parser() -> LineParser:
    parser = LineParser(
        prog="python -m sweep.doctor",
        description=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", metavar="STUDY", type=Path, help="the study file")
    parser.add_argument("--ray-address", metavar="ADDRESS", help="look at every node of this Ray cluster, such as auto")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return parser


def _examine(study: Path, address: str | None) -> Findings:
    """What is found. Raises UserError for what `sweep.tune` would refuse before it looks at any machine."""
    config = load(study)
    results = config.study.folder
    with Gpus() as gpus:
        prepared = prepare_study(config, study, results / config.study.name, gpus)
    StudyFolder.look(prepared.setup.folder)
    if address is None:
        return _one_machine(prepared, wanted_of(prepared, ""))
    with contextlib.ExitStack() as stack:
        messages = Path(stack.enter_context(TemporaryDirectory())) / "ray.log"
        stack.enter_context(ray_cluster(address, messages=messages, when_stuck=_say_lost))
        holder = stack.enter_context(_held(results, config.study.name, prepared.setup.folder))
        return _cluster(prepared, wanted_of(prepared, holder))


@contextlib.contextmanager
def _held(results: Path, name: str, folder: Path) -> Iterator[str]:
    """The content of the study's lock, by which other nodes tell whether they see its folder.

    A study that runs at the moment keeps its lock; a folder that was not there is gone again afterwards.
    """
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        held = StudyFolder.open(results, name)
    except HostError:
        yield StudyFolder.holder(folder)
        return
    with held:
        yield StudyFolder.holder(folder)
        if folder in made:
            _take_back(folder, made)


def _take_back(folder: Path, made: Sequence[Path]) -> None:
    """Remove what opening the study made, and nothing else: folders only while they are empty."""
    with contextlib.suppress(OSError):
        for inside in folder.iterdir():
            if inside.is_dir():
                inside.rmdir()
            elif inside.name == "lock":
                inside.unlink()
        for place in made:
            place.rmdir()


def _one_machine(prepared: Prepared, wanted: Wanted) -> Findings:
    facts = look(wanted, prepared.setup.dialect, starts_ray=True)
    faults = list(faults_of(_HERE, facts, wanted))
    try:
        room_here(needs_of(prepared.config), prepared.config.resources.concurrent_trials)
    except HostError as error:
        faults.append(Fault(_HERE, *_parts(error)))
    one = NodeLook(ClusterNode("", _HERE, here=True), facts, tuple(faults))
    accelerator = prepared.config.resources.accelerator
    if accelerator is not None and not has_accelerator(one, accelerator):
        what = f"resources.accelerator is {accelerator}, its devices are {', '.join(facts.gpus) or 'none'}"
        faults.append(Fault(_HERE, what, "correct it, or run on another machine"))
    return Findings((dataclasses.replace(one, faults=tuple(faults)),), {}, ())


def _cluster(prepared: Prepared, wanted: Wanted) -> Findings:
    """All nodes that have room for a trial look at themselves; the others are listed."""
    needs, nodes = needs_of(prepared.config), alive_nodes()
    able = [node for node in nodes if needs.fits(node.have)]
    idle = {node.name: f"has no room for a trial ({needs.words()})" for node in nodes if node not in able}
    if not able:
        return Findings((), idle, (Fault("the cluster", *_parts(none_fits(needs, nodes))),))
    looks = NodeLooks(wanted, prepared.setup.dialect).all_of(able)
    accelerator = prepared.config.resources.accelerator
    choice = choose(tuple(looks.values()), needs, accelerator)
    groups: tuple[Group, ...] = ()
    left_out = choice.left_out
    if prepared.config.resources.group_by is not None:
        groups, left_out = groups_of(tuple(looks.values()), accelerator)
    apart = {name: why for name, why in left_out.items() if not looks[name].faults}
    faults = [fault for name in sorted(looks) for fault in looks[name].faults]
    if not choice.taking_part and not faults:
        faults = [Fault(name, why, "see resources.accelerator in the study file") for name, why in apart.items()]
    return Findings(tuple(looks[name] for name in sorted(looks)), {**idle, **apart}, tuple(faults), groups)


def _parts(line: object) -> tuple[str, str]:
    """What and how to mend, of a line that says both."""
    what, _, mend = str(line).rpartition("; ")
    return what, mend


def _say_lost(lost: ClusterLost) -> None:
    print(f"sweep.doctor: {lost}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
