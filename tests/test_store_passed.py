from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from stored_trials import FLAGS, SCHEMA

from sweep.guide import PassedOver, Refusal, Same
from sweep.redact import Redactor
from sweep.store import SCHEMA_VERSION, PassedStore, Schema, read_passed, read_trials, set_aside_broken
from sweep.store.read import DamagedFile

REFUSED = PassedOver(3, FLAGS, refusal=Refusal("no room for one request", "kv_cache", 0.98))
AUDITED = PassedOver(3, {**FLAGS, "max-num-seqs": 8}, refusal=Refusal("no room", "kv_cache", 0.99, audit=True))
SAME = PassedOver(7, {**FLAGS, "max-num-seqs": None}, same=Same(2))


def store(folder: Path, known: tuple[PassedOver, ...] = (), secrets: dict[str, str] | None = None) -> PassedStore:
    metadata = {"vllm": "0.32.0"}
    return PassedStore(folder, SCHEMA, metadata=metadata, redactor=Redactor(secrets or {}), known=known)


def test_what_was_passed_over_is_read_as_it_was(tmp_path: Path) -> None:
    kept = store(tmp_path)
    for one in (REFUSED, AUDITED, SAME):
        kept.append(one)
    assert read_passed(tmp_path) == (REFUSED, AUDITED, SAME)
    assert [type(value) for value in read_passed(tmp_path)[0].flags.values()] == [type(v) for v in FLAGS.values()]
    assert sorted(path.name for path in (tmp_path / "passed_over").iterdir()) == ["0003.parquet", "0007.parquet"]
    assert set_aside_broken(tmp_path) == ()


def test_a_run_that_goes_on_adds_to_what_lies_there(tmp_path: Path) -> None:
    store(tmp_path).append(REFUSED)
    store(tmp_path, known=read_passed(tmp_path)).append(AUDITED)
    assert read_passed(tmp_path) == (REFUSED, AUDITED)


def test_a_folder_of_earlier_versions_has_none_and_keeps_its_version(tmp_path: Path) -> None:
    assert read_passed(tmp_path) == ()
    assert read_trials(tmp_path) == ()
    (tmp_path / "trials").mkdir()
    assert read_passed(tmp_path) == ()
    assert SCHEMA_VERSION == 2


def test_columns_say_what_they_are(tmp_path: Path) -> None:
    store(tmp_path).append(REFUSED)
    table = pq.read_table(tmp_path / "passed_over" / "0003.parquet")
    row = table.to_pylist()[0]
    assert (row["trial"], row["place"], row["launched"], row["rule"], row["same_as"]) == (3, 0, False, "kv_cache", None)
    assert (row["flag_max_num_seqs"], row["confidence"]) == (32, 0.98)
    assert table.schema.metadata[b"sweep.vllm"] == b"0.32.0"


def test_secrets_are_not_stored(tmp_path: Path) -> None:
    kept = store(tmp_path, secrets={"HF_TOKEN": "hf_verysecrettoken"})
    kept.append(PassedOver(1, FLAGS, refusal=Refusal("says hf_verysecrettoken", "kv_cache", 0.98)))
    assert b"hf_verysecrettoken" not in (tmp_path / "passed_over" / "0001.parquet").read_bytes()
    found = read_passed(tmp_path)[0].refusal
    assert found is not None
    assert "hf_very" not in found.reason


def test_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.append(REFUSED)
    kept.append(SAME)
    path = tmp_path / "passed_over" / "0003.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DamagedFile):
        read_passed(tmp_path)
    assert "passed_over/0003.parquet is half-written or damaged" in set_aside_broken(tmp_path)[0]
    assert read_passed(tmp_path) == (SAME,)


def test_a_flag_without_a_column_is_refused(tmp_path: Path) -> None:
    kept = PassedStore(tmp_path, Schema({"a": int}, ()), metadata={}, redactor=Redactor({}))
    with pytest.raises(ValueError, match="has no column"):
        kept.append(REFUSED)
    assert read_passed(tmp_path) == ()
