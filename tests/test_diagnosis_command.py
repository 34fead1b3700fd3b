"""`python -m sweep.diagnosis`: three lines for people, five keys for programs, one line for mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sweep.diagnosis.__main__ import main

LINE = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.write_text(f"(EngineCore pid=1) ERROR 11-30 01:05:19 [core.py:1510] {LINE}\n")
    return path


def test_three_lines(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(log), "--phase", "startup"]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("kv_cache_too_small")
    assert second == LINE
    assert "gpu-memory-utilization" in third


def test_json_and_the_reading(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(log), "--json", "--memory-before-gib", "24", "--exit-code", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["class", "line", "retryable", "informative_for_search", "advice"]
    assert (found["class"], found["line"], found["retryable"]) == ("memory_taken_by_other", LINE, True)


def test_standard_input_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "sweep.diagnosis", "-", "--json"]
    run = subprocess.run(command, input=b"\xff\xfe\n" + LINE.encode(), capture_output=True, check=True, timeout=60)
    assert json.loads(run.stdout)["class"] == "kv_cache_too_small"
    assert run.stderr == b""


def test_no_cause_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.log"
    empty.touch()
    assert main([str(empty)]) == 0
    assert capsys.readouterr().out.startswith("unknown")


@pytest.mark.parametrize("words", [["absent.log"], ["."], [], ["-", "--phase", "lunch"], ["-", "--exit-code", "x"]])
def test_mistakes_are_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1


def test_it_starts_without_heavy_imports() -> None:
    code = "import sys, sweep.diagnosis.__main__; print([m for m in sys.modules if m in %r])"
    heavy = ("ray", "optuna", "pyarrow", "numpy", "pydantic", "typer", "rich")
    run = subprocess.run(
        [sys.executable, "-c", code % (heavy,)], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.strip() == "[]"
