"""How far the load is, by the client's own progress bar, and whether one of its requests takes too long."""

from __future__ import annotations

import bisect
import math
import re
from collections import deque
from pathlib import Path

from sweep.workload import Round

_BEGUN = b"Starting main benchmark run"
_KEEP = 256  # bytes carried over, so that a bar cut by the end of a read is still seen


class ProgressBar:
    """The client's log from its present end on, read for "43/200 [" of the bar. Costs a few kB a second to read."""

    def __init__(self, log_path: Path, total: int) -> None:
        self._path, self._total = log_path, total
        self._offset = log_path.stat().st_size if log_path.exists() else 0
        self._tail = b""
        self._bar = re.compile(rb"(\d+)/%d \[" % total)
        self.begun = False
        self.done: int | None = None

    def update(self) -> bool:
        """Read what is new; return whether `begun` or `done` changed. `done` is None until a bar was seen."""
        before = (self.begun, self.done)
        try:
            with self._path.open("rb") as log:
                log.seek(self._offset)
                new = log.read()
        except FileNotFoundError:
            return False
        self._offset += len(new)
        text = self._tail + new
        self._tail = text[-_KEEP:]
        counts = [int(count) for count in self._bar.findall(text)]
        if counts:
            self.done = max(counts[-1], self.done or 0)
        self.begun = self.begun or _BEGUN in text or self.done is not None
        return before != (self.begun, self.done)


class RequestClock:
    """Tells when a request must have been in flight for longer than `limit_s`. All times on one monotonic clock.

    The client has no such limit (its own is six hours, fixed) and does not say which request is unfinished. But it
    sends in the planned order, each at its planned time and as soon as `max_concurrency` lets it, so that after
    `limit_s` as many must be finished as had been sent: `min(planned sends, finished then + max_concurrency)`.
    """

    def __init__(self, plan: Round, *, began_at: float, max_concurrency: int | None, limit_s: float) -> None:
        self._sends = [began_at + plan.lead_s + arrival for arrival in plan.arrivals_s]
        self._slots = math.inf if max_concurrency is None else max_concurrency
        self._limit_s = limit_s
        self._history = deque([(began_at, 0)])

    def overdue(self, now: float, done: int) -> str | None:
        """None while all is well, otherwise "no_progress" or "timeout_load"."""
        self._history.append((now, done))
        then = now - self._limit_s
        while len(self._history) > 1 and self._history[1][0] <= then:
            self._history.popleft()
        at, done_then = self._history[0]
        if at > then:
            return None
        sent = min(bisect.bisect_right(self._sends, then), done_then + self._slots)
        if done >= sent:
            return None
        return "no_progress" if done == done_then else "timeout_load"
