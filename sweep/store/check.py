"""Finding what a crash, a full disk or a stray hand left in the tables, and moving it out of the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sweep.atomic_file import TEMPORARY_SUFFIX, sync_folder
from sweep.errors import HostError
from sweep.store.read import DamagedFile, file_version, note, read_file
from sweep.store.schema import PASSED_OVER, SCHEMA_VERSION, TABLES
from sweep.store.write import SCRATCH, trial_file

SET_ASIDE = "set_aside"
_CUT_SHORT = "was being written when the study was cut short"


@dataclass(frozen=True, slots=True)
class _Finding:
    path: Path
    table: str
    why: str


def set_aside_broken(folder: Path) -> tuple[str, ...]:
    """Move everything out of the tables that is not a whole trial; one line for each file, none when all is well.

    For the one that holds the study (see `study_folder`). Moved to `set_aside/`, never deleted and never overwriting:
    damaged and empty files, files of other origin or under another trial's number, left temporary files, a row in
    `trials` without its other files, and other files without their row in `trials`. Raises HostError when a file was
    written by another version with another schema, cannot be opened, or cannot be moved.
    """
    findings = [_Finding(path, SCRATCH, _CUT_SHORT) for path in _entries(folder / SCRATCH)]
    findings += [finding for table in (*TABLES, PASSED_OVER) for finding in _broken_files(folder, table)]
    lines = [_move(folder, finding) for finding in findings]
    lines += [_move(folder, finding) for finding in _incomplete_trials(folder)]
    return tuple(lines)


def set_aside_trial(folder: Path, number: int, why: str) -> tuple[str, ...]:
    """Move a whole trial out of the tables, as if it had not run; one line for each file, `FILE {why}; set aside ...`.

    Its row in `trials` goes first: without it the others do not count. Raises HostError when a file cannot be moved.
    """
    paths = [(table, trial_file(folder, table, number)) for table in reversed(TABLES)]
    return tuple(_move(folder, _Finding(path, table, why)) for table, path in paths if path.exists())


def _broken_files(folder: Path, table: str) -> Iterator[_Finding]:
    for path in _entries(folder / table):
        if path.name.endswith(TEMPORARY_SUFFIX):
            yield _Finding(path, table, _CUT_SHORT)
        elif path.suffix != ".parquet" or not path.stem.isdigit() or path.is_symlink() or not path.is_file():
            yield _Finding(path, table, "is not a file of this study")
        elif path.stat().st_size == 0:
            yield _Finding(path, table, "is empty")
        elif why := _fault(path, table):
            yield _Finding(path, table, why)


def _fault(path: Path, table: str) -> str:
    """What is wrong with a file under a trial's name, empty when nothing is. Raises HostError for another version."""
    number = int(path.stem)
    try:
        found = read_file(path)
    except DamagedFile:
        return "is half-written or damaged"
    if not 1 <= file_version(found) <= SCHEMA_VERSION or note(found, "table") != table:
        return "is not a file of this study"
    if note(found, "trial") != str(number) or path != trial_file(path.parent.parent, table, number):
        return f"holds trial {note(found, 'trial')}, not {number}"
    if table == "trials" and (found.num_rows != 1 or found["number"][0].as_py() != number):
        return "does not hold its trial's one row"
    return ""


def _incomplete_trials(folder: Path) -> Iterator[_Finding]:
    numbers = {table: {int(path.stem) for path in _entries(folder / table)} for table in TABLES}
    whole = set.intersection(*numbers.values())
    for number in sorted(set.union(*numbers.values()) - whole):
        missing = [table for table in TABLES if number not in numbers[table]]
        why = (
            f"belongs to trial {number}, which was cut short"
            if "trials" in missing
            else f"belongs to trial {number}, which has lost its {' and '.join(missing)}"
        )
        for table in TABLES:
            if number in numbers[table]:
                yield _Finding(trial_file(folder, table, number), table, why)


def _entries(folder: Path) -> list[Path]:
    try:
        # NFS keeps a deleted file that somebody still reads under such a name; it goes by itself.
        return sorted(path for path in folder.iterdir() if not path.name.startswith(".nfs"))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HostError(f"cannot look into {folder}: {error.strerror}") from error


def _move(folder: Path, finding: _Finding) -> str:
    aside = folder / SET_ASIDE
    name = f"{finding.table.lstrip('.')}-{finding.path.name.lstrip('.')}"
    target = aside / name
    count = 1
    try:
        aside.mkdir(exist_ok=True)
        while target.exists() or target.is_symlink():
            target = aside / f"{name}.{count}"
            count += 1
        finding.path.rename(target)
        sync_folder(aside)
    except OSError as error:
        raise HostError(f"cannot set aside {finding.path}: {error.strerror}; move it away by hand") from error
    where = finding.path.relative_to(folder)
    return f"{where} {finding.why}; set aside as {target.relative_to(folder)}"
