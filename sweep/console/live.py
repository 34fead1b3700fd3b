"""The live view of a terminal: what runs, what ended, how good the best is, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from sweep.console.draw import draw
from sweep.console.scene import Sources, make_scene
from sweep.console.view import Polled
from sweep.console.words import flags_text, score_text
from sweep.journal import Progress
from sweep.trial import Finished, Phase, TrialSpec

if TYPE_CHECKING:  # a report, which also prints with this package, asks no device
    from sweep.gpu import DeviceReading

# Drawn once a second: a redraw costs 2 to 4 ms, and the promise is 2 % of a core.
_DRAW_EVERY_S = 1.0
_DEVICES_EVERY_S = 5.0
_TAIL_BYTES = 2048
_LAST = 8


class LiveView(Polled):
    """Draws `sources` and the running trials' journals; lines of ended trials scroll away above it. `word` as for
    PlainView.
    """

    def __init__(
        self,
        log_folder: Callable[[int], Path],
        console: Console,
        *,
        trials: int,
        sources: Sources,
        word: str | None = None,
    ) -> None:
        super().__init__(log_folder)
        self._word = "" if word is None else f"{word}, "
        self._console, self._trials, self._sources, self._log_folder = console, trials, sources, log_folder
        self._devices: tuple[DeviceReading, ...] = ()
        self._drawn_s = self._devices_s = -float("inf")
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
        self.say(f"trial {finished.number}: {self._word}{score_text(finished)}   {flags_text(finished.flags)}")

    def _tick(self) -> None:
        now_s = time.monotonic()
        if now_s - self._drawn_s < _DRAW_EVERY_S:
            return
        self._drawn_s = now_s
        if now_s - self._devices_s >= _DEVICES_EVERY_S:
            self._devices_s, self._devices = now_s, tuple(self._sources.devices())
        self._watched.poll()
        self._live.refresh()

    def _render(self) -> RenderableType:
        """The screen as it is now, for the size of the terminal as it is now."""
        with self._watched.lock:
            live = list(self._watched.live.values())
            progress = dict(self._watched.progress)
        running = [(spec, progress.get(spec.number)) for spec in live]
        scene = make_scene(
            self._sources.finished(),
            [(spec, now, self._log_line(spec, now)) for spec, now in running],
            asked=self._trials,
            left_s=self._sources.left_s(),
            devices=self._devices,
            now_wall_s=time.time(),
            startup_timeout_s=self._sources.startup_timeout_s,
            requests=self._sources.requests,
            most=_LAST,
        )
        return draw(scene, self._console.width, self._console.height)

    def _log_line(self, spec: TrialSpec, progress: Progress | None) -> str:
        """The last line of the log of a server that starts, without colours and secrets."""
        if progress is None or progress.phase != Phase.START:
            return ""
        path = self._log_folder(spec.number) / f"server-{progress.attempt}.log"
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        last = next((line for line in reversed(lines) if line.strip()), "")
        plain = "".join(char for char in Text.from_ansi(last).plain if char.isprintable())
        return self._sources.redact(plain.strip())
