"""Trials of a running study in a database, for dashboards: SQLite always, a real PostgreSQL where there is one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState
from reported import night
from waiting import until

from sweep.config.models import SearchSpaceConfig
from sweep.errors import UserError
from sweep.exchange.__main__ import main
from sweep.search_space import SearchSpace
from sweep.searcher.dashboard import open_database
from sweep.searcher.mirror import Mirror
from sweep.trial import Finished, TrialKind, TrialStatus

SPACE = SearchSpace.from_config(
    SearchSpaceConfig.model_validate(
        {
            "parameters": {
                "max-num-seqs": {"type": "int", "low": 8, "high": 64, "step": 8, "or_null": True},
                "gpu-memory-utilization": {"type": "float", "low": 0.5, "high": 0.9},
                "block-size": {"type": "choice", "values": [16, 32]},
            }
        }
    ),
    {},
)
# Beyond the ranges, and one that the space has no value for.
BASELINE = {"max-num-seqs": 256, "gpu-memory-utilization": 0.92, "block-size": None}


def trial(number: int, status: TrialStatus = TrialStatus.COMPLETE, **changes: Any) -> Finished:
    flags = {"max-num-seqs": 8 * number, "gpu-memory-utilization": 0.6, "block-size": 16} if number else BASELINE
    usual: dict[str, Any] = {
        "kind": TrialKind.SEARCH if number else TrialKind.BASELINE,
        "flags": flags,
        "score": 1.0 - number / 10,
        "metrics": {"p95_ttft_ms": 9.5, "p99_ttft_ms": None},
        "total_s": 60.0,
    }
    return Finished(number=number, status=status, **{**usual, **changes})


def given(mirror: Mirror) -> None:
    """A study as it goes: what earlier runs left, a trial left to vLLM, one of each other end, one of no search."""
    mirror.add([trial(0), trial(1)])
    mirror.add([trial(1)])
    mirror.add([trial(2, flags={**BASELINE, "max-num-seqs": None})])
    mirror.add([trial(3, TrialStatus.CENSORED)])
    mirror.add([trial(4, TrialStatus.INFEASIBLE, score=None, metrics=None, failure_class="startup_oom")])
    mirror.add([trial(5, TrialStatus.COMPLETE, kind=TrialKind.CONFIRM)])


def read(url: str, name: str) -> list[FrozenTrial]:
    return optuna.load_study(study_name=name, storage=open_database(url, "the test")).trials


def check(url: str) -> None:
    """What a dashboard reads."""
    trials = sorted(read(url, "night"), key=lambda one: one.user_attrs["trial"])
    assert [one.user_attrs["trial"] for one in trials] == [0, 1, 2, 3, 4]
    complete, pruned, fail = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL
    assert [one.state for one in trials] == [complete, complete, complete, pruned, fail]
    assert [one.value for one in trials[:3]] == [1.0, 0.9, 0.8]
    assert trials[0].params == {"max-num-seqs": 256, "gpu-memory-utilization": 0.92, "block-size": "(vLLM)"}
    assert trials[1].params == {"max-num-seqs": 8, "gpu-memory-utilization": 0.6, "block-size": 16}
    assert "max-num-seqs" not in trials[2].params
    assert trials[1].user_attrs["p95_ttft_ms"] == 9.5
    assert trials[4].user_attrs["failure"] == "startup_oom"
    assert trials[1].duration is not None
    assert trials[1].duration.total_seconds() == pytest.approx(60.0)


def test_each_trial_of_the_search_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'dashboard.db'}"
    with Mirror.open(url, "night", SPACE, BASELINE) as mirror:
        given(mirror)
    check(url)
    with Mirror.open(url, "night", SPACE, BASELINE) as again:
        given(again)
        assert again.troubles() == ()
    check(url)


def test_a_database_that_fails_meanwhile_is_said_once_and_holds_nothing_up(tmp_path: Path) -> None:
    path = tmp_path / "dashboard.db"
    with Mirror.open(f"sqlite:///{path}", "night", SPACE, BASELINE) as mirror:
        optuna.delete_study(study_name="night", storage=open_database(f"sqlite:///{path}", "the test"))
        mirror.add([trial(1), trial(2)])
        first: tuple[str, ...] = until(mirror.troubles, "a trouble", 300)
    (line,) = (*first, *mirror.troubles())
    assert line.startswith("warning: study.optuna_storage: trial 1 could not be written there, which is no obstacle: ")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense", "that database cannot be used: "),
        ("oracle9://x", "that database cannot be used: "),
        ("postgresql+psycopg://me:secret@db/x", "put the password in the environment (PGPASSWORD) or ~/.pgpass"),
        ("postgresql+psycopg://me@db/x?password=secret", "put the password in the environment"),
        ("sqlite:////absent/folder/x.db", "that database cannot be used: unable to open database file"),
    ],
)
def test_an_address_that_is_none_is_refused(url: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        Mirror.open(url, "night", SPACE, BASELINE)
    assert str(error.value).startswith(f"study.optuna_storage: {words}")
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_a_finished_study_in_a_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'dashboard.db'}"
    words = ["optuna", str(night(tmp_path / "night")), url]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines() == [f"{url}: 6 trials", f"optuna-dashboard {url}"]
    assert len(read(url, "night")) == 6
    assert main(words) == 2
    assert f"{url} has a study night already" in capsys.readouterr().err


@pytest.fixture
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL of its own."""
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("no psycopg here")
    if shutil.which("initdb") is None or shutil.which("postgres") is None:
        pytest.skip("no PostgreSQL here")
    as_nobody: dict[str, Any] = {"user": "nobody"} if os.getuid() == 0 else {}  # it refuses to run as root
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        if as_nobody:
            shutil.chown(home, "nobody")
        data = f"{home}/data"
        words = ["initdb", "-D", data, "-U", "sweep", "-A", "trust", "--no-sync", "--locale=C", "--encoding=UTF8"]
        subprocess.run(words, check=True, capture_output=True, cwd=home, **as_nobody)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        server = subprocess.Popen(
            ["postgres", "-D", data, "-k", home, "-h", "127.0.0.1", "-p", str(port), "-F"],
            cwd=home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **as_nobody,
        )
        try:
            until(
                lambda: subprocess.run(_ready(port), capture_output=True, check=False).returncode == 0,
                "PostgreSQL",
                300,
            )
            yield f"postgresql+psycopg://sweep@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # at SIGTERM it waits for its clients
            server.wait()


def _ready(port: int) -> list[str]:
    return ["pg_isready", "-h", "127.0.0.1", "-p", str(port)]


@pytest.mark.night
def test_a_real_postgresql_for_several_drivers(postgres: str) -> None:
    with ThreadPoolExecutor(3) as pool:  # all at once, and none finds its tables there
        mirrors = list(pool.map(lambda name: Mirror.open(postgres, name, SPACE, BASELINE), ("night", "other", "third")))
    with mirrors[0] as mirror, mirrors[1] as other, mirrors[2]:
        given(mirror)
        other.add([trial(1)])
    check(postgres)
    assert len(read(postgres, "other")) == 1
    with pytest.raises(UserError, match='database "none" does not exist'):
        Mirror.open(postgres.replace("/postgres", "/none"), "night", SPACE, BASELINE)
