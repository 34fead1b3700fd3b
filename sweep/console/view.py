"""What a person sees while a study runs: greppable lines in a pipe, JSON on demand."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from sweep.console.words import flags_text, score_text
from sweep.journal import Progress, read_progress
from sweep.trial import Finished, TrialSpec

_TICK_S = 0.5


class View(Protocol):
    """Hears what happens. A context manager."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def say(self, line: str) -> None:
        """A notice for the person."""

    def started(self, spec: TrialSpec) -> None:
        """A trial was handed to a worker."""

    def ended(self, finished: Finished) -> None:
        """A trial is stored and told to the search."""


@dataclass(slots=True)
class Watched:
    """The live trials and what their workers last said, read twice a second from their journals."""

    log_folder: Callable[[int], Path]
    live: dict[int, TrialSpec] = field(default_factory=dict)
    progress: dict[int, Progress] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def poll(self) -> list[tuple[TrialSpec, Progress]]:
        """The live trials whose progress changed."""
        changed = []
        with self.lock:
            for number, spec in self.live.items():
                now = read_progress(self.log_folder(number))
                if now is not None and now != self.progress.get(number):
                    self.progress[number] = now
                    changed.append((spec, now))
        return changed


class Polled:
    """A view with a thread that calls `_tick`."""

    def __init__(self, log_folder: Callable[[int], Path]) -> None:
        self._watched = Watched(log_folder)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="view", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._ended.wait(_TICK_S):
            self._tick()

    def _tick(self) -> None:
        raise NotImplementedError

    def _begin(self, spec: TrialSpec) -> None:
        with self._watched.lock:
            self._watched.live[spec.number] = spec

    def _end(self, finished: Finished) -> None:
        with self._watched.lock:
            self._watched.live.pop(finished.number, None)
            self._watched.progress.pop(finished.number, None)


class PlainView(Polled):
    """One line an event, for pipes and log files. `word`: how trials come about that no server runs ("replayed")."""

    def __init__(self, log_folder: Callable[[int], Path], word: str | None = None) -> None:
        super().__init__(log_folder)
        self._word = word or "done"

    def say(self, line: str) -> None:
        print(line, flush=True)  # noqa: T201 - this is the output

    def started(self, spec: TrialSpec) -> None:
        self._begin(spec)
        self.say(f"trial {spec.number} {spec.kind}: {flags_text(spec.flags)}")

    def ended(self, finished: Finished) -> None:
        self._end(finished)
        self.say(f"trial {finished.number} {self._word}: {score_text(finished)}")

    def _tick(self) -> None:
        for spec, progress in self._watched.poll():
            if not progress.done:  # a change of phase; counts would flood a log file
                attempt = f" (attempt {progress.attempt})" if progress.attempt > 1 else ""
                self.say(f"trial {spec.number} {progress.phase}{attempt}")


class JsonView(PlainView):
    """One JSON object a trial on standard output; notices on standard error."""

    def __init__(self, log_folder: Callable[[int], Path], describe: Callable[[Finished], Mapping[str, Any]]) -> None:
        super().__init__(log_folder)
        self._describe = describe

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)  # noqa: T201 - this is the output

    def ended(self, finished: Finished) -> None:
        self._end(finished)
        print_json(self._describe(finished))

    def _tick(self) -> None:
        self._watched.poll()


def print_json(value: Mapping[str, Any]) -> None:
    """One line of JSON on standard output."""
    print(json.dumps(value, allow_nan=False, default=str), flush=True)  # noqa: T201 - this is the output
