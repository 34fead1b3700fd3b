"""A study as one file a table: what is handed on, or kept beside the code, of a study that will not grow any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sweep.atomic_file import write_atomically
from sweep.errors import HostError
from sweep.records import EngineSample, RequestRecord, RoundRecord
from sweep.store.read import StoredTrial, read_file, request_of, round_of, sample_of, stored_trial, table_files
from sweep.store.schema import TABLES
from sweep.store.write import METADATA_PREFIX

# Metadata of a file that is of one trial alone.
_OF_ONE_TRIAL = {"trial", "command"}
_DIGITS = 3  # of milliseconds and seconds: a microsecond and a millisecond, far below what is told apart


@dataclass(frozen=True, slots=True)
class StoredLaunch:
    """All that is stored of one trial but its events and telemetry. `engine` is empty where it was not kept."""

    trial: StoredTrial
    requests: tuple[RequestRecord, ...]
    rounds: tuple[RoundRecord, ...]
    engine: tuple[EngineSample, ...] = ()


def pack(
    folder: Path,
    out: Path,
    *,
    tables: Sequence[str] = TABLES,
    plain: Callable[[str], str] = str,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write the study in `folder` as `out/TABLE.parquet`, one file a table, rows in order of trial.

    `plain` is applied to every text on its way, and `metadata` added to that of the study. Times lose what is below a
    microsecond. Raises HostError for a study that has no trials or cannot be read, and as `write_atomically`.
    """
    if not table_files(folder, "trials"):
        raise HostError(f"{folder} holds no trials")
    out.mkdir(parents=True, exist_ok=True)
    for name in tables:
        parts = [read_file(path) for path in table_files(folder, name)]
        if not parts:
            continue
        notes = {k.decode(): v.decode() for k, v in (parts[0].schema.metadata or {}).items()}
        notes = {k: v for k, v in notes.items() if k.removeprefix(METADATA_PREFIX) not in _OF_ONE_TRIAL}
        notes |= {METADATA_PREFIX + key: value for key, value in (metadata or {}).items()}
        whole = pa.concat_tables([part.replace_schema_metadata(None) for part in parts], promote_options="default")
        schema = whole.schema.with_metadata({key: plain(value) for key, value in notes.items()})
        rows = [{key: _plain(value, plain) for key, value in row.items()} for row in whole.to_pylist()]
        sink = pa.BufferOutputStream()
        pq.write_table(
            pa.Table.from_pylist(rows, schema=schema),
            sink,
            compression="zstd",
            compression_level=19,
            write_page_checksum=True,
        )
        write_atomically(out / f"{name}.parquet", bytes(sink.getvalue()))


def read_launches(folder: Path, *, engine: bool = False) -> tuple[StoredLaunch, ...]:
    """Every launch of a study in order of its trial, packed or not; `engine`: with the engine's counters.

    Raises HostError for files that cannot be read, and where there is no trial at all.
    """
    trials = [stored_trial(table, row) for table in _tables(folder, "trials") for row in table.to_pylist()]
    if not trials:
        raise HostError(f"{folder} holds no trials, neither as trials/NNNN.parquet nor as trials.parquet")
    requests, rounds = _by_trial(folder, "requests"), _by_trial(folder, "rounds")
    samples = _by_trial(folder, "engine") if engine else {}
    return tuple(
        StoredLaunch(
            one,
            tuple(map(request_of, requests.get(one.number, ()))),
            tuple(map(round_of, rounds.get(one.number, ()))),
            tuple(map(sample_of, samples.get(one.number, ()))),
        )
        for one in sorted(trials, key=lambda trial: trial.number)
    )


def read_metadata(folder: Path) -> dict[str, str]:
    """What stands beside the tables of a study, such as its fingerprint, as flat text. Empty where there is none."""
    for table in _tables(folder, "trials"):
        found = {k.decode(): v.decode(errors="replace") for k, v in (table.schema.metadata or {}).items()}
        return {k.removeprefix(METADATA_PREFIX): v for k, v in found.items() if k.startswith(METADATA_PREFIX)}
    return {}


def _tables(folder: Path, name: str) -> list[pa.Table]:
    packed = folder / f"{name}.parquet"
    return [read_file(path) for path in ([packed] if packed.is_file() else table_files(folder, name))]


def _by_trial(folder: Path, name: str) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for table in _tables(folder, name):
        for row in table.to_pylist():
            found.setdefault(row["trial"], []).append(row)
    return found


def _plain(value: Any, plain: Callable[[str], str]) -> Any:
    match value:
        case str():
            return plain(value)
        case float():
            return round(value, _DIGITS + 3)
        case list():
            return [_plain(one, plain) for one in value]
        case dict():
            return {key: _plain(one, plain) for key, one in value.items()}
        case _:
            return value
