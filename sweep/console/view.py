"""What a person sees while a study runs: a live view on a terminal, greppable lines in a pipe, JSON on demand."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sweep.journal import Progress, read_progress
from sweep.trial import Finished, Flags, TrialKind, TrialSpec, TrialStatus

_TICK_S = 0.5


def flags_text(flags: Flags) -> str:
    """Flags in a few words: `max-num-seqs=64 block-size=(vLLM)`."""
    return " ".join(f"{name}={'(vLLM)' if value is None else value}" for name, value in flags.items())


def score_text(finished: Finished) -> str:
    """How a trial ended, in a few words."""
    if finished.status is TrialStatus.CENSORED:
        return "stopped early" if finished.score is None else f"stopped early, score {finished.score:.3f} so far"
    if finished.status is not TrialStatus.COMPLETE:
        cause = (
            f"{finished.failure_class}: {finished.failure_line}" if finished.failure_line else finished.failure_class
        )
        return f"{finished.status} ({cause})"
    if finished.score is None and finished.kind in (TrialKind.CALIBRATION, TrialKind.CONFIRM, TrialKind.SOAK):
        return "measured"  # there is nothing to compare it with, or not yet
    score = "no score: a metric is missing" if finished.score is None else f"score {finished.score:.3f}"
    broken = [name for name, excess in finished.violations.items() if excess > 0]
    return score + (f", breaks the SLO on {', '.join(broken)}" if broken else "")


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
class _Watched:
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


class _Polled:
    """A view with a thread that calls `_tick`."""

    def __init__(self, log_folder: Callable[[int], Path]) -> None:
        self._watched = _Watched(log_folder)
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


class PlainView(_Polled):
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


class LiveView(_Polled):
    """The terminal: running trials with their phase, the best so far, the time left. `word` as for PlainView."""

    def __init__(
        self,
        log_folder: Callable[[int], Path],
        console: Console,
        *,
        trials: int,
        best: Callable[[], str],
        time_left_s: Callable[[], float | None],
        word: str | None = None,
    ) -> None:
        super().__init__(log_folder)
        self._word = "" if word is None else f"{word}, "
        self._console, self._trials, self._best, self._time_left_s = console, trials, best, time_left_s
        self._done = 0
        self._live = Live(console=console, auto_refresh=False, transient=True, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.start()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._live.stop()

    def say(self, line: str) -> None:
        self._console.print(Text(line))

    def started(self, spec: TrialSpec) -> None:
        self._begin(spec)

    def ended(self, finished: Finished) -> None:
        self._end(finished)
        self._done += 1
        self.say(f"trial {finished.number}: {self._word}{score_text(finished)}   {flags_text(finished.flags)}")

    def _tick(self) -> None:
        self._watched.poll()
        self._live.refresh()

    def _render(self) -> Group:
        table = Table(box=None, pad_edge=False, expand=True, header_style="bold")
        table.add_column("trial", justify="right")
        table.add_column("phase")
        table.add_column("for", justify="right")
        table.add_column("flags", ratio=1, overflow="fold")
        with self._watched.lock:
            live = list(self._watched.live.items())
            progress = dict(self._watched.progress)
        for number, spec in live:
            table.add_row(str(number), *_phase_cells(progress.get(number)), flags_text(spec.flags))
        left_s = self._time_left_s()
        left = "" if left_s is None else f"   about {_duration(left_s)} left"
        line = f"{self._done} of {self._trials} trials done{left}   {self._word}{self._best()}"
        return Group(table, Text(line, style="bold"))


_PHASE_WORDS = {"host": "waiting for devices", "start": "starting", "warmup": "warming up", "stop": "stopping"}


def _phase_cells(progress: Progress | None) -> tuple[str, str]:
    if progress is None:
        return "queued", ""
    words = _PHASE_WORDS.get(progress.phase, progress.phase)
    if progress.total is not None:
        words += f" {progress.done}/{progress.total}"
    if progress.attempt > 1:
        words += f" (attempt {progress.attempt})"
    return words, _duration(max(0.0, time.time() - progress.since_wall_s))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
