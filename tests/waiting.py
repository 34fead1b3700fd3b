"""Bounded waits, and a look at processes.

A limit only says when a test has failed: it is far above what a cold, busy machine needs.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from sweep import supervisor


def until(condition: Callable[[], Any], what: str, timeout_s: float = 300.0) -> Any:
    """The first true value of `condition`; AssertionError naming `what` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still waiting for: {what}"
        time.sleep(0.01)
    return value


@contextlib.contextmanager
def killed_at_last(process: subprocess.Popen[Any]) -> Iterator[None]:
    """A process that outlives no test, whatever that test runs into."""
    try:
        yield
    finally:
        process.kill()


def alive(pids: Iterable[int]) -> list[int]:
    """Those that are alive; zombies are not."""
    return [pid for pid in pids if supervisor.look(pid) is not None]


def json_file(path: Path) -> Any:
    """The contents of a JSON file that is written by another process, once it is there."""
    until(path.exists, f"{path.name} to be written")
    return json.loads(path.read_text())
