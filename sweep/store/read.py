"""Reading what is stored: by anyone, at any time, also while the study runs. Nothing here writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sweep.errors import HostError
from sweep.records import EngineConfig, EngineSample, EngineSummary, Event, RequestRecord, RoundRecord
from sweep.store.schema import SCHEMA_VERSION, TelemetryRow
from sweep.store.write import METADATA_PREFIX, trial_file
from sweep.trial import Failure, Flag, TrialKind, TrialStatus

_FLAG_OF: Mapping[str, Callable[[Any], Flag]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": lambda value: value in (True, "True"),
}


_OF_SAMPLES = frozenset(item.name for item in fields(EngineSample))  # asked for tens of thousands of rows a study


class DamagedFile(HostError):
    """A file of a table that is not whole Parquet."""


@dataclass(frozen=True, slots=True)
class StoredTrial:
    """One row of `trials`, as the search and the final table need it.

    `metrics` is None unless the trial is complete or censored; a metric that the file has no column for is not in it.
    `thin_percentiles` names those (`p99`) that rest on too few completed requests. For the rest see `TrialResult`.
    """

    number: int
    kind: TrialKind
    flags: Mapping[str, Flag]
    status: TrialStatus
    metrics: Mapping[str, float | None] | None
    score: float | None
    feasible: bool | None
    violations: Mapping[str, float]
    failure: Failure | None
    attempts: int
    command: str
    started_wall_s: float
    startup_s: float | None
    load_s: float | None
    total_s: float
    remarks: tuple[str, ...] = ()
    disturbances: tuple[str, ...] = ()
    engine_config: EngineConfig = field(default_factory=EngineConfig)
    engine_summary: Mapping[str, float | None] = field(default_factory=dict)
    round_scores: tuple[float | None, ...] = ()
    thin_percentiles: tuple[str, ...] = ()
    stopped_because: str | None = None
    stood_in: str | None = None
    block: int | None = None
    node: str | None = None

    def engine_figures(self) -> EngineSummary:
        """`engine_summary` by name; None for what this file has no column for."""
        return EngineSummary(**_of(EngineSummary, self.engine_summary))


def read_trials(folder: Path) -> tuple[StoredTrial, ...]:
    """All stored trials in order of number; none where the folder has none.

    Raises HostError for a file that cannot be read, or was written by a newer version (see `set_aside_broken`).
    """
    return tuple(sorted((_stored(path) for path in table_files(folder, "trials")), key=lambda trial: trial.number))


def read_requests(folder: Path, number: int) -> tuple[RequestRecord, ...]:
    """The requests of one trial in stored order, round by round (`RequestRecord.round`).

    Raises HostError when there is no such file or it cannot be read.
    """
    return tuple(request_of(row) for row in _rows(folder, "requests", number))


def read_rounds(folder: Path, number: int) -> tuple[RoundRecord, ...]:
    """The rounds of one trial in their order. Raises HostError as `read_requests`."""
    return tuple(round_of(row) for row in _rows(folder, "rounds", number))


def read_engine(folder: Path, number: int) -> tuple[EngineSample, ...]:
    """The engine's counters of one trial in stored order. Raises HostError as `read_requests`."""
    table = read_file(trial_file(folder, "engine", number))
    return tuple(map(EngineSample, *(_column(table, item.name, item.default) for item in fields(EngineSample))))


def read_events(folder: Path, number: int) -> tuple[Event, ...]:
    """The events of one trial in stored order. Raises HostError as `read_requests`."""
    rows = _rows(folder, "events", number)
    return tuple(Event(**_of(Event, {**row, "wall_s": _wall_s(row["at"])})) for row in rows)


def read_telemetry(folder: Path, number: int, names: Sequence[str] | None = None) -> tuple[TelemetryRow, ...]:
    """The readings of devices and host of one trial in stored order, all of each or only `names` (the others are None).

    Raises HostError as `read_requests`.
    """
    wanted = None if names is None else list(dict.fromkeys(("at_s", "phase", *names)))
    table = read_file(trial_file(folder, "telemetry", number), wanted)
    # Column by column: there may be tens of thousands of rows.
    columns = {item.name: _column(table, item.name) for item in fields(TelemetryRow)}
    columns["throttle_reasons"] = [
        None if one is None else tuple(one) for one in islice(columns["throttle_reasons"], table.num_rows)
    ]
    return tuple(map(TelemetryRow, *columns.values()))


def _column(table: pa.Table, name: str, without: object = None) -> Iterable[Any]:
    """Its values; `without` as often as one likes where the file has no such column."""
    found: Iterable[Any] = table[name].to_pylist() if name in table.column_names else repeat(without)
    return found


def read_columns(folder: Path, table: str, names: Sequence[str]) -> tuple[tuple[Any, ...], ...]:
    """The named columns of a whole table, one tuple a name, in order of trial number.

    A file without such a column, written before it was asked for, gives None. Raises HostError as `read_trials`.
    """
    columns: list[list[Any]] = [[] for _ in names]
    for path in table_files(folder, table):
        found = read_file(path)
        for column, name in zip(columns, names, strict=True):
            column.extend(found[name].to_pylist() if name in found.column_names else [None] * found.num_rows)
    return tuple(tuple(column) for column in columns)


def read_file(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """One file, all of it or some columns, with the checksums of the pages read verified.

    Raises DamagedFile for what is not whole Parquet, and HostError for a file that cannot be opened or was written by a
    version with another schema.
    """
    # Read here, not by pyarrow: a disk or network that does not answer must not pass for a damaged file.
    try:
        content = path.read_bytes()
    except OSError as error:
        raise HostError(f"cannot read {path}: {error.strerror}") from error
    try:
        # In this thread: one of pyarrow's own that still drops `content` while Python exits aborts the process.
        table = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True).read(
            columns=columns, use_threads=False
        )
    except (OSError, pa.ArrowException) as error:
        raise DamagedFile(f"{path} is damaged; start the study again to have it set aside") from error
    version = file_version(table)
    if version > SCHEMA_VERSION:
        raise HostError(f"{path} was written by a newer version of sweep; use that version or another study name")
    if 0 < version < SCHEMA_VERSION:
        raise HostError(
            f"{path} was written by an older version of sweep, whose trials were one round of all prompts: today's "
            "cannot be compared with them; give the study another name, or go on with that version"
        )
    return table


def file_version(table: pa.Table) -> int:
    """The schema version in a file's metadata, 0 without one."""
    text = note(table, "schema_version")
    return int(text) if text.isdigit() else 0


def note(table: pa.Table, key: str) -> str:
    """One entry of a file's metadata, empty when it is not there."""
    return str((table.schema.metadata or {}).get((METADATA_PREFIX + key).encode(), b"").decode(errors="replace"))


def table_files(folder: Path, table: str) -> list[Path]:
    """The files of a table, one a trial, in order of its number."""
    found = [path for path in (folder / table).glob("*.parquet") if path.stem.isdigit()]
    return sorted(found, key=lambda path: int(path.stem))


def _stored(path: Path) -> StoredTrial:
    table = read_file(path)
    return stored_trial(table, table.to_pylist()[0])


def _rows(folder: Path, table: str, number: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_file(trial_file(folder, table, number)).to_pylist()
    return rows


def request_of(row: Mapping[str, Any]) -> RequestRecord:
    """One row of `requests`."""
    return RequestRecord(**_of(RequestRecord, {**row, "itl_ms": tuple(row["itl_ms"] or ())}))


def round_of(row: Mapping[str, Any]) -> RoundRecord:
    """One row of `rounds`."""
    return RoundRecord(**_of(RoundRecord, {**row, "disturbed": tuple(row["disturbed"] or ())}))


def sample_of(row: Mapping[str, Any]) -> EngineSample:
    """One row of `engine`."""
    return EngineSample(**{name: value for name, value in row.items() if name in _OF_SAMPLES})


def _of(kind: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    return {item.name: row[item.name] for item in fields(kind) if item.name in row}


def stored_trial(table: pa.Table, row: Mapping[str, Any]) -> StoredTrial:
    """One row of a file of `trials`, whose schema says what its columns stand for."""
    roles: dict[str, dict[str, Any]] = {}
    for column in table.schema:
        notes = column.metadata or {}
        if b"role" in notes:
            roles.setdefault(notes[b"role"].decode(), {})[notes[b"name"].decode()] = row[column.name]
    status = TrialStatus(row["status"])
    return StoredTrial(
        number=row["number"],
        kind=TrialKind(row["kind"]),
        flags=_flags(row["flag_types"], roles.get("flag", {})),
        status=status,
        metrics=roles.get("metric", {}) if status in (TrialStatus.COMPLETE, TrialStatus.CENSORED) else None,
        score=row["score"],
        feasible=row["feasible"],
        violations={name: value for name, value in roles.get("violation", {}).items() if value is not None},
        failure=_failure(row),
        attempts=row["attempts"],
        command=row["command"],
        started_wall_s=_wall_s(row["started"]),
        startup_s=row["startup_s"],
        load_s=row["load_s"],
        total_s=row["total_s"],
        remarks=tuple(row["remarks"] or ()),
        disturbances=tuple(row.get("disturbances") or ()),
        engine_config=EngineConfig(**_of(EngineConfig, roles.get("engine_config", {}))),
        engine_summary=roles.get("engine_summary", {}),
        round_scores=tuple(row["round_scores"] or ()),
        thin_percentiles=tuple(row["thin_percentiles"] or ()),
        stopped_because=row["stopped_because"],
        stood_in=row.get("stood_in"),
        block=row["block"],
        node=row.get("node"),
    )


def flags_of(row: Mapping[str, Any], schema: pa.Schema) -> dict[str, Flag]:
    """The flags of one row, each of the kind it had."""
    columns = {}
    for column in schema:
        notes = column.metadata or {}
        if notes.get(b"role") == b"flag":
            columns[notes[b"name"].decode()] = row[column.name]
    return _flags(row["flag_types"], columns)


def _flags(types: list[dict[str, str]], columns: Mapping[str, Any]) -> dict[str, Flag]:
    return {
        entry["name"]: None if entry["type"] == "null" else _FLAG_OF[entry["type"]](columns[entry["name"]])
        for entry in types
    }


def _failure(row: Mapping[str, Any]) -> Failure | None:
    if row["failure_class"] is None:
        return None
    return Failure(
        failure_class=row["failure_class"],
        phase=row["failure_phase"],
        line=row["failure_line"],
        advice=row["advice"],
        retryable=row["retryable"],
        informative_for_search=row["informative_for_search"],
        policy=row["policy"],
        exit_code=row["exit_code"],
    )


def _wall_s(moment: datetime) -> float:
    # pyarrow gives UTC from zoneinfo or pytz, whichever is installed: both count alike from here.
    return moment.astimezone(UTC).timestamp()
