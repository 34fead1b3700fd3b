"""Taking a study's folder, and telling whether its trials may be continued."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from sweep.atomic_file import WriteFailed, write_atomically
from sweep.errors import HostError, UserError
from sweep.fingerprint import Fingerprint
from sweep.redact import Redactor
from sweep.study_folder.lock import Lock

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FOLDERS = ("logs", "processes", "load", "ray")


class StudyFolder:
    """`results/NAME`, held by this process until `close` or the end of the process. A context manager."""

    def __init__(self, path: Path, lock: Lock) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, results: Path, name: str) -> StudyFolder:
        """Make the folder where it is missing and take it for this process alone.

        The kernel frees the lock when its holder ends, however that was. Raises HostError when another process has the
        study, naming its host and id, or the folder cannot be written; UserError for a name that is no folder name.
        """
        if not _NAME.fullmatch(name) or ".." in name:
            raise UserError(
                f"study name {name!r} is not a plain folder name: take letters, digits, '.', '_' and '-', "
                "beginning with a letter or digit"
            )
        path = results / name
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = Lock.take(path, name)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            for folder in _FOLDERS:
                (path / folder).mkdir(exist_ok=True)
        except OSError as error:
            lock.release()
            raise _unusable(path, error) from error
        return cls(path, lock)

    def adopt(self, fingerprint: Fingerprint, settings: Mapping[str, Any], redactor: Redactor) -> tuple[str, ...]:
        """Write `fingerprint.json` at first, and later refuse what would mix trials that cannot be compared.

        `settings` (the study as read, JSON values) goes to `study.json` each time, redacted: weights, trials, deadline
        and ranges may change. Returns remarks, one line each. Raises UserError naming each difference that
        makes old and new trials incomparable, and HostError when a file cannot be read or written.
        """
        remarks: tuple[str, ...] = ()
        known, damaged = self._known_fingerprint()
        # A study that was stopped before its first trial, to correct it perhaps, has nothing to be compared with.
        if known is not None and any((self.path / "trials").glob("*.parquet")):
            remarks = _compared(self.path, known, fingerprint)
            fingerprint = known.completed_from(fingerprint)
        elif damaged:
            remarks = (f"{self._fingerprint_path} was damaged and is set aside; taken anew",)
        try:
            write_atomically(self._fingerprint_path, fingerprint.as_json().encode())
            text = json.dumps(redactor.tree(settings), indent=2, default=str) + "\n"
            write_atomically(self.path / "study.json", text.encode())
        except WriteFailed as error:
            raise HostError(str(error)) from error
        return remarks

    @staticmethod
    def recorded(path: Path) -> Fingerprint | None:
        """What `adopt` wrote last at `path`; None where there is nothing that can be read."""
        try:
            return Fingerprint.from_json((path / "fingerprint.json").read_text())
        except (OSError, ValueError, TypeError):
            return None

    @staticmethod
    def look(path: Path) -> None:
        """Whether `open` could make and write the folder at `path`, without making it. Raises HostError as it would."""
        there = next(place for place in (path, *path.absolute().parents) if place.exists())
        if not there.is_dir():
            raise _unusable(path, NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)))
        if not os.access(there, os.W_OK | os.X_OK):
            raise _unusable(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))

    @staticmethod
    def compare(path: Path, fingerprint: Fingerprint) -> tuple[str, ...]:
        """The remarks of `adopt` on trials that are stored at `path`, and its refusal, with nothing touched.

        Raises UserError where they cannot be compared with new ones. A fingerprint that cannot be read says nothing.
        """
        known = StudyFolder.recorded(path)
        return () if known is None else _compared(path, known, fingerprint)

    @staticmethod
    def holder(path: Path) -> str:
        """Words that stand for the process that last took the study at `path`: the same as long as no other takes it.

        For workers that may outlive it: what they measured for a holder that is no more must not be stored.
        """
        return Lock.content(path)

    def log_folder(self, number: int) -> Path:
        """`logs/NNNN`, made where it is missing: the logs of one trial. Raises HostError when it cannot be made."""
        path = self.path / "logs" / f"{number:04d}"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(path, error) from error
        return path

    @property
    def processes(self) -> Path:
        """Records of the processes we started."""
        return self.path / "processes"

    @property
    def load(self) -> Path:
        """Prompt files and results of the load client."""
        return self.path / "load"

    @property
    def ray(self) -> Path:
        """What Ray Tune writes for itself."""
        return self.path / "ray"

    @property
    def tensorboard(self) -> Path:
        """What TensorBoard opens, of all runs."""
        return self.ray / "tensorboard"

    def clear_ray(self) -> None:
        """Remove what Ray Tune wrote for itself in earlier runs; what cannot be removed stays."""
        for entry in self.ray.iterdir():
            if entry != self.tensorboard:
                shutil.rmtree(entry, ignore_errors=True)

    def close(self) -> None:
        """Give the study up; may be repeated."""
        self._lock.release()

    def __enter__(self) -> StudyFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _fingerprint_path(self) -> Path:
        return self.path / "fingerprint.json"

    def _known_fingerprint(self) -> tuple[Fingerprint | None, bool]:
        """The stored fingerprint, and whether there was one that cannot be used, which is then set aside."""
        path = self._fingerprint_path
        try:
            return Fingerprint.from_json(path.read_text()), False
        except FileNotFoundError:
            return None, False
        except OSError as error:
            raise HostError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, TypeError):
            pass
        aside = self.path / "set_aside"
        try:
            aside.mkdir(exist_ok=True)
            path.rename(aside / f"fingerprint-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.json")
        except OSError as error:
            raise HostError(f"cannot set aside {path}: {error.strerror}") from error
        return None, True


def _compared(path: Path, known: Fingerprint, fingerprint: Fingerprint) -> tuple[str, ...]:
    found = known.differences(fingerprint)
    if found.incomparable:
        raise UserError(
            f"{path} holds trials that cannot be compared with new ones: {'; '.join(found.incomparable)}. "
            "Take another study name, or put it back as it was"
        )
    return tuple(f"differs from the start of the study, which is no obstacle: {r}" for r in found.remarks)


def _unusable(path: Path, error: OSError) -> HostError:
    remedy = "make room" if error.errno in {errno.ENOSPC, errno.EDQUOT} else "choose another results folder"
    return HostError(f"cannot write in {path}: {error.strerror}; {remedy}")
