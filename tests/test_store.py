"""What is stored comes back as it was and is readable by others while the study runs."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored_trials import (
    FLAGS,
    SCHEMA,
    STARTED_S,
    changed,
    complete,
    failed,
    looks,
    requests,
    rounds,
    store,
    write_study,
)

from sweep.records import EngineConfig, Event, RequestRecord
from sweep.redact import REDACTED, Redactor
from sweep.store import (
    SCHEMA_VERSION,
    TABLES,
    Schema,
    Store,
    TelemetryRow,
    flag_type,
    read_columns,
    read_engine,
    read_events,
    read_requests,
    read_rounds,
    read_trials,
    set_aside_broken,
    trial_file,
)
from sweep.trial import Flag, Score, TrialKind, TrialSpec, TrialStatus

ROOT = Path(__file__).parents[1]


def ask(query: str) -> list[tuple[object, ...]]:
    with duckdb.connect() as connection:
        return list(connection.execute(query).fetchall())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    return write_study(tmp_path_factory.mktemp("study"))


@pytest.fixture
def study(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "study"))


def test_a_complete_trial_comes_back_as_it_was(written: Path) -> None:
    result, stored = complete(2), read_trials(written)[2]
    assert (stored.number, stored.kind, stored.status) == (2, TrialKind.SEARCH, TrialStatus.COMPLETE)
    assert dict(stored.flags) == dict(result.spec.flags)
    assert [type(value) for value in stored.flags.values()] == [int, int, type(None), int]
    assert stored.metrics == result.metrics
    assert (stored.score, stored.feasible, dict(stored.violations)) == (0.9, True, {"p95_ttft_ms": -0.25})
    assert stored.failure is None
    assert (stored.attempts, stored.command, stored.remarks) == (2, "vllm serve m", result.remarks)
    assert (stored.startup_s, stored.load_s, stored.total_s) == (41.25, 20.5, 70.0)
    assert stored.started_wall_s == STARTED_S
    assert stored.engine_config == result.engine_config
    assert stored.engine_summary["preemptions"] == 2.0
    assert stored.engine_summary["peak_waiting"] is None
    assert stored.round_scores == (0.85, None)
    assert stored.thin_percentiles == ("p95", "p99.9")  # of two completed requests
    assert (stored.stopped_because, stored.block) == (None, None)


def test_a_censored_trial_comes_back_with_why_it_was_stopped_and_what_it_measured(tmp_path: Path) -> None:
    spec = TrialSpec(3, TrialKind.SEARCH, FLAGS, block=2)
    result = changed(complete(3), spec=spec, status=TrialStatus.CENSORED, stopped_because="the queue grows")
    store(tmp_path).append(result, engine_summary={})
    (stored,) = read_trials(tmp_path)
    assert (stored.status, stored.stopped_because, stored.block) == (TrialStatus.CENSORED, "the queue grows", 2)
    assert (stored.metrics, stored.score, stored.failure) == (result.metrics, 0.9, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": TrialStatus.CENSORED},
        {"stopped_because": "the queue grows"},
        {"status": TrialStatus.CENSORED, "stopped_because": "the queue grows", "metrics": None},
    ],
    ids=["censored for no reason", "a reason, but complete", "censored without metrics"],
)
def test_what_contradicts_itself_is_no_result(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="does not go with"):
        changed(complete(3), **changes)


def test_a_failed_trial_comes_back_with_its_reason_and_without_numbers(written: Path) -> None:
    stored = read_trials(written)[1]
    assert stored.status is TrialStatus.INFEASIBLE
    assert stored.failure == failed(1).failure
    assert (stored.metrics, stored.score, stored.feasible, dict(stored.violations)) == (None, None, None, {})
    assert (stored.startup_s, stored.load_s) == (None, None)


def test_requests_engine_and_events_come_back(written: Path) -> None:
    assert read_requests(written, 2) == requests()
    assert read_engine(written, 2) == complete().engine
    assert read_events(written, 2) == complete().events
    assert read_rounds(written, 2) == rounds()
    assert read_requests(written, 1) == ()
    assert read_rounds(written, 1) == ()


def test_derived_columns_of_requests(written: Path) -> None:
    rows = pq.read_table(trial_file(written, "requests", 0)).to_pylist()
    assert [row["lag_ms"] for row in rows] == [250.0, 0.0, None]
    assert [row["tpot_ms"] for row in rows] == [11.0, None, None]
    assert pq.read_table(trial_file(written, "rounds", 0))["thin_percentiles"].to_pylist() == [["p50", "p95"]] * 2
    # No gaps between the tokens of a one-token reply; a failed request has none to speak of.
    assert [row["itl_ms"] for row in rows] == [[10.0, 12.0], [], None]


def test_trials_come_in_order_of_number_whatever_their_order_of_arrival(tmp_path: Path) -> None:
    writer = store(tmp_path)
    for number in (10_001, 2, 10, 0):
        writer.append(complete(number), engine_summary={})
    assert [trial.number for trial in read_trials(tmp_path)] == [0, 2, 10, 10_001]
    assert read_columns(tmp_path, "trials", ["number"]) == ((0, 2, 10, 10_001),)


def test_an_empty_study_reads_as_empty(tmp_path: Path) -> None:
    assert read_trials(tmp_path) == ()
    assert read_columns(tmp_path, "requests", ["ttft_ms", "error"]) == ((), ())
    assert set_aside_broken(tmp_path) == ()


def test_a_column_of_mixed_values_gives_each_back_with_its_type(tmp_path: Path) -> None:
    values: tuple[Flag, ...] = ("auto", 8192, 0.1, True, False, None, "8192", "null")
    assert flag_type(values) is str
    writer = store(
        tmp_path, Schema(flags={"max-model-len": flag_type(values)}, metrics=SCHEMA.metrics, slos=SCHEMA.slos)
    )
    for number, value in enumerate(values):
        writer.append(complete(number, {"max-model-len": value}), engine_summary={})
    back = [trial.flags["max-model-len"] for trial in read_trials(tmp_path)]
    assert back == list(values)
    assert [type(value) for value in back] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("values", "kind"),
    [((1, None, 2), int), ((1, 0.5), float), ((True, None), bool), ((True, 1), str), (("a", "b"), str), ((None,), str)],
)
def test_flag_type_is_the_narrowest_that_holds_all(values: tuple[Flag, ...], kind: type) -> None:
    assert flag_type(values) is kind


# Types and metadata


def test_lists_and_timestamps_are_typed(written: Path) -> None:
    trials = pq.read_schema(trial_file(written, "trials", 0))
    assert trials.field("started").type == pa.timestamp("us", tz="UTC")
    assert trials.field("remarks").type == pa.list_(pa.string())
    assert trials.field("flag_max_num_seqs").type == pa.int64()
    assert trials.field("flag_gpu_memory_utilization").type == pa.float64()
    assert trials.field("flag_enable_prefix_caching").type == pa.bool_()
    assert trials.field("p99_9_ttft_ms").metadata[b"unit"] == b"ms"
    assert pq.read_schema(trial_file(written, "requests", 0)).field("itl_ms").type == pa.list_(pa.float64())
    assert pq.read_schema(trial_file(written, "events", 0)).field("at").type == pa.timestamp("us", tz="UTC")
    reasons = pq.read_schema(trial_file(written, "telemetry", 0)).field("throttle_reasons").type
    assert reasons == pa.list_(pa.string())


def test_every_file_carries_version_fingerprint_and_command(written: Path) -> None:
    for table in TABLES:
        notes = pq.read_schema(trial_file(written, table, 2)).metadata
        assert notes[b"sweep.schema_version"] == str(SCHEMA_VERSION).encode()
        assert notes[b"sweep.vllm"] == b"0.32.0"
        assert notes[b"sweep.driver"] == b"570.1"
        assert notes[b"sweep.command"] == b"vllm serve m"
        assert (notes[b"sweep.table"], notes[b"sweep.trial"]) == (table.encode(), b"2")


def test_all_files_of_a_table_share_one_schema(written: Path) -> None:
    for table in TABLES:
        schemas = [pq.read_schema(trial_file(written, table, number)) for number in range(3)]
        assert all(schema.equals(schemas[0]) for schema in schemas)


def test_not_a_number_is_not_a_measurement(tmp_path: Path) -> None:
    result = complete(0)
    assert result.metrics is not None
    nan = {**result.metrics, "p95_ttft_ms": float("nan")}
    store(tmp_path).append(changed(result, metrics=nan), engine_summary={"preemptions": float("nan")})
    stored = read_trials(tmp_path)[0]
    assert stored.metrics is not None
    assert stored.metrics["p95_ttft_ms"] is None
    assert stored.engine_summary["preemptions"] is None


# Other readers, while the study runs


def test_duckdb_reads_with_a_glob(written: Path) -> None:
    glob = f"{written}/trials/*.parquet"
    rows = ask(
        f"select number, flag_max_num_seqs, p95_ttft_ms from read_parquet('{glob}', union_by_name=true) order by 1"
    )
    assert rows == [(0, 32, 51.5), (1, 32, None), (2, 32, 53.5)]
    gaps = ask(f"select sum(len(itl_ms)), count(*) from read_parquet('{written}/requests/*.parquet') where trial = 2")
    assert gaps == [(2, 3)]
    assert ask(f"select max(started) > '2025-01-01' from '{glob}'") == [(True,)]


def test_pandas_and_polars_read_folder_and_glob(written: Path) -> None:
    assert pandas.read_parquet(written / "trials")["number"].tolist() == [0, 1, 2]
    assert polars.read_parquet(written / "trials" / "*.parquet")["number"].to_list() == [0, 1, 2]
    itl = polars.read_parquet(written / "requests")["itl_ms"]
    assert itl.dtype == polars.List(polars.Float64)
    assert pandas.read_parquet(written / "requests").groupby("trial").size().to_dict() == {0: 3, 2: 3}
    assert str(pandas.read_parquet(written / "events")["at"].dtype).endswith("UTC]")


READS = """
import os, sys
from pathlib import Path
from sweep.store import read_requests, read_trials, set_aside_broken
before = len(os.listdir("/proc/self/task"))
folder = Path(sys.argv[1])
for trial in read_trials(folder):
    read_requests(folder, trial.number)
list(set_aside_broken(folder))
print(before, len(os.listdir("/proc/self/task")))
"""


def test_reading_starts_no_threads(written: Path) -> None:
    """One that is still busy while Python exits aborts the process, whose exit code is then of no use."""
    done = subprocess.run(
        [sys.executable, "-c", READS, str(written)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    before, after = done.stdout.split()
    assert before == after


def test_a_file_in_the_making_is_invisible_to_readers(study: Path) -> None:
    whole = trial_file(study, "trials", 2).read_bytes()
    assert [path.name for path in (study / ".writing").iterdir()] == []
    (study / ".writing" / ".0003.parquet.tmp").write_bytes(whole[: len(whole) // 2])
    assert len(read_trials(study)) == 3
    assert len(pandas.read_parquet(study / "trials")) == 3
    assert len(polars.read_parquet(study / "trials")) == 3
    assert ask(f"select count(*) from '{study}/trials/*.parquet'") == [(3,)]


def test_metrics_and_flags_may_change_on_resume(study: Path) -> None:
    wider = Schema(
        flags={"max-num-seqs": int, "block-size": int}, metrics=("p95_ttft_ms", "p99_itl_ms"), slos=("p99_itl_ms",)
    )
    old = complete(3, {"max-num-seqs": 512, "block-size": 32})
    changes = {
        "metrics": {"p95_ttft_ms": 1.0, "p99_itl_ms": 2.0},
        "score": Score(0.5, violations={"p99_itl_ms": 0.5}),
    }
    new = changed(old, **changes)
    store(study, wider).append(new, engine_summary={})
    assert set_aside_broken(study) == ()
    first, last = read_trials(study)[0], read_trials(study)[-1]
    assert dict(first.flags) == FLAGS
    assert dict(last.flags) == {"max-num-seqs": 512, "block-size": 32}
    assert last.metrics == changes["metrics"]
    assert last.feasible is False
    assert read_columns(study, "trials", ["number", "p99_itl_ms"]) == ((0, 1, 2, 3), (None, None, None, 2.0))
    union = f"select count(p99_itl_ms), count(*) from read_parquet('{study}/trials/*', union_by_name=true)"
    assert ask(union) == [(1, 4)]


def test_values_and_the_store_travel_to_another_process(written: Path, tmp_path: Path) -> None:
    for value in (SCHEMA, looks(), read_trials(written)):
        assert pickle.loads(pickle.dumps(value)) == value
    pickle.loads(pickle.dumps(store(tmp_path))).append(complete(0), engine_summary={})
    assert len(read_trials(tmp_path)) == 1


# Secrets


def test_no_secret_reaches_any_file(tmp_path: Path) -> None:
    secret = "correct-horse-battery"
    base = complete(0, command=f"vllm serve m --api-key {secret}")
    error = RequestRecord(0, 0, "p", 0.0, 0.0, 1, None, 1, None, (), None, f"401 for Bearer {secret}")
    changes = {
        "requests": (error,),
        "remarks": (f"key {secret} refused",),
        "events": (Event(1, 0.0, STARTED_S, "failed", "load", f"with {secret}", line=f"E: {secret}"),),
        "engine_config": EngineConfig(cache_dtype=secret),
    }
    result = changed(base, **changes)
    writer = Store(tmp_path, SCHEMA, metadata={"serve": f"env HF_TOKEN={secret}"}, redactor=Redactor({}, [secret]))
    writer.append(result, engine_summary={}, telemetry=(TelemetryRow(0.0, secret, throttle_reasons=(secret,)),))
    for table in TABLES:
        found = pq.read_table(trial_file(tmp_path, table, 0))
        assert secret not in str(found.to_pylist()) + str(found.schema.metadata)
    assert read_trials(tmp_path)[0].command == f"vllm serve m --api-key {REDACTED}"


# Refusals


def test_a_trial_is_stored_once(study: Path) -> None:
    before = trial_file(study, "trials", 2).read_bytes()
    with pytest.raises(ValueError, match="trial 2 is stored already"):
        store(study).append(complete(2), engine_summary={})
    assert trial_file(study, "trials", 2).read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "summary", "named"),
    [
        ({"block-size": 16}, {}, "flag block-size"),
        ({"max-num-seqs": 2.5}, {}, "flag max-num-seqs"),
        ({"max-num-seqs": True}, {}, "flag max-num-seqs"),
        (FLAGS, {"peak_cats": 1.0}, "engine figure peak_cats"),
    ],
)
def test_what_has_no_column_is_named_and_leaves_no_file(
    tmp_path: Path, flags: dict[str, Flag], summary: dict[str, float], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        store(tmp_path).append(complete(0, flags), engine_summary=summary)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_two_names_of_one_column_are_refused() -> None:
    with pytest.raises(ValueError, match="flag_max_num_seqs"):
        Schema(flags={"max-num-seqs": int, "max_num_seqs": int}, metrics=())
    with pytest.raises(ValueError, match="no column type"):
        Schema(flags={"compilation-config": dict}, metrics=())
