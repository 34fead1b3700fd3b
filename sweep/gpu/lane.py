"""Calls into the driver with a limit on time.

A call into a sick driver may never return, and a thread inside it cannot be ended. So the calls for one
card run on one daemon thread: when a call is stuck, its caller goes on without an answer and only that card
is lost.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Problem:
    """Why there is no answer, in words that fit after "cannot be read: "."""

    text: str


STUCK = Problem("the driver does not answer; a call into it is stuck")


class Job(Generic[T]):
    """One piece of work handed to a lane; `undo` runs if it is finished after its caller has gone."""

    def __init__(self, work: Callable[[], T], undo: Callable[[], object] | None) -> None:
        self._work, self._undo = work, undo
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._abandoned = False
        self._answer: T | Problem = Problem("the call ended without an answer")

    @property
    def stuck(self) -> bool:
        return self._abandoned and not self._done.is_set()

    def _given_up(self) -> bool:
        return self._abandoned  # another thread's doing: a call, so that it is not taken for settled

    def run(self) -> None:
        try:
            if self._given_up():
                return
            answer = self._work()
            with self._lock:
                self._answer = answer
                late = self._given_up()
            if late and self._undo is not None:
                self._undo()
        finally:
            self._done.set()

    def wait(self, deadline_s: float) -> T | Problem:
        """The answer, or a Problem once `time.monotonic` has passed `deadline_s`."""
        if not self._done.wait(max(0.0, deadline_s - time.monotonic())):
            with self._lock:
                if not self._done.is_set():
                    self._abandoned = True
                    return STUCK
        return self._answer


class Lane:
    """One daemon thread for one card's calls, started with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._current: Job[Any] | None = None
        self._thread: threading.Thread | None = None

    @property
    def stuck(self) -> bool:
        """Whether a call that was given up is still inside the driver."""
        current = self._current
        return current is not None and current.stuck

    def submit(self, work: Callable[[], T], *, undo: Callable[[], object] | None = None) -> Job[T] | Problem:
        """Queue `work` behind what is queued already. At once a Problem while an earlier call is stuck."""
        if self.stuck:
            return STUCK
        job = Job(work, undo)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()
            self._jobs.put(job)
        return job

    def ask(self, work: Callable[[], T], timeout_s: float, *, undo: Callable[[], object] | None = None) -> T | Problem:
        """Run `work` and wait for it at most `timeout_s`."""
        job = self.submit(work, undo=undo)
        return job if isinstance(job, Problem) else job.wait(time.monotonic() + timeout_s)

    def close(self) -> None:
        """Let the thread end after its queue; one stuck in the driver is left to the end of the process."""
        with self._lock:
            if self._thread is not None:
                self._jobs.put(None)
                self._thread = None

    def _serve(self) -> None:
        for job in iter(self._jobs.get, None):
            self._current = job
            job.run()
