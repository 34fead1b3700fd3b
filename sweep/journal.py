"""What a trial says of itself while it runs: its phase for the live view, its events for the record.

Both go to files in the trial's log folder at once, so that a trial killed in any moment leaves its story behind.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sweep.records import Event

PROGRESS, EVENTS = "progress.json", "events.jsonl"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a trial is. `done` of `total` requests are answered; `since_wall_s` is when the phase began. The p95s are
    of all requests of the rounds that ended, None before one has.
    """

    number: int
    attempt: int
    phase: str
    since_wall_s: float
    done: int | None = None
    total: int | None = None
    p95_ttft_ms: float | None = None
    p95_tpot_ms: float | None = None


class Journal:
    """The story of one trial over all its attempts, those of a worker or a study that was killed included.

    Every string passes `redact` before it is written. What cannot be written is kept in `events` all the same, and the
    first reason why not in `trouble`: a full disk must not keep a trial from stopping its server.
    """

    def __init__(self, folder: Path, number: int, *, redact: Callable[[str], str]) -> None:
        self.events: list[Event] = list(read_events(folder))
        self.attempt = self.attempts_before = max((event.attempt for event in self.events), default=0)
        self.phase = ""
        self._folder, self._number, self.redact = folder, number, redact
        self._began_s = time.monotonic()
        self._progress: Progress | None = None
        self.trouble: OSError | None = None
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)

    def begin_attempt(self, attempt: int) -> None:
        """Times of events count from here."""
        self.attempt, self._began_s = attempt, time.monotonic()

    def elapsed_s(self, monotonic_s: float | None = None) -> float:
        """Seconds since the attempt began, now or at a monotonic time."""
        return (time.monotonic() if monotonic_s is None else monotonic_s) - self._began_s

    def phase_at(self, at_s: float) -> str:
        """The phase of this attempt at a time since it began; the first one for times before it."""
        phases = [(e.at_s, e.phase) for e in self.events if e.kind == "phase" and e.attempt == self.attempt]
        passed = [phase for began_s, phase in phases if began_s <= at_s]
        return passed[-1] if passed else phases[0][1] if phases else ""

    def enter(self, phase: str, *, total: int | None = None) -> None:
        """The trial enters a phase."""
        self.phase = phase
        now, fresh = (
            self._progress,
            Progress(self._number, self.attempt, phase, time.time(), 0 if total else None, total),
        )
        if now is not None and now.attempt == self.attempt:
            fresh = replace(fresh, p95_ttft_ms=now.p95_ttft_ms, p95_tpot_ms=now.p95_tpot_ms)
        self._show(fresh)
        self.note("phase")

    def advance(self, done: int) -> None:
        """`done` requests of the phase are answered."""
        now = self._progress
        if now is not None and now.total is not None and done != now.done:
            self._show(replace(now, done=min(done, now.total)))

    def measured(self, p95_ttft_ms: float | None, p95_tpot_ms: float | None) -> None:
        """A round ended: what all rounds so far say together."""
        if self._progress is not None:
            self._show(replace(self._progress, p95_ttft_ms=p95_ttft_ms, p95_tpot_ms=p95_tpot_ms))

    def note(self, kind: str, detail: str = "", **facts: str | int | bool | None) -> None:
        """Record an event of the current phase."""
        texts = {key: self.redact(fact) if isinstance(fact, str) else fact for key, fact in facts.items()}
        event = Event(
            attempt=self.attempt,
            at_s=self.elapsed_s(),
            wall_s=time.time(),
            kind=kind,
            phase=self.phase,
            detail=self.redact(detail),
            **texts,  # type: ignore[arg-type]  # the names and types are those of Event
        )
        self.events.append(event)
        with self._writing(), (self._folder / EVENTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(event)) + "\n")

    def _show(self, progress: Progress) -> None:
        self._progress = progress
        target = self._folder / PROGRESS
        temporary = target.with_suffix(".tmp")
        with self._writing():
            temporary.write_text(json.dumps(asdict(progress)), encoding="utf-8")
            temporary.replace(target)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.trouble = self.trouble or error


def read_progress(folder: Path) -> Progress | None:
    """The latest state of a trial from its log folder; None when there is none yet."""
    try:
        return Progress(**json.loads((folder / PROGRESS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def read_events(folder: Path) -> tuple[Event, ...]:
    """The events a trial wrote, also one that was killed; a line cut short is left out."""
    events = []
    try:
        lines = (folder / EVENTS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    for line in lines:
        try:
            events.append(Event(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return tuple(events)
