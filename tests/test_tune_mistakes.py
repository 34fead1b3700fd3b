"""What `python -m sweep.tune` refuses, shows and explains without a launch."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_study
import pytest
from nights import Night
from typer.testing import CliRunner


class TestMistakes:
    """Whatever is wrong with what was asked: one line, exit code 2, nothing launched."""

    def test_in_a_process_of_its_own(self, tmp_path: Path) -> None:
        night = Night(tmp_path, fake_study.study(tmp_path))
        night.content["serve"]["flgas"] = night.content["serve"].pop("flags")
        done = night.run()
        assert done.returncode == 2
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"sweep: {tmp_path / 'study.yaml'}:")
        assert line.endswith("did you mean 'flags'?")
        assert not (tmp_path / "results").exists()

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"serve": {"flags": {"max-modle-len": 1}}}, "did you mean 'max-model-len'?"),
            ({"load": {"path": "cut.json"}}, "truncated"),
            ({"load": {"path": "absent.json"}}, "no file 'absent.json'"),
            ({"model": {"path": "./absent"}}, "no folder './absent'"),
            ({"load": {"output_tokens": 2045}}, "leaves no conversation"),
        ],
    )
    def test_one_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
    ) -> None:
        from sweep.tune import app

        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        (tmp_path / "cut.json").write_text('[{"id": "a", "conversations": [{"from": "human", "value": "x"}, {"fr')
        night = Night(tmp_path, fake_study.study(tmp_path, **changes))
        path = fake_study.write(tmp_path / "study.yaml", night.content)
        done = CliRunner().invoke(app, [str(path)])
        assert done.exit_code == 2
        assert done.stdout == ""
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("sweep: ")]
        assert words in line
        assert "Traceback" not in done.stderr
        assert night.servers() == []
        assert list((tmp_path / "results").rglob("*.parquet")) == []


def test_dry_run_shows_commands_and_launches_nothing(tmp_path: Path) -> None:
    content = fake_study.study(tmp_path)
    content["search_space"] = {**content["search_space"], "constraints": ["max-num-seqs <= 128"]}
    night = Night(tmp_path, content)
    done = night.run("--dry-run")
    assert done.returncode == 0, done.stderr
    assert "320 combinations, 160 of them within the constraints" in done.stdout
    commands = [shlex.split(line) for line in done.stdout.splitlines() if line.startswith("  ")]
    assert len(commands) == 3
    for words in commands:
        assert words.pop(0).startswith("FAKE_VLLM=")  # what the study sets of the environment comes first
        assert words[: len(night.content["serve"]["command"])] == night.content["serve"]["command"]
        assert "--gpu-memory-utilization" in words
    assert commands[0][commands[0].index("--max-num-seqs") + 1] == "8"
    assert night.servers() == []
    assert not (tmp_path / "results").exists()


def test_help_is_worth_reading() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sweep.tune", "--help"],
        env={**fake_study.environment(), "COLUMNS": "120", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=False,
        cwd=os.sep,
    )
    assert done.returncode == 0
    assert "Tune the serve flags of a vLLM server." in done.stdout
    assert "Exit codes" in done.stdout
    for option in ("--dry-run", "--json", "--ray-address", "--time-budget", "--deadline", "--salvage"):
        assert option in done.stdout
