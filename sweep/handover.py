"""Results of nodes that do not see the study's folder: through Ray's object store to a process beside the driver.

On such a node a trial works in a folder of its own. What it needs of the record is fetched before, one file at a time;
its tables and logs are handed over before it is reported, and the process beside the driver writes them as a worker
that shares the folder would. Neither side ever holds more than one table of one trial a worker.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sweep.atomic_file import write_atomically
from sweep.errors import HostError, HostNotReady
from sweep.process import end_leftovers
from sweep.store import TABLES, put_trial, trial_file
from sweep.study_folder import StudyFolder

# Of a log its beginning and, since failures stand there, more of its end.
_LOG_HEAD_BYTES, _LOG_TAIL_BYTES = 64 << 10, 192 << 10
_LOGS_MOST = 32
_PROGRESS_EVERY_S = 2.0
_ANSWER_S = 300.0
# A spool that nothing was added to for so long is of a night that is over.
_KEPT_S = 7 * 24 * 3600.0
_READ = ("trials", "rounds", "engine", "telemetry")


class Intake:
    """Runs as an actor beside the driver, whose folder it reads and writes for trials of other nodes."""

    def __init__(self, folder: Path, holder: str) -> None:
        self._folder, self._holder = folder, holder

    def read(self, number: int, table: str) -> bytes | None:
        """One file of the record; None where there is none."""
        path = trial_file(self._folder, table, number)
        return path.read_bytes() if path.exists() else None

    def log(self, number: int, name: str) -> bytes | None:
        """A file of a trial's log folder; None where there is none."""
        path = self._logs(number) / Path(name).name
        return path.read_bytes() if path.exists() else None

    def put(self, number: int, tables: Mapping[str, Sequence[Any]]) -> str | None:
        """Store a trial, of each table a list with one reference. None when it is stored, otherwise why it is not.

        A trial that is stored already stays as it is: its worker was thought dead, and another was faster.
        """
        if StudyFolder.holder(self._folder) != self._holder:
            return "the study is held by another process"
        if trial_file(self._folder, "trials", number).exists():
            return None
        try:
            put_trial(self._folder, number, _Fetched(tables))
        except (HostNotReady, RayError) as error:
            return str(error).splitlines()[0]
        return None

    def keep(self, number: int, name: str, content: bytes) -> None:
        """A log or the progress of a trial, as far as it can be kept."""
        with contextlib.suppress(HostNotReady, OSError):
            self._logs(number).mkdir(parents=True, exist_ok=True)
            write_atomically(self._logs(number) / Path(name).name, content)

    def _logs(self, number: int) -> Path:
        return self._folder / "logs" / f"{number:04d}"


class _Fetched(dict[str, bytes]):
    """Tables that are fetched when they are asked for, and not kept."""

    def __init__(self, references: Mapping[str, Sequence[Any]]) -> None:
        super().__init__()
        self._references = references

    def __getitem__(self, table: str) -> bytes:
        content: bytes = ray.get(self._references[table][0], timeout=_ANSWER_S)
        return content


def start_intake(name: str, folder: Path, holder: str) -> Any:
    """The actor beside the driver, known to the study's workers by `name`; it ends with the driver."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(Intake).options(name=name, num_cpus=0, scheduling_strategy=here).remote(folder, holder)


class Spool:
    """A trial's own folder on a node that does not see the study's. Raises HostNotReady where the driver is gone.

    `folder` is the study's, `node` the name of this node.
    """

    def __init__(self, name: str, folder: Path, node: str) -> None:
        try:
            self._intake = ray.get_actor(name)
        except ValueError as error:
            raise HostNotReady(f"the driver of this study is gone: {error}") from None
        home = _own_folder()
        self.path = home / f"{folder.name}-{hashlib.sha256(f'{name} {node}'.encode()).hexdigest()[:12]}"
        for other in home.glob(f"{folder.name}-*"):  # of this driver's earlier runs, or of another of that name
            end_leftovers(other / "processes")
            if other != self.path and time.time() - other.stat().st_mtime > _KEPT_S:
                shutil.rmtree(other, ignore_errors=True)
        for inside in ("logs", "processes", "load", *TABLES):
            (self.path / inside).mkdir(parents=True, exist_ok=True)

    def fetch(self, numbers: Sequence[int]) -> None:
        """Have the record of these trials here, as far as a race and a judgement of devices read it."""
        for number in numbers:
            for table in _READ:
                path = trial_file(self.path, table, number)
                if not path.exists() and (content := self._ask(self._intake.read.remote(number, table))) is not None:
                    write_atomically(path, content)

    def fetch_log(self, number: int, name: str) -> None:
        """Have a file of the trial's log folder here that the driver writes."""
        content = self._ask(self._intake.log.remote(number, name))
        if content is not None:
            write_atomically(self._logs(number) / name, content)

    def put(self, number: int, contents: Mapping[str, bytes]) -> None:
        """Hand over the files of a trial; when this returns they are stored. Raises HostNotReady with the reason."""
        references = {table: [ray.put(content)] for table, content in contents.items()}
        why = self._ask(self._intake.put.remote(number, references))
        if why is not None:
            raise HostNotReady(why)

    def put_logs(self, number: int) -> None:
        """Hand over what the trial wrote of itself, long logs without their middle, and remove it here."""
        files = sorted(path for path in self._logs(number).glob("*") if path.is_file())
        with contextlib.suppress(HostNotReady, OSError):
            for path in files[-_LOGS_MOST:]:
                self._ask(self._intake.keep.remote(number, path.name, shortened(path)))
        shutil.rmtree(self._logs(number), ignore_errors=True)

    @contextlib.contextmanager
    def progress_shown(self, number: int, name: str) -> Iterator[None]:
        """Meanwhile the driver sees how far the trial is, a little late."""
        over = threading.Event()

        def copy() -> None:
            last = b""
            while not over.wait(_PROGRESS_EVERY_S):
                with contextlib.suppress(OSError, RayError):
                    now = (self._logs(number) / name).read_bytes()
                    if now != last:
                        self._intake.keep.remote(number, name, now)
                    last = now

        thread = threading.Thread(target=copy, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _logs(self, number: int) -> Path:
        return self.path / "logs" / f"{number:04d}"

    def _ask(self, answer: Any) -> Any:
        try:
            return ray.get(answer, timeout=_ANSWER_S)
        except RayError as error:
            raise HostNotReady(f"the driver of this study does not answer: {type(error).__name__}") from None


def shortened(path: Path) -> bytes:
    """A file as it is, or its beginning and its end where it is long."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _LOG_HEAD_BYTES + _LOG_TAIL_BYTES:
            return file.read(_LOG_HEAD_BYTES + _LOG_TAIL_BYTES)
        head = file.read(_LOG_HEAD_BYTES)
        file.seek(size - _LOG_TAIL_BYTES)
        left_out = size - _LOG_HEAD_BYTES - _LOG_TAIL_BYTES
        return head + f"\n[{left_out} bytes left out]\n".encode() + file.read(_LOG_TAIL_BYTES)


def _own_folder() -> Path:
    path = Path(tempfile.gettempdir()) / f"sweep-spool-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise HostError(f"{path} belongs to somebody else; remove it or set TMPDIR")
    return path
