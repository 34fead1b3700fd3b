"""What an earlier run left behind: found by its records, by id and start time or token, never by name."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweep import supervisor
from sweep.supervisor import Seen

_GRACE_S = 2.0
_DISMISS_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Leftover:
    """Processes of an earlier run found by their record: those `ended` now and those `left` all the same."""

    record: Path
    ended: tuple[int, ...]
    left: tuple[int, ...]


def end_leftovers(records: Path, *, even_owned: bool = False) -> tuple[Leftover, ...]:
    """End what earlier runs left behind, by the `*.json` records in that folder; clear the records.

    A process is ended only if its id **and** start time are the recorded ones, or if it carries the record's random
    token in its environment (or descends from such a one). A tree that is alive with its supervisor and its owner is
    left alone, unless `even_owned`: for a caller that holds the lock of the study, so that such an owner can only
    be a worker of an earlier run that has not ended yet. Records of another host or container are left alone always.
    Returns what was found, nothing for stale records.
    """
    found: list[Leftover] = []
    here = supervisor.place()
    for path in sorted(records.glob("*.json")):
        record = _read(path)
        if record is None or _gone_with_its_boot(record, here):
            path.unlink(missing_ok=True)
        elif any(record[key] != value for key, value in here.items()):
            continue
        elif even_owned or not (_alive(record["owner"]) and _alive(record["supervisor"])):
            members = _members(record, by_session=False)
            _dismiss(record["supervisor"])
            _, left = end_recorded(record, grace_s=_GRACE_S, by_session=False)
            if not left:
                path.unlink(missing_ok=True)
            if members:
                found.append(Leftover(path, tuple(sorted(set(members) - set(left))), left))
    return tuple(found)


def _read(path: Path) -> dict[str, Any] | None:
    """The record, or None for a file that is none (cut short by a power failure)."""
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        for key in ("owner", "supervisor"):
            pid, started = record[key]
            int(pid), int(started)
        if record["child"] is not None:
            int(record["child"][0]), int(record["child"][1])
        str(record["token"]), str(record["host"]), str(record["boot_id"]), str(record["pid_namespace"])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
    return record


def _gone_with_its_boot(record: dict[str, Any], here: dict[str, str]) -> bool:
    return bool(record["host"] == here["host"] and record["boot_id"] != here["boot_id"])


def _alive(identity: Sequence[int]) -> bool:
    seen = supervisor.look(identity[0])
    return seen is not None and seen.started == identity[1]


def _dismiss(identity: Sequence[int]) -> None:
    """Have a supervisor without owner hurry. It is ending its tree already; a second SIGTERM takes its patience."""
    for number, wait_s in ((signal.SIGTERM, _GRACE_S + _DISMISS_WAIT_S), (signal.SIGKILL, _DISMISS_WAIT_S)):
        deadline = time.monotonic() + wait_s
        while _alive(identity) and time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(identity[0], number)
            time.sleep(0.1)


def end_recorded(record: dict[str, Any], *, grace_s: float, by_session: bool) -> tuple[bool, tuple[int, ...]]:
    kill_at = time.monotonic() + grace_s
    return supervisor.end(lambda: _members(record, by_session=by_session), lambda: kill_at, time.sleep)


def _members(record: dict[str, Any], *, by_session: bool) -> dict[int, int]:
    """Id and start time of what belongs to the record.

    `by_session` is for an owner that sees its supervisor vanish: the session's number cannot have been used again
    in that moment. Later only a start time or the token counts.
    """
    living = supervisor.everyone()
    since = record["supervisor"][1]
    child = record["child"]
    roots = {
        pid
        for pid, seen in living.items()
        if seen.started >= since and _belongs(pid, seen, child, record["token"], by_session=by_session)
    }
    ids = roots | supervisor.descendants(roots, living)
    return {pid: living[pid].started for pid in ids - _lineage(living)}


def _belongs(pid: int, seen: Seen, child: Sequence[int] | None, token: str, *, by_session: bool) -> bool:
    if child is not None:
        if [pid, seen.started] == list(child):
            return True
        if by_session and seen.session == child[0]:
            return True
    return supervisor.carries(pid, token)


def _lineage(living: dict[int, Seen]) -> set[int]:
    """This process and everything above it: never ours to end."""
    above = {os.getpid()}
    pid = os.getpid()
    while pid in living and living[pid].parent not in above:
        pid = living[pid].parent
        above.add(pid)
    return above
