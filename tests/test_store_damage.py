"""What crashes, full disks and stray hands do to a store is found, said and never spreads."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars
import pyarrow.parquet as pq
import pytest
from stored_trials import (
    SUMMARY,
    complete,
    looks,
    requests,
    store,
    write_study,
)

from sweep.errors import HostError, HostNotReady
from sweep.store import (
    SCHEMA_VERSION,
    TABLES,
    DiskFull,
    WriteFailed,
    read_columns,
    read_requests,
    read_trials,
    set_aside_broken,
    trial_file,
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    return write_study(tmp_path_factory.mktemp("study"))


@pytest.fixture
def study(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "study"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[40] ^= 0xFF
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("spoil", [cut, flip, empty])
def test_a_damaged_file_takes_its_trial_out_and_nothing_else(study: Path, table: str, spoil: object) -> None:
    damaged = trial_file(study, table, 2)
    assert callable(spoil)
    spoil(damaged)
    content = damaged.read_bytes()
    lines = set_aside_broken(study)
    assert len(lines) == len(TABLES)
    assert lines[0].startswith(f"{table}/0002.parquet is ")
    assert all(len(line.splitlines()) == 1 for line in lines)
    assert (study / "set_aside" / f"{table}-0002.parquet").read_bytes() == content
    assert [trial.number for trial in read_trials(study)] == [0, 1]
    assert set_aside_broken(study) == ()
    # The trial can be run and stored again.
    store(study).append(complete(2), engine_summary={})
    assert len(read_trials(study)) == 3


def test_a_trial_cut_short_before_its_row_is_set_aside(study: Path) -> None:
    trial_file(study, "trials", 2).unlink()
    lines = set_aside_broken(study)
    assert [line.split(" ")[0] for line in lines] == [f"{table}/0002.parquet" for table in TABLES[:-1]]
    assert "trial 2, which was cut short" in lines[0]
    assert read_columns(study, "requests", ["trial"]) == ((0, 0, 0),)


def test_a_row_that_lost_its_requests_is_set_aside(study: Path) -> None:
    trial_file(study, "requests", 0).unlink()
    lines = set_aside_broken(study)
    assert any(line.startswith("trials/0000.parquet") and "has lost its requests" in line for line in lines)
    assert [trial.number for trial in read_trials(study)] == [1, 2]


def test_foreign_and_left_files_are_set_aside_and_kept(study: Path) -> None:
    polars.DataFrame({"number": [7]}).write_parquet(study / "trials" / "0007.parquet")
    shutil.copy(trial_file(study, "trials", 2), study / "trials" / "0009.parquet")
    shutil.copy(trial_file(study, "engine", 2), study / "events" / "0008.parquet")
    shutil.copy(trial_file(study, "trials", 2), study / "trials" / "backup.parquet")
    (study / "requests" / "notes.txt").write_text("mine")
    (study / "requests" / ".0003.parquet.tmp").write_bytes(b"PAR1")
    (study / ".writing" / ".0004.parquet.tmp").write_bytes(b"PAR1")
    (study / "telemetry" / ".nfs0001").write_bytes(b"kept by the network")
    lines = "\n".join(set_aside_broken(study))
    for part in (
        "trials/0007.parquet is not a file of this study",
        "trials/0009.parquet holds trial 2, not 9",
        "events/0008.parquet is not a file of this study",
        "trials/backup.parquet is not a file of this study",
        "requests/notes.txt is not a file of this study; set aside as set_aside/requests-notes.txt",
        "requests/.0003.parquet.tmp was being written when the study was cut short",
        ".writing/.0004.parquet.tmp was being written when the study was cut short",
    ):
        assert part in lines
    assert len(lines.splitlines()) == 7
    assert (study / "set_aside" / "requests-notes.txt").read_text() == "mine"
    assert (study / "telemetry" / ".nfs0001").exists()
    assert len(read_trials(study)) == 3


def test_nothing_set_aside_is_overwritten(study: Path) -> None:
    for text in ("one", "two", "three"):
        (study / "trials" / "notes.txt").write_text(text)
        assert len(set_aside_broken(study)) == 1
    kept = sorted(path.read_text() for path in (study / "set_aside").iterdir())
    assert kept == ["one", "three", "two"]


@pytest.mark.parametrize(("version", "word"), [(1, "older"), (SCHEMA_VERSION + 1, "newer")])
def test_another_versions_file_is_refused_and_left_alone(study: Path, version: int, word: str) -> None:
    path = trial_file(study, "trials", 2)
    table = pq.read_table(path)
    notes = {**table.schema.metadata, b"sweep.schema_version": str(version).encode()}
    pq.write_table(table.replace_schema_metadata(notes), path)
    with pytest.raises(HostError, match=f"{word} version of sweep"):
        set_aside_broken(study)
    with pytest.raises(HostError, match=f"{word} version of sweep"):
        read_trials(study)
    assert path.exists()


def test_reading_a_damaged_file_says_which_and_what_to_do(study: Path) -> None:
    cut(trial_file(study, "trials", 1))
    with pytest.raises(HostError, match=r"trials/0001\.parquet is damaged; start the study again"):
        read_trials(study)


APPEND = """
import itertools, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from stored_trials import SUMMARY, complete, looks, requests, store
writer = store(Path(sys.argv[1]))
for number in itertools.count(int(sys.argv[3])):
    writer.append(complete(number), engine_summary=SUMMARY, telemetry=looks())
    print(number, flush=True)
"""


@pytest.mark.night
def test_a_kill_at_any_moment_loses_no_stored_trial(tmp_path: Path) -> None:
    """What the writer said it stored is there after SIGKILL, and of the rest there is nothing half."""
    moments = random.Random(5)
    said: list[int] = []
    for _ in range(3):
        first = said[-1] + 1 if said else 0
        words = [sys.executable, "-c", APPEND, str(tmp_path), str(Path(__file__).parent), str(first)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as writer:
            assert writer.stdout is not None
            said.append(int(writer.stdout.readline()))
            time.sleep(moments.uniform(0.0, 0.05))
            writer.kill()
            said += [int(line) for line in writer.stdout]
        set_aside_broken(tmp_path)
        stored = [trial.number for trial in read_trials(tmp_path)]
        # The last may have been stored and not yet said.
        assert stored in (said, [*said, said[-1] + 1])
        said = stored
        assert all(read_requests(tmp_path, number) == requests() for number in stored)


# Full disks


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """`ulimit -f`: Python ignores SIGXFSZ, so a write beyond it fails with EFBIG as one to a full disk with ENOSPC."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("limit", [0, 1000, 8000])
def test_no_room_leaves_no_half_file_and_the_earlier_rows(study: Path, limit: int) -> None:
    """The limits stop the first file, a file in the middle, and the last, the trials row."""
    before = sorted(path for path in study.rglob("*") if path.is_file())
    writer = store(study)
    with file_size_limit(limit), pytest.raises(DiskFull) as caught:
        writer.append(complete(3), engine_summary=SUMMARY, telemetry=looks())
    assert isinstance(caught.value, HostNotReady)
    assert "cannot write" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert sorted(path for path in study.rglob("*") if path.is_file()) == before
    assert set_aside_broken(study) == ()
    writer.append(complete(3), engine_summary=SUMMARY)
    assert len(read_trials(study)) == 4


FULL_DISK = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from stored_trials import SUMMARY, complete, store
from sweep.store import DiskFull, read_trials, set_aside_broken
folder = Path(sys.argv[1]) / "study"
writer = store(folder, reserve_bytes=300_000)
stored = 0

def append_until_full(after_each):
    global stored
    try:
        while stored < 1000:
            writer.append(complete(stored), engine_summary=SUMMARY)
            stored += 1
            after_each()
    except DiskFull as error:
        assert "the disk is full" in str(error), error
        assert set_aside_broken(folder) == ()
        assert [trial.number for trial in read_trials(folder)] == list(range(stored))
        return stored

# The trial that met the full disk is stored all the same; without its reserve the store refuses, and keeps the rest.
noticed = append_until_full(writer.check_room)
assert not (folder / ".reserve").exists()
refused = append_until_full(lambda: None)
print(noticed, refused)
"""


def test_a_full_file_system_loses_no_stored_trial(tmp_path: Path) -> None:
    """A real file system of 1 MiB, in a mount namespace of its own so that nothing has to be unmounted."""
    mount = f"mount -t tmpfs -o size=1m none {tmp_path}"
    probe = subprocess.run(["unshare", "-Urm", "sh", "-c", mount], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("mounting a tmpfs in a user namespace is not permitted here")
    words = [sys.executable, "-c", FULL_DISK, str(tmp_path), str(Path(__file__).parent)]
    shell = f'{mount} && exec "$@"'
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", shell, "sh", *words], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    noticed, refused = (int(word) for word in done.stdout.split())
    assert 0 < noticed < refused < 1000


def test_the_reserve_is_kept_and_renewed(tmp_path: Path) -> None:
    writer = store(tmp_path, reserve_bytes=50_000)
    reserve = tmp_path / ".reserve"
    assert reserve.stat().st_blocks * 512 >= 50_000
    assert set_aside_broken(tmp_path) == ()
    reserve.unlink()
    writer.check_room()
    assert reserve.stat().st_size == 50_000
    reserve.unlink()
    with file_size_limit(1000), pytest.raises(DiskFull):
        writer.check_room()
    assert not reserve.exists()


def test_a_folder_that_went_away_is_one_line(study: Path) -> None:
    writer = store(study)
    shutil.rmtree(study)
    with pytest.raises(WriteFailed, match=r"cannot write .*No such file") as caught:
        writer.append(complete(3), engine_summary={})
    assert not isinstance(caught.value, DiskFull)
    assert len(str(caught.value).splitlines()) == 1


def test_the_umask_decides_who_may_read(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        store(tmp_path / "study").append(complete(0), engine_summary={})
    finally:
        os.umask(before)
    assert trial_file(tmp_path / "study", "trials", 0).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "study" / "trials").stat().st_mode & 0o777 == 0o700
