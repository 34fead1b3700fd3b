"""The record of a study in an object store: a copy, which each trial joins when it has ended.

An object appears whole or not at all. The row in `trials` goes last, as it does on a disk: a trial is there once it is
there with everything. The study's own folder stays on the driver's disk; a driver on another machine begins by fetching
what is missing there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from sweep.atomic_file import write_atomically
from sweep.errors import HostError, HostNotReady
from sweep.store.schema import TABLES
from sweep.store.write import trial_file

SCHEMES = ("s3", "gs")
_BESIDE = ("fingerprint.json", "study.json")


class RemoteResults:
    """The folder of one study in an object store. Made by `open`."""

    def __init__(self, system: Any, root: str, shown: str) -> None:
        self._system, self._root, self._shown = system, root, shown

    @classmethod
    def open(cls, uri: str, study: str) -> Self:
        """The study's folder under `uri`, such as `s3://bucket/results`; nothing is created.

        Credentials are those of the environment. Raises HostError for what is no such address, one with credentials in
        it, and a store that does not answer.
        """
        parts = urlsplit(uri)
        if parts.scheme not in SCHEMES or not parts.hostname:
            raise HostError(f"study.results: {uri!r} is no address of an object store, such as s3://bucket/results")
        if parts.password is not None:
            raise HostError("study.results: put credentials in the environment (AWS_ACCESS_KEY_ID, ...), not in there")
        try:
            system, path = fs.FileSystem.from_uri(uri)
            made = cls(system, f"{path.rstrip('/')}/{study}", f"{uri.partition('?')[0].rstrip('/')}/{study}")
            made._names("trials")
        except (OSError, pa.ArrowException) as error:
            raise HostError(f"study.results: {uri.partition('?')[0]} cannot be used: {_said(error)}") from None
        return made

    def __str__(self) -> str:
        return self._shown

    def fetch(self, folder: Path) -> tuple[int, ...]:
        """Have every stored trial in `folder` that is not there yet, and what lies beside them; their numbers.

        Raises HostError when the store does not answer, WriteFailed when the folder cannot be written.
        """
        fetched = []
        try:
            for name in _BESIDE:
                if not (folder / name).exists() and self._exists(name):
                    write_atomically(folder / name, self._read(name))
            for name in self._names("trials"):
                number = int(name.removesuffix(".parquet"))
                if trial_file(folder, "trials", number).exists():
                    continue
                for table in TABLES:
                    path = trial_file(folder, table, number)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_atomically(path, self._read(f"{table}/{name}"))
                fetched.append(number)
        except HostNotReady:
            raise
        except (OSError, pa.ArrowException) as error:
            raise HostError(f"{self} cannot be read: {_said(error)}") from None
        return tuple(sorted(fetched))

    def put(self, folder: Path, number: int) -> None:
        """Copy a stored trial there, and what lies beside it. Raises HostNotReady where that fails; may be repeated."""
        paths = [folder / name for name in _BESIDE]
        paths += [path for path in sorted((folder / "logs" / f"{number:04d}").glob("*")) if path.is_file()]
        paths += [trial_file(folder, table, number) for table in TABLES]
        try:
            for path in paths:
                if path.exists():
                    self._write(path.relative_to(folder).as_posix(), path.read_bytes())
        except (OSError, pa.ArrowException) as error:
            raise HostNotReady(f"trial {number} cannot be copied to {self}: {_said(error)}") from None

    def missing(self, folder: Path) -> Iterator[int]:
        """The trials in `folder` that are not there yet. Raises HostNotReady when the store does not answer."""
        try:
            there = set(self._names("trials"))
        except (OSError, pa.ArrowException) as error:
            raise HostNotReady(f"{self} does not answer: {_said(error)}") from None
        for path in sorted((folder / "trials").glob("*.parquet")):
            if path.name not in there and path.stem.isdigit():
                yield int(path.stem)

    def _names(self, table: str) -> list[str]:
        found = self._system.get_file_info(fs.FileSelector(f"{self._root}/{table}", allow_not_found=True))
        names = [one.base_name for one in found if one.type == fs.FileType.File]
        return sorted(name for name in names if name.removesuffix(".parquet").isdigit())

    def _exists(self, name: str) -> bool:
        return bool(self._system.get_file_info(f"{self._root}/{name}").type == fs.FileType.File)

    def _read(self, name: str) -> bytes:
        with self._system.open_input_stream(f"{self._root}/{name}") as stream:
            return bytes(stream.read())

    def _write(self, name: str, content: bytes) -> None:
        with self._system.open_output_stream(f"{self._root}/{name}") as stream:
            stream.write(content)


def copy_missing(remote: RemoteResults, folder: Path, say: Callable[[str], object]) -> None:
    """Copy every stored trial that is not there yet; what cannot be copied is said and comes with the next one."""
    try:
        for number in remote.missing(folder):
            remote.put(folder, number)
    except HostNotReady as error:
        say(f"{error}; it is tried again with the next trial")


def _said(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
