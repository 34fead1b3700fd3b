"""A study on several nodes: one that does not see its folder, one that dies, one that joins, one that is not fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fake_study
import pytest
from clusters import Cluster, cluster, hides
from hits import lasting
from waiting import killed_at_last, until

from sweep.journal import read_progress
from sweep.store import StoredTrial, read_requests, read_trials
from sweep.trial import TrialKind, TrialStatus

pytestmark = [pytest.mark.night, pytest.mark.skipif(not hides(), reason="no mount namespaces here")]

TRIALS = 7


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


def doctor(path: Path, address: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sweep.doctor", str(path), "--ray-address", address, *options],
        env=fake_study.environment(),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def phase(results: Path, number: int) -> str:
    now = read_progress(results / "logs" / f"{number:04d}")
    return "" if now is None else now.phase


def test_a_study_on_nodes_that_come_and_go(nodes: Cluster, tmp_path: Path) -> None:
    content = fake_study.study(
        tmp_path,
        fake=lasting("load"),
        study={"trials": TRIALS},
        load={"num_prompts": 4, "warmup_prompts": 1},
        resources={"cpus": 0.5, "custom": {"slot": 1}},
        confirm={"candidates": 0, "drift": False},
    )
    path = fake_study.write(tmp_path / "study.yaml", content)
    results = tmp_path / "results" / "night"
    results.mkdir(parents=True)
    nodes.add("shares", "apart", "unfit", hidden={"apart": [results], "unfit": [tmp_path / "model"]})

    found = doctor(path, nodes.address, "--json")
    assert found.returncode == 2
    said = json.loads(found.stdout)
    (fault,) = said["faults"]
    assert fault["where"] == "unfit"
    assert fault["what"].startswith(f"the model {tmp_path / 'model'} is not there")
    assert {one["name"]: one["facts"]["shared"] for one in said["nodes"]} == {
        "apart": False,
        "shares": True,
        "unfit": True,
    }
    assert list(said["idle"]) == ["head"]

    output = tmp_path / "output.txt"
    words = [sys.executable, "-m", "sweep.tune", str(path), "--ray-address", nodes.address]
    env = fake_study.environment()
    with (
        output.open("w") as file,
        subprocess.Popen(words, env=env, stdout=file, stderr=subprocess.STDOUT) as driver,
        killed_at_last(driver),
    ):
        until(lambda: driver.poll() is not None or _stored(results, "apart"), "a trial of the node apart")
        until(lambda: driver.poll() is not None or phase(results, _next(results)) == "load", "a load")
        nodes.kill("apart")
        nodes.add("late")
        assert driver.wait(300) == 0, output.read_text()

    text = output.read_text()
    trials = read_trials(results)
    assert [one.number for one in trials] == list(range(len(trials))), "no row is lost, none is doubled"
    search = [one for one in trials if one.kind in (TrialKind.BASELINE, TrialKind.SEARCH)]
    assert len(search) == TRIALS, text
    assert {one.status for one in trials} == {TrialStatus.COMPLETE}, text
    assert "node unfit is left out: the model" in text
    assert "node apart is gone" in text
    assert {"shares", "apart"} <= {one.node for one in trials}
    for one in trials:
        assert len(read_requests(results, one.number)) == 4
        assert list((results / "logs" / f"{one.number:04d}").glob("server-*.log")), "logs come from everywhere"
    _scored_on_own_node(trials)
    until(lambda: not fake_study.processes_with(str(tmp_path / "model")), "an end of all servers")


def _stored(results: Path, node: str) -> bool:
    return any(one.node == node and one.kind is TrialKind.SEARCH for one in read_trials(results))


def _next(results: Path) -> int:
    return len(read_trials(results))


def _scored_on_own_node(trials: tuple[StoredTrial, ...]) -> None:
    home = trials[0].node
    own = {one.node for one in trials if one.kind is TrialKind.NODE}
    assert home not in own
    assert {one.node for one in trials if one.kind is TrialKind.SEARCH} <= {home, *own}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="nodes differ here by how many CPUs they have")
def test_groups_of_nodes_are_studies_of_their_own(nodes: Cluster, tmp_path: Path) -> None:
    content = fake_study.study(
        tmp_path,
        study={"trials": 2},
        load={"num_prompts": 4, "warmup_prompts": 1},
        resources={"cpus": 0.5, "custom": {"group": 1}, "group_by": "fingerprint"},
    )
    path = fake_study.write(tmp_path / "study.yaml", content)
    nodes.add("broad", resource="group")
    nodes.add("narrow", cpu=min(os.sched_getaffinity(0)), resource="group")
    done = fake_study.tune(path, "--ray-address", nodes.address, timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr

    folders = sorted((tmp_path / "results").iterdir())
    assert len(folders) == 2, "and none that would mix them"
    stored = {folder.name.removeprefix("night-"): read_trials(folder) for folder in folders}
    assert {one.node for trials in stored.values() for one in trials} == {"broad", "narrow"}
    for group, trials in stored.items():
        assert [one.kind for one in trials] == [TrialKind.BASELINE, TrialKind.SEARCH]
        assert len({one.node for one in trials}) == 1
        said = [line.removeprefix(f"{group}: ") for line in done.stdout.splitlines() if line.startswith(f"{group}: ")]
        assert any(line.startswith("this verdict is of nodes with ") for line in said)
        (verdict,) = (line for line in done.stdout.splitlines() if line.startswith(f"{group} ("))
        assert verdict.endswith(str(tmp_path / "results" / f"night-{group}"))
