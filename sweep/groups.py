"""Nodes of several fingerprints under one command: each group of equal nodes is a study of its own.

Trials of two groups are never compared: each group has its own folder, baseline, search, confirmation and verdict, by a
driver of its own, all at the same time. What is said of any of them has the group's name in front.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import IO, Any

from sweep.cluster import NodeLooks, alive_nodes, ray_cluster
from sweep.config import StudyConfig
from sweep.engines import prepare_study
from sweep.errors import HostError, UserError
from sweep.fleet import Group, groups_of, needs_of, wanted_of, without_devices
from sweep.gpu import Gpus
from sweep.interrupts import Interrupts
from sweep.memory import Unknown
from sweep.prepare import Prepared
from sweep.report.build import make_report
from sweep.report.source import open_source

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_WAIT_EVERY_S = 1.0


def of_group(config: StudyConfig, group: str) -> StudyConfig:
    """The study of one group: the same under a name of its own."""
    study = config.study.model_copy(update={"name": f"{config.study.name}-{group}"})
    return config.model_copy(update={"study": study})


def elsewhere(prepared: Prepared, *, grouped: bool) -> Prepared:
    """A study whose trials run on other machines: what their devices, and in a group their vLLM, are is known later."""
    fingerprint, knowledge = without_devices(prepared.fingerprint, grouped=grouped), prepared.knowledge
    if grouped:
        knowledge = dataclasses.replace(knowledge, device=Unknown("the devices are those of a group of other machines"))
    return dataclasses.replace(prepared, fingerprint=fingerprint, knowledge=knowledge)


def find_groups(
    config: StudyConfig, study: Path, address: str, *, salvage: bool, say: Callable[[str], None]
) -> tuple[Group, ...]:
    """The groups of the cluster at `address`; `say` hears what each is, and why other nodes are of none.

    Raises UserError as the checks of a study do, and HostError where there is no group.
    """
    with Interrupts() as interrupts:
        with Gpus() as gpus:
            prepared = prepare_study(config, study, config.study.folder / config.study.name, gpus, salvage=salvage)
        with (
            TemporaryDirectory() as place,
            ray_cluster(
                address,
                messages=Path(place) / "ray.log",
                when_stuck=lambda lost: say(str(lost)),
                starting=interrupts.held,
            ),
        ):
            groups, left_out = _looked_for(prepared)
    for name, why in left_out.items():
        say(f"node {name} is of no group: {why}")
    for one in groups:
        folder = config.study.folder / of_group(config, one.name).study.name
        say(f"group {one.name}: {one.describe()}; results in {folder}")
    return groups


def _looked_for(prepared: Prepared) -> tuple[tuple[Group, ...], Mapping[str, str]]:
    needs, resources = needs_of(prepared.config), prepared.config.resources
    until_s = time.monotonic() + (resources.wait_for_nodes or 0.0)
    while not any(needs.fits(node.have) for node in alive_nodes()) and time.monotonic() < until_s:
        time.sleep(_WAIT_EVERY_S)
    nodes = alive_nodes()
    able = [node for node in nodes if needs.fits(node.have)]
    looks = NodeLooks(wanted_of(prepared, ""), prepared.setup.dialect).all_of(able)
    groups, out = groups_of(tuple(looks.values()), resources.accelerator)
    idle = {node.name: f"it has no room for a trial ({needs.words()})" for node in nodes if node not in able}
    if not groups:
        name, why = next(iter({**out, **idle}.items()), ("the cluster", "it has no nodes"))
        raise HostError(f"no node of the cluster is fit for this study: {name}: {why}; sweep.doctor shows all")
    return groups, {**idle, **out}


def run_groups(groups: Sequence[Group], command: Sequence[str], results: Path, name: str, *, as_json: bool) -> int:
    """Run `command`, with `--group NAME` added, once for each group at the same time; what they say goes through.

    `name` is the study's, of which each group has a folder in `results`.

    A signal goes on to all of them, and they end with this process, however that ends. At the end one line a group, or
    one object, says what its verdict is. The exit code is 0 where each has a verdict, else the highest.
    """
    said = threading.Lock()
    started: list[tuple[Group, subprocess.Popen[str]]] = []
    with _passed_on(started) as signals:
        for one in groups:
            started.append((one, _start([*command, "--group", one.name])))
            for number in signals:  # one that came while this one was not there yet
                started[-1][1].send_signal(number)
        readers = [
            threading.Thread(target=_relay, args=(one.name, pipe, to, said, as_json and to is sys.stdout))
            for one, process in started
            for pipe, to in ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
        ]
        for reader in readers:
            reader.start()
        codes = {one.name: process.wait() for one, process in started}
        for reader in readers:
            reader.join()
    verdicts = [_verdict(one, results / f"{name}-{one.name}", codes[one.name]) for one in groups]
    if as_json:
        print(json.dumps({"groups": verdicts}, ensure_ascii=False), flush=True)  # noqa: T201 - this is the output
    else:
        for found in verdicts:
            print(f"{found['group']} ({found['what']}): {found['sentence']} {found['folder']}", flush=True)  # noqa: T201
    return max(code if code >= 0 else 128 - code for code in codes.values())


def _verdict(group: Group, folder: Path, code: int) -> dict[str, Any]:
    try:
        sentence = make_report(open_source(str(folder))).recommendation.sentence
    except UserError as error:
        sentence = f"no verdict: {error}."
    what = group.describe()
    return {"group": group.name, "what": what, "sentence": sentence, "folder": str(folder), "exit_code": code}


def _start(words: Sequence[str]) -> subprocess.Popen[str]:
    """A driver in a process group of its own: what is typed on the terminal reaches it by this process alone."""
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def with_us() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        process_group=0,
        preexec_fn=with_us,
    )


@contextlib.contextmanager
def _passed_on(started: Sequence[tuple[Group, subprocess.Popen[str]]]) -> Iterator[list[int]]:
    """Meanwhile signals go to the drivers, which know what to do with a first and a second one. Gives those so far."""
    signals: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        for _, process in started:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    if before[signal.SIGHUP] is signal.SIG_IGN:  # what nohup asks for
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, pass_on)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _relay(group: str, pipe: IO[str], to: IO[str], said: threading.Lock, objects: bool) -> None:
    """Hand lines on with the group's name: as a word in front, or in each object."""
    with pipe:
        for line in pipe:
            text = _named(group, line) if objects else f"{group}: {line.rstrip()}"
            with said, contextlib.suppress(BrokenPipeError):
                print(text, file=to, flush=True)


def _named(group: str, line: str) -> str:
    try:
        found = json.loads(line)
    except ValueError:
        return line.rstrip()
    return json.dumps({"group": group, **found}, ensure_ascii=False) if isinstance(found, dict) else line.rstrip()
