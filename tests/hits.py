"""Signals to the processes of a trial, each in the phase it is meant for."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from running import Running
from waiting import until

from sweep.journal import read_progress

PHASES = ("start", "ready", "warmup", "load", "stop")
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL")
# Of a trial; the load client is there in one phase only.
TREE = ("supervisor", "server", "engine")


def lasting(*phases: str, seconds: float = 0.5) -> dict[str, Any]:
    """A fake whose `phases` take so long that one can aim at them; for "stop" that is the study's `stop_timeout_s`.

    Its engine has a session of its own, and the server ends when the engine does.
    """
    deaf = "stop" in phases
    slow: Mapping[str, Mapping[str, Any]] = {
        "start": {"start_delay_s": seconds},
        "ready": {"metrics_delay_s": seconds},
        "warmup": {"itl_ms": seconds * 300},  # replies of four tokens
        "load": {"itl_ms": seconds * 300},
        "stop": {"ignore_sigterm": True},
    }
    fake: dict[str, Any] = {"ttft_ms": 2, "itl_ms": 0.2, "landscape": {}, "server_dies_with_child": True}
    fake["grandchild"] = {"count": 1, "setsid": True, "ignore_sigterm": deaf}
    for phase in phases:
        fake |= slow[phase]
    return fake


def aim(study: Path, number: int, phase: str, timeout_s: float = 300.0) -> Running:
    """What runs of trial `number` in `phase`. `study` is the folder of its results.

    AssertionError when the trial does not come to the phase in time.
    """
    logs = study / "logs" / f"{number:04d}"

    def there() -> bool:
        now = read_progress(logs)
        return now is not None and now.phase == phase

    until(there, f"trial {number} in {phase}", timeout_s)
    return Running.of(study, phase)


def hit(study: Path, number: int, who: str, name: str, phase: str, timeout_s: float = 300.0) -> Running:
    """Send signal `name` to the process `who` of a trial in `phase`; see `aim`."""
    running = aim(study, number, phase, timeout_s)
    os.kill(getattr(running, who), signal.Signals[name])
    return running


def turning(whom: tuple[str, ...] = TREE) -> list[tuple[str, str, str]]:
    """Each of `whom` in each phase once, each signal as often as another: (who, signal, phase)."""
    return [
        (who, SIGNALS[(row + column) % len(SIGNALS)], phase)
        for row, who in enumerate(whom)
        for column, phase in enumerate(PHASES)
    ]
