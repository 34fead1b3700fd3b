"""Writing trials: one file a trial and table, whole or absent."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sweep.atomic_file import DiskFull, reserve_room, write_atomically, write_error
from sweep.redact import Redactor
from sweep.store.rows import (
    Row,
    cleaned,
    engine_rows,
    event_rows,
    request_rows,
    round_rows,
    telemetry_rows,
    trial_row,
)
from sweep.store.schema import SCHEMA_VERSION, TABLES, Schema, TelemetryRow, table_schemas
from sweep.trial import TrialResult

METADATA_PREFIX = "sweep."
# Not in the tables' folders: polars refuses to read a folder that also holds a file of another kind.
SCRATCH = ".writing"
# Room that is kept free for the trial that is running when the disk fills up: a night's last trial can be half an hour.
_RESERVE = ".reserve"
_RESERVE_BYTES = 8 << 20


def trial_file(folder: Path, table: str, number: int) -> Path:
    """The file of one trial in one table, such as `trials/0003.parquet`."""
    return folder / table / f"{number:04d}.parquet"


def put_trial(folder: Path, number: int, contents: Mapping[str, bytes]) -> None:
    """Write the files of one trial (see `Store.encoded`) into the tables under `folder`, whole or not at all.

    `contents` is asked for one table after the other, in the order of TABLES, so that not all need be in memory.
    Raises as `Store.append`.
    """
    if trial_file(folder, "trials", number).exists():
        raise ValueError(f"trial {number} is stored already")
    _make_folders(folder)
    written: list[Path] = []
    try:
        for table in TABLES:
            path = trial_file(folder, table, number)
            written.append(path)
            _write(folder, path, contents[table])
    except BaseException:
        for path in reversed(written):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        raise


def _make_folders(folder: Path) -> None:
    for name in (SCRATCH, *TABLES):
        try:
            (folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(folder / name, error) from error


def _write(folder: Path, path: Path, content: bytes) -> None:
    scratch, reserve = folder / SCRATCH, folder / _RESERVE
    try:
        write_atomically(path, content, scratch=scratch)
    except DiskFull:
        if not reserve.exists():
            raise
        reserve.unlink()
        write_atomically(path, content, scratch=scratch)


class Store:
    """Appends trials to the tables under `folder`; the one writer of a study (see `study_folder`).

    `metadata` (the fingerprint) goes into every file with the schema version and the trial's command. Every string is
    redacted on its way. `reserve_bytes` are kept in a file `.reserve`, which is given up for the trial that finds the
    disk full. Raises DiskFull or WriteFailed when the tables' folders or the reserve cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        schema: Schema,
        *,
        metadata: Mapping[str, str],
        redactor: Redactor,
        reserve_bytes: int = _RESERVE_BYTES,
    ) -> None:
        self._folder, self._schema, self._redactor = folder, schema, redactor
        self._reserve, self._reserve_bytes = folder / _RESERVE, reserve_bytes
        self._metadata = dict(metadata)
        _make_folders(folder)
        self.check_room()

    def check_room(self) -> None:
        """To be called before a trial starts. Raises DiskFull where its result might find no room."""
        try:
            if self._reserve_bytes and not (self._reserve.exists() and self._reserve.stat().st_size):
                reserve_room(self._reserve, self._reserve_bytes)
        except OSError as error:
            raise write_error(self._reserve, error) from error

    def append(
        self,
        result: TrialResult,
        *,
        engine_summary: Mapping[str, float | None],
        telemetry: Sequence[TelemetryRow] = (),
    ) -> None:
        """Store one trial; when this returns it survives a power cut.

        The row in `trials` is written last and is what makes the trial count. Raises DiskFull or WriteFailed with
        nothing of this trial left and all others untouched; ValueError when the trial is stored already or does not fit
        the schema. A trial that finds the disk full goes into the reserve, and `check_room` then stops the next one.
        """
        contents = self.encoded(result, engine_summary, telemetry)
        try:
            self._folder.stat()  # a study's folder that went away is not made anew for one trial
        except OSError as error:
            raise write_error(self._folder, error) from error
        put_trial(self._folder, result.spec.number, contents)

    def encoded(
        self, result: TrialResult, engine_summary: Mapping[str, float | None], telemetry: Sequence[TelemetryRow] = ()
    ) -> dict[str, bytes]:
        """The files of one trial by table, for `put_trial`. Raises ValueError where it does not fit the schema."""
        number = result.spec.number
        rows: dict[str, list[Row]] = {
            "requests": request_rows(number, result.requests),
            "rounds": round_rows(number, result.rounds),
            "engine": engine_rows(number, result.engine),
            "telemetry": telemetry_rows(number, telemetry),
            "events": event_rows(number, result.events),
            "trials": [trial_row(result, self._schema, engine_summary)],
        }
        # All are made before the first is written: what does not fit its types leaves no file.
        return {table: self._encode(table, rows[table], result) for table in TABLES}

    def _encode(self, table: str, rows: list[Row], result: TrialResult) -> bytes:
        metadata = {
            **self._metadata,
            "schema_version": str(SCHEMA_VERSION),
            "table": table,
            "trial": str(result.spec.number),
            "command": result.command,
        }
        redact = self._redactor.text
        schema = table_schemas(self._schema)[table].with_metadata(
            {METADATA_PREFIX + key: redact(value) for key, value in metadata.items()}
        )
        sink = pa.BufferOutputStream()
        pq.write_table(
            pa.Table.from_pylist([cleaned(row, redact) for row in rows], schema=schema),
            sink,
            compression="zstd",
            # What a disk silently loses in the middle of a file is found when the study is opened again.
            write_page_checksum=True,
        )
        return bytes(sink.getvalue())
