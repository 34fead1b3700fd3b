"""What a machine says of itself, and what of it stands in the way."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import fake_study
import pytest
from node_facts import FACTS, WANTED, facts

from sweep.fingerprint import hash_model
from sweep.node import comparable, faults_of, look
from sweep.study_folder import StudyFolder


def lines(**changes: Any) -> list[str]:
    return [fault.line() for fault in faults_of("n1", facts(**changes), WANTED, gpus=4.0, skew_s=changes.get("skew"))]


def test_nothing_is_wrong_with_a_good_machine() -> None:
    assert faults_of("n1", FACTS, WANTED, gpus=4.0, skew_s=0.3) == ()
    assert faults_of("n1", FACTS, WANTED) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"program": None}, "n1: 'vllm' is no program there; install it"),
        ({"vllm": "0.31.0"}, "n1: vLLM 0.31.0, but the study was checked with 0.32.0; install 0.32.0 there"),
        ({"vllm": None}, "n1: its vLLM does not tell its version; install vLLM 0.32.0 there"),
        ({"unknown_flags": ("block-size",)}, "n1: its vLLM has no flag block-size; "),
        ({"model_sha256": None}, "n1: the model /models/m is not there; copy it to that path"),
        ({"model_sha256": "b" * 64}, "n1: the model /models/m is another one (sha256 bbbbbbbbbbbb, here aaaaaaaaaaaa)"),
        ({"disk_free_gib": 0.5}, "n1: 0.5 GiB free for /results/night; make room for 2 GiB"),
        ({"scratch_free_gib": 0.1}, "n1: 0.1 GiB free in the temporary folder; "),
        ({"shm_free_gib": 0.06}, "n1: 0.06 GiB free in /dev/shm, 1 are needed; make it larger; in a container: --shm"),
        ({"shm_free_gib": None}, "n1: /dev/shm is not there; "),
        ({"port_problem": "no free port on 10.0.0.9"}, "n1: no port for a server: no free port on 10.0.0.9; "),
        ({"gpus": (), "gpu_notice": "no GPU readings: NVML: driver not loaded"}, "n1: no GPU readings: NVML: driver"),
        ({"gpus": ("NVIDIA RTX A6000",) * 3}, "n1: Ray counts 4 GPUs, NVML lists 3; start Ray there with --num-gpus 3"),
        ({"files": 256}, "n1: at most 256 open files, this load may need 1000; ulimit -n 65536"),
    ],
)
def test_one_line_for_each_fault(changes: dict[str, Any], words: str) -> None:
    (line,) = lines(**changes)
    assert line.startswith(words)


@pytest.mark.parametrize(("skew_s", "words"), [(12.0, "12.0 s ahead of"), (-3.25, "3.2 s behind")])
def test_a_clock_that_is_wrong(skew_s: float, words: str) -> None:
    (fault,) = faults_of("n1", FACTS, WANTED, gpus=4.0, skew_s=skew_s)
    assert fault.what == f"its clock is {words} the driver's"


def test_a_trial_that_is_too_large_for_the_machine_it_is_typed_on() -> None:
    (fault,) = faults_of("here", facts(gpus=("A",)), WANTED)
    assert fault.what == "a trial needs 4 GPUs, 1 are there"


def test_what_nobody_knows_is_no_fault() -> None:
    wanted = dataclasses.replace(WANTED, vllm=None, model="org/model", model_sha256=None, gpus=0)
    unknown = facts(vllm=None, model_sha256=None, unknown_flags=None, gpus=(), files=-1, disk_free_gib=None)
    assert faults_of("n1", unknown, wanted, gpus=0.0, skew_s=None) == ()


def test_a_hub_id_is_downloaded_where_it_is_missing() -> None:
    wanted = dataclasses.replace(WANTED, model="org/model", tokenizer="org/model")
    (fault,) = faults_of("n1", facts(model_sha256=None), wanted, gpus=4.0)
    assert fault.mend == "download it there (hf download)"


def test_what_makes_nodes_comparable() -> None:
    assert comparable(FACTS) == comparable(facts(hostname="n2", gpus=("NVIDIA RTX A6000",) * 8, cpu_model="Xeon"))
    assert comparable(FACTS) != comparable(facts(driver="560.1"))
    assert comparable(FACTS) != comparable(facts(gpus=("NVIDIA L40S",) * 4))
    assert comparable(FACTS) != comparable(facts(vllm="0.31.0"))
    assert comparable(facts(gpus=())) != comparable(facts(gpus=(), cpu_cores=2)), "without devices the CPU decides"


def test_look_at_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = str(fake_study.make_model(tmp_path / "model"))
    empty = tmp_path / "mount point"
    empty.mkdir()
    words = (sys.executable, fake_study.FAKE)
    with StudyFolder.open(tmp_path / "results", "night") as folder:
        wanted = dataclasses.replace(
            WANTED,
            server_command=(*words, "serve"),
            client_command=(*words, "bench", "serve"),
            server_env={"FAKE_VLLM": json.dumps({})},
            flags=("max-num-seqs", "no-such-flag"),
            own_vllm=False,
            model=model,
            tokenizer=str(empty),
            folder=folder.path,
            holder=StudyFolder.holder(folder.path),
        )
        found = look(wanted)
        elsewhere = look(dataclasses.replace(wanted, folder=tmp_path / "other"))
    assert found.program == sys.executable
    assert found.unknown_flags == ("no-such-flag",)
    assert (found.model_sha256, found.tokenizer_sha256) == (hash_model(model), None)
    assert found.shared
    assert not elsewhere.shared, "what is not there is not shared"
    assert found.disk_free_gib is not None
    assert found.port_problem is None
    assert found.cpu_cores >= 1
    assert found.files != 0
