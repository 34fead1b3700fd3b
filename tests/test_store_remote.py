"""Results in an object store: a real S3 server of the tests' own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stored_trials import SCHEMA, SUMMARY, complete

from sweep.errors import HostError
from sweep.redact import Redactor
from sweep.store import RemoteResults, Store, copy_missing, read_requests, read_trials

server = pytest.importorskip("moto.server", reason="moto is not installed")


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """The address of a bucket."""
    from pyarrow import fs

    one = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    one.start()
    host, port = one.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "tests")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        where = {"endpoint_override": f"{host}:{port}", "scheme": "http", "region": "us-east-1"}
        fs.S3FileSystem(**where, allow_bucket_creation=True).create_dir("bucket")
        yield "s3://bucket/results?" + "&".join(f"{key}={value}" for key, value in where.items())
    one.stop()


def stored(folder: Path, *numbers: int) -> Path:
    made = Store(folder, SCHEMA, metadata={"host": "a"}, redactor=Redactor({}), reserve_bytes=0)
    for number in numbers:
        made.append(complete(number), engine_summary=SUMMARY)
        logs = folder / "logs" / f"{number:04d}"
        logs.mkdir(parents=True)
        (logs / "server-1.log").write_text("started")
    (folder / "study.json").write_text("{}")
    return folder


def test_another_machine_goes_on_with_what_was_copied(store: str, tmp_path: Path) -> None:
    folder, remote = stored(tmp_path / "one", 0, 1), RemoteResults.open(store, "night")
    said: list[str] = []
    copy_missing(remote, folder, said.append)
    assert said == []
    assert list(remote.missing(folder)) == []
    there = tmp_path / "two"
    there.mkdir()
    again = RemoteResults.open(store, "night")
    assert again.fetch(there) == (0, 1)
    assert read_trials(there) == read_trials(folder)
    assert read_requests(there, 1) == read_requests(folder, 1)
    assert (there / "study.json").read_text() == "{}"
    assert again.fetch(there) == (), "what is there is not fetched again"
    assert str(again) == "s3://bucket/results/night"


def test_a_trial_without_its_row_does_not_count(store: str, tmp_path: Path) -> None:
    from pyarrow import fs

    folder, remote = stored(tmp_path / "one", 3), RemoteResults.open(store, "cut")
    remote.put(folder, 3)
    system, path = fs.FileSystem.from_uri(store)
    system.delete_file(f"{path}/cut/trials/0003.parquet")
    there = tmp_path / "two"
    there.mkdir()
    assert remote.fetch(there) == ()
    assert list(remote.missing(folder)) == [3]


def test_a_store_that_is_gone_costs_nothing_but_a_line(store: str, tmp_path: Path) -> None:
    folder, remote = stored(tmp_path / "one", 0), RemoteResults.open(store, "gone")
    lost = RemoteResults(remote._system, "no-such-bucket/gone", "s3://no-such-bucket/gone")
    said: list[str] = []
    copy_missing(lost, folder, said.append)
    (line,) = said
    assert line.startswith("trial 0 cannot be copied to s3://no-such-bucket/gone: ")
    copy_missing(remote, folder, said.append)
    assert len(said) == 1
    assert list(remote.missing(folder)) == []


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("ftp://host/results", "is no address of an object store, such as s3://bucket/results"),
        ("s3://", "is no address of an object store"),
        ("s3://key:secret@bucket/results", "put credentials in the environment"),
    ],
)
def test_addresses_that_are_none(uri: str, words: str) -> None:
    with pytest.raises(HostError) as error:
        RemoteResults.open(uri, "night")
    assert words in str(error.value)
    assert "secret" not in str(error.value)
