"""Reads the engine's `/metrics` about once a second while a trial runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from sweep.journal import Journal
from sweep.metrics import parse_engine_sample
from sweep.records import EngineSample

_INTERVAL_S = 1.0


class EngineWatch:
    """A thread that collects EngineSamples."""

    def __init__(self, read: Callable[[], str | None], journal: Journal) -> None:
        self._read, self._journal = read, journal
        self._samples: list[EngineSample] = []
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="engine-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(timeout=15.0)

    @property
    def samples(self) -> tuple[EngineSample, ...]:
        """All readings so far."""
        with self._lock:
            return tuple(self._samples)

    def look(self) -> EngineSample | None:
        """One reading now; None when the engine does not answer."""
        at_s, phase = self._journal.elapsed_s(), self._journal.phase
        text = self._read()
        if text is None:
            return None
        sample = parse_engine_sample(text, at_s=at_s, phase=phase)
        with self._lock:
            self._samples.append(sample)
        return sample

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            due = max(due + _INTERVAL_S, time.monotonic())
            self.look()
