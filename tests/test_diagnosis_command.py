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
    run = subprocess.run(command, input=b"\xff\xfe\n" + LINE.encode(), capture_output=True, check=True, timeout=300)
    assert json.loads(run.stdout)["class"] == "kv_cache_too_small"
    assert run.stderr == b""


HEALTHY = """\
INFO 11-30 01:05:10 [api_server.py:1] vLLM API server version 0.32.0
INFO:     Application startup complete.
INFO:     127.0.0.1:55312 - "POST /v1/chat/completions HTTP/1.1" 200 OK
"""


@pytest.mark.parametrize("text", ["", "\n\n", HEALTHY], ids=["empty", "blank", "healthy"])
@pytest.mark.parametrize("more", [[], ["--exit-code", "0"], ["--phase", "startup"]], ids=["", "code 0", "startup"])
def test_a_log_without_a_failure_is_said_to_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, more: list[str]
) -> None:
    log = tmp_path / "server.log"
    log.write_text(text)
    assert main([str(log), *more]) == 0
    first, _, third = capsys.readouterr().out.splitlines()
    assert first == "unknown; no failure was found in this log"
    assert "No failure was found" in third
    assert main([str(log), *more, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["class", "line", "retryable", "informative_for_search", "advice"]
    assert (found["class"], found["line"], found["informative_for_search"]) == ("unknown", None, False)


@pytest.mark.parametrize(
    ("text", "more"),
    [("ERROR 11-30 01:05:19 [x.py:1] something never heard of\n", []), (HEALTHY, ["--exit-code", "3"])],
    ids=["a line", "an exit code"],
)
def test_a_failure_of_no_known_cause_is_not_called_transient(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, more: list[str]
) -> None:
    log = tmp_path / "server.log"
    log.write_text(text)
    assert main([str(log), *more]) == 0
    first, _, third = capsys.readouterr().out.splitlines()
    assert first.startswith("unknown in phase ")
    assert "transient" not in first
    assert "no failure" not in first
    assert "No known cause" in third


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
        [sys.executable, "-c", code % (heavy,)], capture_output=True, text=True, check=True, timeout=300
    )
    assert run.stdout.strip() == "[]"
