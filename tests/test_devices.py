"""A device that somebody else keeps busy is taken out of the study, through the real pynvml and the real Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_nvml import FakeNvml, build, compiler
from fake_study import environment, study, tune, write

from sweep.devices import take_out_devices
from sweep.gpu import Gpus
from sweep.plan import StudyPlan
from sweep.store import read_trials
from sweep.trial import Finished, Flags


class Nothing:
    """Proposes nothing."""

    def propose(self, number: int, pending: object) -> Flags | None:
        del number, pending
        return None

    def ended(self, number: int) -> str:
        return f"nothing for trial {number}"

    def hear(self, finished: Finished) -> None:
        pass


def plan_with(*busy: str) -> StudyPlan:
    return StudyPlan(Nothing(), 3, {}, busy_devices=set(busy))


def test_too_few_devices_left_stop_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0, 1,2,3")
    plan = plan_with("2")
    with Gpus() as gpus:
        line = take_out_devices(plan, gpus, needed=4, address=None)
    assert line == "GPU 2 stays busy and is taken out of the study; left: 0, 1, 3"
    assert plan.failed
    assert plan.stop_reason == "GPU 2 stays busy: a trial needs 4 devices and 3 are free"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0, 1,2,3"


def test_a_cluster_of_others_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    plan = plan_with("0")
    with Gpus() as gpus:
        line = take_out_devices(plan, gpus, needed=1, address="10.0.0.1:6379")
    assert line == "GPU 0 stays busy"
    assert plan.failed
    assert plan.stop_reason == (
        "GPU 0 of a node of the cluster at 10.0.0.1:6379 stays busy, and devices can be taken out only of a Ray that "
        "sweep starts itself: free it, or leave that node out, then type the same command again"
    )
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


def busy_night(folder: Path, trials: int) -> Path:
    """One trial at a time on one of the devices, with little patience."""
    content = study(
        folder,
        study={"trials": trials, "max_retries": 0},
        resources={"gpus": 1, "concurrent_trials": 1},
        serve={"clean_timeout_s": 1},
    )
    return write(folder / "study.yaml", content)


# A Ray of somebody else with one device.
CLUSTER = """
import sys, ray
context = ray.init(num_gpus=1, num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
                   _system_config={"prestart_worker_first_driver": False})
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""


@pytest.mark.night
def test_a_busy_device_of_a_joined_cluster_stops_the_study(tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip("no C compiler to build the NVML library")
    fake = FakeNvml(build(tmp_path / "nvml"), tmp_path / "state")
    paths = {"LD_LIBRARY_PATH": str(fake.library.parent), "FAKE_NVML_STATE": str(fake.script)}
    with (
        subprocess.Popen(["sleep", "300"]) as squatter,
        subprocess.Popen(
            [sys.executable, "-c", CLUSTER],
            env=environment(RAY_USAGE_STATS_ENABLED="0", **paths),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as cluster,
    ):
        try:
            assert cluster.stdout is not None
            address = cluster.stdout.readline().strip()
            fake.write(f"process 0 {squatter.pid} 9000 -1")
            path = busy_night(tmp_path, trials=2)
            done = tune(path, "--ray-address", address, timeout_s=400, RAY_AUTH_MODE="token", **paths)
        finally:
            squatter.kill()
            assert cluster.stdin is not None
            cluster.stdin.close()
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"process {squatter.pid}" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(
        f"GPU 0 of a node of the cluster at {address} stays busy, and devices can be taken out only of a Ray that "
    )
    assert read_trials(tmp_path / "results" / "night") == ()


@pytest.mark.night
def test_the_study_goes_on_with_the_devices_that_are_free(tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip("no C compiler to build the NVML library")
    fake = FakeNvml(build(tmp_path / "nvml"), tmp_path / "state")
    with subprocess.Popen(["sleep", "300"]) as squatter:
        try:
            fake.write(f"process 0 {squatter.pid} 9000 -1")
            done = tune(
                busy_night(tmp_path, trials=2),
                LD_LIBRARY_PATH=str(fake.library.parent),
                FAKE_NVML_STATE=str(fake.script),
            )
        finally:
            squatter.kill()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GPU 0 stays busy and is taken out of the study; left: 1, 2, 3" in done.stderr
    assert f"process {squatter.pid}" in done.stdout
    trials = read_trials(tmp_path / "results" / "night")
    assert [(trial.number, str(trial.status)) for trial in trials] == [(0, "complete"), (1, "complete")]
    assert trials[0].attempts == 2
