"""A client that imports once and is forked for each run: its codes, its deaths, and that it is what it stands for."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import alive, until

from sweep.loadgen import KeptClient, can_be_kept
from sweep.runner.telemetry import recorded_pids
from sweep.vllm_cpu import installed

CLIENT = """
import os, sys, time, warnings
if "--help" in sys.argv:
    import json.tool  # what a run needs
    print("usage: not for the log")
    sys.exit(0)
assert "json.tool" in sys.modules, "not forked from what imported"
print("run", sys.argv[1:], os.environ["MARK"], flush=True)
match sys.argv[2]:
    case "code": sys.exit(int(sys.argv[3]))
    case "text": sys.exit("said at the end")
    case "raise": raise RuntimeError("broken")
    case "wait": time.sleep(60)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], KeptClient]]:
    started: list[KeptClient] = []

    def begin(source: str = CLIENT) -> KeptClient:
        (tmp_path / "a_client.py").write_text(source)
        kept = KeptClient.start(
            (sys.executable, "-m", "a_client", "first"),
            env={**os.environ, "PYTHONPATH": f"{Path(__file__).parents[1]}:{tmp_path}", "MARK": "of this trial"},
            log_path=tmp_path / "client.log",
            record_path=tmp_path / "client.json",
        )
        started.append(kept)
        return kept

    yield begin
    for kept in started:
        kept.stop()


def ended(kept: KeptClient, *words: str) -> int | None:
    run = kept.begin((*kept.command, *words))
    code = run.wait(120.0)
    run.stop()
    return code


def both(folder: Path) -> list[int]:
    """Process ids of the kept client and its fork, once there is one."""
    pids = recorded_pids(folder / "client.json")
    found: list[int] = until(lambda: found if len(found := pids()) == 2 else None, "a fork")
    return found


def test_runs_end_as_processes_of_their_own_would(start: Callable[[], KeptClient], tmp_path: Path) -> None:
    kept = start()
    assert [ended(kept, *words) for words in (("code", "0"), ("code", "7"), ("text",), ("raise",), ("none",))] == [
        *(0, 7, 1, 1, 0)
    ]
    log = (tmp_path / "client.log").read_text()
    assert log.count("of this trial") == 5
    assert "run ['first', 'code', '7']" in log
    assert "said at the end" in log
    assert "RuntimeError: broken" in log
    assert "usage" not in log
    kept.stop()
    assert not (tmp_path / "client.json").exists()


def test_a_killed_run_has_its_signal_and_the_next_one_is_well(start: Callable[[], KeptClient], tmp_path: Path) -> None:
    kept = start()
    run = kept.begin((*kept.command, "wait"))
    _own, child = both(tmp_path)
    assert not kept.usable
    assert run.wait(0.01) is None
    os.kill(child, signal.SIGKILL)
    assert run.wait(120.0) == -signal.SIGKILL
    run.stop()
    assert ended(kept, "code", "0") == 0


def test_a_run_that_is_cut_short_is_gone_and_takes_the_rest_along(
    start: Callable[[], KeptClient], tmp_path: Path
) -> None:
    kept = start()
    run = kept.begin((*kept.command, "wait"))
    pids = both(tmp_path)
    began = time.monotonic()
    run.stop()
    assert time.monotonic() - began < 10.0
    assert not alive(pids)
    assert not kept.usable


def test_the_death_of_the_whole_is_the_end_of_the_run(start: Callable[[], KeptClient], tmp_path: Path) -> None:
    kept = start()
    run = kept.begin((*kept.command, "wait"))
    own, child = until(
        lambda: found if len(found := recorded_pids(tmp_path / "client.json")()) == 2 else None, "a fork"
    )
    os.kill(own, signal.SIGKILL)
    assert run.wait(120.0) == -signal.SIGKILL
    run.stop()
    assert not alive([child])
    assert not kept.usable


def test_one_that_cannot_even_import_is_not_used(start: Callable[[str], KeptClient], tmp_path: Path) -> None:
    kept = start("raise ImportError('half installed')")
    until(lambda: not kept.usable, "its end")
    assert "half installed" in (tmp_path / "client.log").read_text()
    run = kept.begin((*kept.command, "code", "0"))
    assert run.wait(120.0) == 1


def test_one_run_at_a_time_and_only_its_own_command(start: Callable[[], KeptClient]) -> None:
    kept = start()
    with pytest.raises(ValueError, match="its own command"):
        kept.begin(("other", "words"))
    run = kept.begin((*kept.command, "wait"))
    with pytest.raises(ValueError, match="one load at a time"):
        kept.begin((*kept.command, "wait"))
    run.stop()


def test_only_the_vllm_of_this_python_is_kept() -> None:
    assert can_be_kept((sys.executable, "-m", "sweep.vllm_cpu", "bench", "serve"))
    assert can_be_kept((sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve"))
    assert not can_be_kept(("vllm", "bench", "serve"))
    assert not can_be_kept(("/other/python", "-m", "vllm.entrypoints.cli.main", "bench", "serve"))
    assert not can_be_kept((sys.executable, "-m", "my.client"))
    if (found := installed()) is not None:
        assert can_be_kept(found.client_command)
