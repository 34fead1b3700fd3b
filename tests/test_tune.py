"""Whole studies on the fake, through `python -m sweep.tune`."""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import fake_study
import pytest
import yaml
from nights import Night

from sweep.store import read_requests
from sweep.trial import TrialStatus


def choice(*values: Any) -> dict[str, Any]:
    return {"type": "choice", "values": list(values)}


def assert_redacted(night: Night) -> None:
    """The keys that the servers were given stand in no file of the study."""
    keys = {server["env"]["VLLM_API_KEY"] for server in night.servers()}
    assert len(keys) == len(night.servers())
    files = [path for path in night.folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        assert not any(key.encode() in path.read_bytes() for key in keys), path


# A cluster with devices that are only counted: lives as long as its standard input is open.
CLUSTER = """
import sys
import ray
context = ray.init(num_gpus=4, num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
                   _system_config={"prestart_worker_first_driver": False})
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a Ray with four devices: studies that join one need not start one each."""
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        env={**fake_study.environment(), **quiet},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Night:
    """A study of four trials."""
    home = tmp_path_factory.mktemp("study")
    # Far apart, so that a busy machine does not change who is better: today's 8 sequences are 19 times as slow as 64.
    landscape = {"both": {"max-num-seqs": {"best": 64, "weight": 2.0, "log": True}}}
    fake = {"ttft_ms": 15, "itl_ms": 3, "landscape": landscape}
    return Night(home, fake_study.study(home, fake=fake, load={"request_rate": 40}))


@pytest.fixture(scope="module")
def first(night: Night) -> subprocess.CompletedProcess[str]:
    """Its first run."""
    return night.run()


@pytest.mark.xdist_group("a study")  # one run for all of these
@pytest.mark.night
class TestAStudy:
    """Four trials, and the same command typed again."""

    def test_ends_with_a_table_a_verdict_and_a_command(
        self, night: Night, first: subprocess.CompletedProcess[str]
    ) -> None:
        assert first.returncode == 0, first.stderr
        assert [trial.status for trial in night.trials] == [TrialStatus.COMPLETE] * 4
        lines = first.stdout.splitlines()
        rows = [line for line in lines if line.split()[:1] in (["0"], ["1"], ["2"], ["3"])]
        assert [row.split()[0] for row in rows] == ["0", "1", "2", "3"] * 2  # what was tried, and what was measured
        assert rows[0].split()[1:3] == ["8", "0.5"]
        assert lines[-1] == "all trials done"
        assert f"Report: {night.folder / 'report.html'}" in lines
        assert "better than the baseline" in (night.folder / "report.html").read_text()
        assert any("better than the baseline" in line for line in lines)  # its 8 sequences are far from the optimum
        commands = [line for line in lines if line.startswith("FAKE_VLLM=")]
        assert len(commands) == 1
        best = min(night.trials, key=lambda trial: trial.score or math.inf)
        words = shlex.split(commands[0])
        assert words[words.index("--max-num-seqs") + 1] == str(best.flags["max-num-seqs"])
        assert commands[0] == best.command

    @pytest.mark.usefixtures("first")
    def test_tensorboard_finds_every_measured_trial(self, night: Night) -> None:
        found = sorted(one.parent.name for one in (night.folder / "ray").rglob("events.out.tfevents.*"))
        assert found == ["0000-baseline", "0001-search", "0002-search", "0003-search"]

    def test_lines_of_a_pipe_can_be_grepped(self, first: subprocess.CompletedProcess[str]) -> None:
        for number in range(4):
            mine = [line for line in first.stdout.splitlines() if line.startswith(f"trial {number} ")]
            assert mine[0].startswith(f"trial {number} {'search' if number else 'baseline'}: max-num-seqs=")
            assert mine[-1].startswith(f"trial {number} done: score ")
        assert "\x1b[" not in first.stdout
        assert "ray" not in first.stdout.lower().replace(str(Path(sys.executable)).lower(), "")

    def test_best_yaml_holds_the_best_flags(self, night: Night, first: subprocess.CompletedProcess[str]) -> None:
        assert str(night.folder / "best.yaml") in first.stdout
        best = min(night.trials, key=lambda trial: trial.score or math.inf)
        assert yaml.safe_load((night.folder / "best.yaml").read_text()) == {
            "model": str(night.home / "model"),
            "served-model-name": "fake",
            "max-model-len": 4096,
            **best.flags,
        }

    @pytest.mark.usefixtures("first")
    def test_duckdb_reads_all_five_tables(self, night: Night) -> None:
        def rows(query: str) -> list[tuple[Any, ...]]:
            return duckdb.execute(query.replace("FOLDER", str(night.folder))).fetchall()

        assert rows("select count(*), min(score) < 1, sum(kind = 'baseline') from 'FOLDER/trials/*.parquet'") == [
            (4, True, 1)
        ]
        asked = rows(
            "select trial, count(*), sum(len(itl_ms)), bool_and(error is null) from 'FOLDER/requests/*.parquet' "
            "group by trial order by trial"
        )
        assert asked == [(number, 12, 12 * 4, True) for number in range(4)]
        for table in ("engine", "events", "telemetry"):
            assert rows(f"select count(distinct trial) from 'FOLDER/{table}/*.parquet'") == [(4,)]

    @pytest.mark.usefixtures("first")
    def test_every_trial_gets_the_same_requests_at_the_same_times(self, night: Night) -> None:
        sent = [
            [
                (r.index, r.prompt_id, r.scheduled_s, r.input_tokens, r.asked_output_tokens)
                for r in read_requests(night.folder, number)
            ]
            for number in range(4)
        ]
        assert sent[0] == sent[1] == sent[2] == sent[3]
        times = [time_s for _, _, time_s, _, _ in sent[0] if time_s is not None]
        assert len(set(times)) == 12
        for request in read_requests(night.folder, 3):
            assert request.lag_ms is not None
            assert -1.0 <= request.lag_ms < 2000.0

    @pytest.mark.usefixtures("first")
    def test_no_point_is_launched_twice(self, night: Night) -> None:
        points = {tuple(trial.flags.items()) for trial in night.trials}
        assert len(points) == 4
        assert len(night.servers()) == 4

    @pytest.mark.usefixtures("first")
    def test_the_environment_of_a_server_is_built_on_purpose(self, night: Night) -> None:
        for server in night.servers():
            env = server["env"]
            assert [name for name in env if name.startswith("RAY_")] == []
            assert env["CUDA_VISIBLE_DEVICES"] == ""  # the study asks for none
            assert "OMP_NUM_THREADS" not in env
            assert env["VLLM_API_KEY"] not in server["argv"]
            assert server["nice"] == os.nice(0)  # as in production; Ray's workers step back by 15
        assert_redacted(night)

    @pytest.mark.usefixtures("first")
    def test_typed_again_it_launches_nothing_and_says_the_same(self, night: Night) -> None:
        before = {path: path.stat().st_mtime_ns for path in night.folder.rglob("*.parquet")}
        again = night.run("--json")
        assert again.returncode == 0, again.stderr
        (verdict,) = fake_study.json_lines(again.stdout)
        best = min(night.trials, key=lambda trial: trial.score or math.inf)
        assert (verdict["verdict"], verdict["trial"], verdict["trials"]) == ("better", best.number, 4)
        assert verdict["command"] == best.command
        assert len(night.servers()) == 4
        assert {path: path.stat().st_mtime_ns for path in night.folder.rglob("*.parquet")} == before


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Night:
    """Six points, three of which cannot work; today's flags are the best of the others."""
    home = tmp_path_factory.mktemp("half")
    landscape = {"both": {"max-num-seqs": {"best": 8, "weight": 3.0, "log": True}}}
    oom = {"if": {"max-num-seqs": [">", 32]}, "then": {"exit_code": 1, "log": "@oom_start"}}
    content = fake_study.study(
        home,
        # Latencies by the flags alone: a busy machine makes no other flags the best.
        fake={"exact": {"ttft_ms": 40, "itl_ms": 10}, "landscape": landscape, "rules": [oom]},
        study={"trials": 50},
    )
    content["search_space"] = {"parameters": {"max-num-seqs": choice(8, 16, 32, 64, 128, 256)}}
    content["baseline"] = {"max-num-seqs": 8}
    return Night(home, content)


@pytest.fixture(scope="module")
def lines(half: Night, address: str) -> list[dict[str, Any]]:
    """What it prints."""
    done = half.join(address, "--json")
    assert done.returncode == 0, done.stderr
    return fake_study.json_lines(done.stdout)


@pytest.mark.night
@pytest.mark.xdist_group("a cluster")
class TestHalfTheSpaceFails:
    """A search among flags of which half cannot work."""

    def test_one_object_a_trial_and_the_verdict(self, lines: list[dict[str, Any]]) -> None:
        assert [line.get("trial") for line in lines[:-1]] == [0, 1, 2, 3, 4]
        assert lines[-1]["verdict"] == "keep your flags"
        assert lines[-1]["flags"] == {"max-num-seqs": 8}
        assert lines[-1]["stop_reason"] == (
            "every combination of the search space is known or refused as unable to work (1 refused)"
        )
        assert lines[-1]["gate"]["refused"] == {"device_memory": 1}

    def test_a_row_each_and_the_one_that_asks_for_most_is_not_launched(
        self, half: Night, lines: list[dict[str, Any]]
    ) -> None:
        """After two that had not memory enough."""
        assert {line["flags"]["max-num-seqs"]: line["status"] for line in lines[:-1]} == {
            **dict.fromkeys((8, 16, 32), "complete"),
            **dict.fromkeys((64, 128), "infeasible"),
        }
        assert len(half.trials) == len(half.servers()) == 5
        for trial in half.trials:
            if trial.status is TrialStatus.INFEASIBLE:
                assert trial.failure is not None
                assert (trial.failure.failure_class, trial.metrics, trial.score) == ("startup_oom", None, None)


@pytest.mark.night
@pytest.mark.xdist_group("a cluster")
def test_a_baseline_that_fails_ends_the_study_with_its_cause(tmp_path: Path, address: str) -> None:
    night = Night(tmp_path, fake_study.study(tmp_path, fake={"exit_code": 1, "log": "@no_kv"}))
    done = night.join(address)
    assert done.returncode == 1
    assert len(night.servers()) == len(night.trials) == 1
    assert "Causes of failure" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("the baseline failed: kv_cache_too_small - ")
    assert "No available memory for the cache blocks" in last
    assert not (night.folder / "best.yaml").exists()


@pytest.mark.night
@pytest.mark.xdist_group("a cluster")
def test_trials_on_four_devices_see_their_own(tmp_path: Path, address: str) -> None:
    alone = {"gpus": 1, "check_neighbours": False}
    one_each = fake_study.study(tmp_path / "one", study={"trials": 5}, resources=alone)
    one_each["serve"] |= {"env": {**one_each["serve"]["env"], "WITNESS_WAIT": "5"}, "startup_timeout_s": 300}
    all_four = fake_study.study(tmp_path / "all", study={"trials": 1}, serve={"flags": {"tensor-parallel-size": 4}})
    del all_four["resources"]
    nights = Night(tmp_path / "one", one_each), Night(tmp_path / "all", all_four)
    for night in nights:
        done = night.join(address)
        assert done.returncode == 0, done.stdout + done.stderr
    devices = {}
    for server in nights[0].servers():
        point = server["argv"][server["argv"].index("--max-num-seqs") + 1]
        devices[int(point)] = server["env"]["CUDA_VISIBLE_DEVICES"]
    search = [trial for trial in nights[0].trials if trial.number > 0]
    # All four ran at one time, each on a device of its own.
    assert max(trial.started_wall_s for trial in search) < min(t.started_wall_s + t.total_s for t in search)
    assert sorted(devices[int(trial.flags["max-num-seqs"] or 0)] for trial in search) == ["0", "1", "2", "3"]
    (server,) = nights[1].servers()
    assert server["env"]["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    for night in nights:
        assert all(not name.startswith("RAY_") for server in night.servers() for name in server["env"])
