"""The table `passed_over`: points that the search came to and did not launch, or launched to check that it need not.

One file a trial number: what was passed over on the way to that trial. It is written by the study, not by the trial's
worker, before the trial is launched, and so is no part of the trial's own files. A folder without it has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sweep.atomic_file import write_atomically, write_error
from sweep.guide import PassedOver, Refusal, Same
from sweep.redact import Redactor
from sweep.store.read import flags_of, read_file, table_files
from sweep.store.rows import Row, cleaned, flag_columns, flag_types
from sweep.store.schema import PASSED_OVER, SCHEMA_VERSION, Schema, passed_schema
from sweep.store.write import METADATA_PREFIX, SCRATCH, trial_file


class PassedStore:
    """Keeps what was passed over under `folder`; the one writer of it. `known` is what lies there already."""

    def __init__(
        self,
        folder: Path,
        schema: Schema,
        *,
        metadata: Mapping[str, str],
        redactor: Redactor,
        known: Iterable[PassedOver] = (),
    ) -> None:
        self._folder, self._schema = folder, schema
        self._metadata, self._redactor = dict(metadata), redactor
        self._points: dict[int, list[PassedOver]] = {}
        for passed in known:
            self._points.setdefault(passed.number, []).append(passed)

    def append(self, passed: PassedOver) -> None:
        """Store one point; when this returns it survives a power cut. Raises DiskFull or WriteFailed, and ValueError
        for a flag that has no column in the schema.
        """
        points = self._points.setdefault(passed.number, [])
        points.append(passed)
        rows = [_row(one, place, self._schema) for place, one in enumerate(points)]
        path = trial_file(self._folder, PASSED_OVER, passed.number)
        for place in (path.parent, self._folder / SCRATCH):
            try:
                place.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise write_error(place, error) from error
        write_atomically(path, self._encode(passed.number, rows), scratch=self._folder / SCRATCH)

    def _encode(self, number: int, rows: list[Row]) -> bytes:
        notes = {**self._metadata, "schema_version": str(SCHEMA_VERSION), "table": PASSED_OVER, "trial": str(number)}
        redact = self._redactor.text
        schema = passed_schema(self._schema).with_metadata(
            {METADATA_PREFIX + key: redact(value) for key, value in notes.items()}
        )
        sink = pa.BufferOutputStream()
        table = pa.Table.from_pylist([cleaned(row, redact) for row in rows], schema=schema)
        pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
        return bytes(sink.getvalue())


def read_passed(folder: Path) -> tuple[PassedOver, ...]:
    """All points passed over, by trial number and in the order they came up; none where the folder has none.

    Raises HostError as `read_trials`.
    """
    return tuple(_passed(row, table) for path in table_files(folder, PASSED_OVER) for row, table in _rows(path))


def _rows(path: Path) -> list[tuple[dict[str, Any], pa.Table]]:
    table = read_file(path)
    return [(row, table) for row in table.to_pylist()]


def _row(passed: PassedOver, place: int, schema: Schema) -> Row:
    refusal, same = passed.refusal, passed.same
    return {
        "trial": passed.number,
        "place": place,
        "launched": passed.audited,
        "rule": None if refusal is None else refusal.rule,
        "reason": None if refusal is None else refusal.reason,
        "confidence": None if refusal is None else refusal.confidence,
        "same_as": None if same is None else same.trial,
        **flag_columns(passed.flags, schema),
        "flag_types": flag_types(passed.flags),
    }


def _passed(row: Mapping[str, Any], table: pa.Table) -> PassedOver:
    launched = bool(row["launched"])
    refusal = same = None
    if row["rule"] is not None:
        refusal = Refusal(row["reason"], row["rule"], row["confidence"], launched)
    else:
        same = Same(row["same_as"], launched)
    return PassedOver(row["trial"], flags_of(row, table.schema), refusal, same)
