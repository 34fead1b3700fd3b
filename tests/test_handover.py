"""What nodes hand over that do not see the study's folder; how it travels is tested with a study on a real cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from stored_trials import SCHEMA, SUMMARY, complete

from sweep.handover import Intake, shortened
from sweep.redact import Redactor
from sweep.store import Store, put_trial, read_requests, read_trials
from sweep.study_folder import StudyFolder


def encoded(folder: Path, number: int) -> dict[str, bytes]:
    """The files of a trial as a worker makes them, in a folder of its own."""
    worker = Store(folder, SCHEMA, metadata={}, redactor=Redactor({}), reserve_bytes=0)
    return worker.encoded(complete(number), SUMMARY)


def test_files_made_elsewhere_are_a_trial_like_any_other(tmp_path: Path) -> None:
    contents = encoded(tmp_path / "worker", 2)
    put_trial(tmp_path / "study", 2, contents)
    (one,) = read_trials(tmp_path / "study")
    assert one.number == 2
    assert len(read_requests(tmp_path / "study", 2)) == len(complete(2).requests)
    assert not list((tmp_path / "worker").rglob("*.parquet"))
    with pytest.raises(ValueError, match="trial 2 is stored already"):
        put_trial(tmp_path / "study", 2, contents)


def test_all_or_nothing(tmp_path: Path) -> None:
    contents = encoded(tmp_path / "worker", 2)
    del contents["trials"]
    with pytest.raises(KeyError):
        put_trial(tmp_path / "study", 2, contents)
    assert not list((tmp_path / "study").rglob("*.parquet"))


def test_nothing_is_taken_for_another_holder_and_nothing_twice(tmp_path: Path) -> None:
    with StudyFolder.open(tmp_path, "night") as folder:
        store = Store(folder.path, SCHEMA, metadata={}, redactor=Redactor({}), reserve_bytes=0)
        store.append(complete(1), engine_summary=SUMMARY)
        before = (folder.path / "trials" / "0001.parquet").read_bytes()
        intake = Intake(folder.path, StudyFolder.holder(folder.path))
        assert intake.put(1, {}) is None, "it is stored, whoever was first"
        assert (folder.path / "trials" / "0001.parquet").read_bytes() == before
        assert Intake(folder.path, "another").put(2, {}) == "the study is held by another process"
        assert intake.read(1, "rounds") == (folder.path / "rounds" / "0001.parquet").read_bytes()
        assert intake.read(9, "rounds") is None


def test_logs_stay_in_their_folder(tmp_path: Path) -> None:
    with StudyFolder.open(tmp_path, "night") as folder:
        intake = Intake(folder.path, "")
        intake.keep(7, "server-1.log", b"started")
        intake.keep(7, "../../../escaped.log", b"x")
        assert intake.log(7, "server-1.log") == b"started"
        assert sorted(path.name for path in (folder.path / "logs" / "0007").iterdir()) == [
            "escaped.log",
            "server-1.log",
        ]
        assert not (tmp_path / "escaped.log").exists()


def test_a_long_log_keeps_its_ends(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"first\n" + b"x" * 5_000_000 + b"\nlast")
    kept = shortened(path)
    assert len(kept) < 300_000
    assert kept.startswith(b"first\n")
    assert kept.endswith(b"\nlast")
    assert b"bytes left out]" in kept
    path.write_bytes(b"short")
    assert shortened(path) == b"short"
