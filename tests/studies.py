"""Many short studies at the price of few: one Ray cluster, and drivers forked from a process that has imported all.

Every driver is a process of its own that runs `sweep.tune` from its command line to its exit code. What is saved is
only start-up: the imports, and the cluster. Studies that are to start their own Ray pass no address.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fake_study import TESTS, environment, processes_with
from waiting import until

from sweep.journal import read_progress
from sweep.store import StoredTrial, read_trials

# Told where to write, and who must be alive: argv is a folder and a process id.
_HEAD = """
import os, pathlib, ray, sys, time
folder, owner = pathlib.Path(sys.argv[1]), f"/proc/{sys.argv[2]}"
for tries_left in (2, 1, 0):  # Ray gives itself half a minute to come up: little where everything runs at once
    try:
        context = ray.init(address="local", num_cpus=64, include_dashboard=False, log_to_driver=False, logging_level=50,
                           object_store_memory=100 << 20, _system_config={"prestart_worker_first_driver": False})
        break
    except Exception:
        if not tries_left:
            (folder / "address").write_text("")
            raise
        ray.shutdown()
(folder / "address.part").write_text(context.address_info["gcs_address"])
(folder / "address.part").rename(folder / "address")
while os.path.exists(owner) and not (folder / "end").exists():
    time.sleep(0.1)
ray.shutdown()
(folder / "ended").touch()
"""


# What a cluster started by ray.init asks of those who join it.
_AUTH = {"RAY_AUTH_MODE": "token"}


_PHASES = ("host", "start", "ready", "warmup", "load", "stop")


@dataclass(slots=True)
class Driver:
    """A running `sweep.tune`. `results` is the folder of its study."""

    process: BaseProcess
    output: Path
    results: Path
    began_wall_s: float

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def send(self, number: int) -> None:
        """A signal to the driver alone."""
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = 300.0) -> int:
        """Its exit code; negative for a signal."""
        self.process.join(timeout_s)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"still running after {timeout_s} s:\n{self.text()}")
        return self.process.exitcode

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.join()

    def text(self) -> str:
        """Standard output and error so far."""
        return self.output.read_text(errors="replace")

    def reach(self, number: int, phase: str, timeout_s: float = 300.0) -> None:
        """Wait until this driver's trial `number` is in a phase or beyond. AssertionError when it ends before."""
        path = self.results / "logs" / f"{number:04d}"

        def there() -> bool:
            running = self.process.is_alive()
            now = read_progress(path)
            found = now is not None and now.since_wall_s >= self.began_wall_s
            found = found and now is not None and _PHASES.index(now.phase) >= _PHASES.index(phase)
            assert found or running, f"ended before trial {number} was in {phase}:\n{self.text()}"
            return found

        until(there, f"trial {number} in {phase}", timeout_s)


@dataclass(frozen=True, slots=True)
class Head:
    """A Ray cluster that whoever comes first starts; it lives until it is told to end, or its owner is gone."""

    folder: Path
    owner: int

    def begin(self) -> None:
        """Start it, unless another has."""
        with contextlib.suppress(FileExistsError):
            (self.folder / "begun").touch(exist_ok=False)
            os.posix_spawn(  # it is to outlive the worker that begins it
                sys.executable,
                [sys.executable, "-c", _HEAD, str(self.folder), str(self.owner)],
                environment(RAY_USAGE_STATS_ENABLED="0", PYTHONPATH=f"{TESTS.parent}{os.pathsep}{TESTS}"),
                file_actions=[(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1)],
                setsid=True,
            )

    def address(self) -> str:
        """Where it is, once it is up."""
        until((self.folder / "address").exists, "Ray for the tests")
        address = (self.folder / "address").read_text()
        assert address, "no Ray for the tests"
        return address

    def end(self) -> None:
        """End it, where it was begun."""
        if (self.folder / "begun").exists():
            (self.folder / "end").touch()
            until((self.folder / "ended").exists, "an end of the Ray of the tests")


class Studies:
    """Starts drivers; `address` is the shared cluster."""

    def __init__(self, head: Head) -> None:
        head.begin()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["sweep.tune", "sweep.study", "sweep.trainable", "tokenizers", "studies"])
        self._numbers = itertools.count(1)
        with _environment(**_AUTH):
            self._context.Process(target=int).start()  # the imports of the fork server, while Ray starts
        self.address = head.address()

    def start(
        self,
        study: Path,
        results: Path,
        *options: str,
        local: bool = False,
        env: Mapping[str, str] | None = None,
        umask: int = 0o022,
        errors: Path | None = None,
    ) -> Driver:
        """A driver on the shared cluster, or on one of its own (`local`). `errors`: where standard error goes apart."""
        count = next(self._numbers)
        output = study.parent / f"output-{count}.txt"
        words = [str(study), *options, *(() if local else ("--ray-address", self.address))]
        process = self._context.Process(
            target=_drive,
            args=(count, umask, words, str(output), str(errors or output), environment(**_AUTH, **(env or {}))),
        )
        began_wall_s = time.time()
        process.start()
        until(output.exists, "the driver to start")
        return Driver(process, output, results, began_wall_s)


@contextlib.contextmanager
def _environment(**more: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _drive(count: int, umask: int, words: list[str], output: str, errors: str, env: dict[str, str]) -> None:
    os.umask(umask)
    os.setsid()  # a terminal's Ctrl-C goes to the whole group
    for path, number in ((errors, 2), (output, 1)):  # the output's file says that the driver has started
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(Path(output).parent)
    os.environ.clear()
    os.environ.update(env)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
    import ray

    from sweep.tune import app

    # Ray seeds its random ids by the time and an address, which forks of one moment share: let them drift apart.
    for _ in range(200 * count):
        ray.ObjectRef.from_random()

    code: Any = 0
    try:
        app(words, standalone_mode=True)
    except SystemExit as ended:
        code = ended.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0)


@contextlib.contextmanager
def all_studies() -> Iterator[Studies]:
    """Studies for a while, on a cluster of their own."""
    with tempfile.TemporaryDirectory() as folder:
        head = Head(Path(folder), os.getpid())
        try:
            yield Studies(head)
        finally:
            head.end()


def kill_again_and_again(
    studies: Studies, study: Path, results: Path, *, trials: int, kills: int, seed: int
) -> list[tuple[StoredTrial, ...]]:
    """Start a study `kills` times and SIGKILL its driver at random moments; what is stored only grows. The record after
    each kill."""
    draw = random.Random(seed)
    # Most fall into the start, which costs little to repeat: the lock, the checks, the take-over, joining Ray.
    early = set(draw.sample(range(kills), kills * 7 // 10))
    stored, records = 0, []
    for kill in range(kills):
        driver = studies.start(study, results)
        if kill not in early:
            number = min(stored + draw.choice((0, 0, 1)), trials - 1)
            with contextlib.suppress(AssertionError):  # it may be done before
                driver.reach(number, draw.choice(("start", "load", "stop")))
        time.sleep(draw.uniform(0.0, 1.0 if kill in early else 0.4))
        driver.kill()
        records.append(read_trials(results) if results.exists() else ())
        assert len(records[-1]) >= stored
        stored = len(records[-1])
    return records


def nothing_left(folder: Path, within_s: float = 300.0) -> float:
    """Seconds until no process has `folder` in its command line any more; AssertionError after `within_s`."""
    began = time.monotonic()
    until(lambda: not processes_with(str(folder)), f"an end of {processes_with(str(folder))}", within_s)
    return time.monotonic() - began
