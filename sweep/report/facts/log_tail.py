"""The end of a trial's logs, in few lines and without secrets."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sweep.diagnosis import is_farewell

_BYTES = 1 << 15
_LINES = 25
_LONGEST = 300
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_NUMBERED = re.compile(r"(server|client)-(\d+)\.log")


@dataclass(frozen=True, slots=True)
class LogTail:
    """The last lines of one log, whose path is relative to the study's folder. `cut`: lines stand before them;
    `left_out` are those among and after them that only count what a process did not give back (`is_farewell`)."""

    path: str
    lines: tuple[str, ...]
    cut: bool
    left_out: int = 0


def log_tails(folder: Path, number: int, redact: Callable[[str], str]) -> tuple[LogTail, ...]:
    """The ends of the server's and the load client's log of a trial's last attempt; what is not there is left out.

    A worker that was killed left its logs with what the server printed, so `redact` goes over each line.
    """
    found: dict[str, tuple[int, Path]] = {}
    place = folder / "logs" / f"{number:04d}"
    try:
        names = sorted(entry.name for entry in place.iterdir())
    except OSError:
        return ()
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is not None and int(match[2]) > found.get(match[1], (-1, place))[0]:
            found[match[1]] = (int(match[2]), place / name)
    tails = (_tail(folder, path, redact) for _, (_, path) in sorted(found.items(), reverse=True))
    return tuple(tail for tail in tails if tail is not None)


def _tail(folder: Path, path: Path, redact: Callable[[str], str]) -> LogTail | None:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _BYTES))
            content = file.read(_BYTES)
    except OSError:
        return None
    lines = _COLOUR.sub("", content.decode(errors="replace")).rstrip("\n").split("\n")
    if size > _BYTES:
        lines = lines[1:]  # begins somewhere
    every, lines = len(lines), [line for line in lines if not is_farewell(line)]
    cut = size > _BYTES or len(lines) > _LINES
    # A progress bar draws over itself: what stands after its last carriage return is what one would have seen.
    shown = (_CONTROL.sub("", redact(line.rstrip("\r").rpartition("\r")[2])) for line in lines[-_LINES:])
    return LogTail(
        str(path.relative_to(folder)),
        tuple(line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..." for line in shown),
        cut,
        every - len(lines),
    )
