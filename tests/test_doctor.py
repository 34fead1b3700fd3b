"""`python -m sweep.doctor` on one machine; on a cluster it is tested with the studies that run there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fake_study
import pytest

from sweep.doctor.__main__ import main


def study(folder: Path, **changes: Any) -> Path:
    return fake_study.write(folder / "study.yaml", fake_study.study(folder, **changes))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_machine_that_is_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(study(tmp_path)), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["fit"], found["faults"]) == (True, [])
    (node,) = found["nodes"]
    assert node["name"] == "this machine"
    assert node["facts"]["unknown_flags"] == []
    assert node["facts"]["model_sha256"]
    assert not (tmp_path / "results").exists(), "nothing is written"


def test_faults_are_one_line_each_below_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = study(tmp_path, resources={"gpus": 99, "accelerator": "H100"})
    assert main([str(path)]) == 2
    out = capsys.readouterr().out.splitlines()
    assert out[0].split()[:3] == ["node", "vLLM", "GPUs"]
    faults = [line for line in out if line.startswith("this machine: ")]
    assert any(line.startswith("this machine: a trial needs 99 GPUs and 1 CPU, but") for line in faults)
    assert any("resources.accelerator is H100, its devices are" in line for line in faults)
    assert out[-1] == f"{len(faults)} to be mended"


def test_what_tune_would_refuse_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = study(tmp_path, serve={"flags": {"max-modle-len": 1}})
    assert main([str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("sweep.doctor: ")
    assert line.endswith("did you mean 'max-model-len'?")


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({"custom": {"GPU": 1}}, "resources.custom.GPU: has a key of its own: cpus, gpus, memory_gib"),
        ({"custom": {"nvme": 0}}, "resources.custom.nvme: must be above zero"),
        ({"memory_gib": -1}, "resources.memory_gib: "),
        (
            {"custom": {"nvme": 1}},
            "this machine: a trial needs 0 GPUs, 1 CPU and 1 nvme, but this machine has 0 GPUs, ",
        ),
    ],
)
def test_resources(tmp_path: Path, capsys: pytest.CaptureFixture[str], resources: dict[str, Any], words: str) -> None:
    assert main([str(study(tmp_path, resources=resources))]) == 2
    captured = capsys.readouterr()
    assert words in captured.out + captured.err
