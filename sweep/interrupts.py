"""Signals that ask a study to end, turned into an exception where that is safe."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

_ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal asked the study to end. Not an Exception: nothing in between may swallow it."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


class Interrupts:
    """SIGINT, SIGTERM and SIGHUP while it is entered: the first raises Stopped, a second one ends the process at once.

    SIGHUP stays ignored where it is ignored already: that is what nohup asks for, and nights are started with it.
    While `held`, Stopped waits for the next `check` or the end of it: raised inside Ray's compiled code it becomes a
    SystemError, and in the middle of Ray's start it leaves half of Ray behind.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._held = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        self._before = {number: signal.getsignal(number) for number in _ASKED}
        if self._before[signal.SIGHUP] is signal.SIG_IGN:
            del self._before[signal.SIGHUP]
        for number in self._before:
            signal.signal(number, self._heed)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def check(self) -> None:
        """Raise Stopped when a signal has come."""
        if self._number is not None:
            raise Stopped(self._number)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """For code in which only `check` may raise. At its end a signal counts for more than any other exception."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self.check()

    def _heed(self, number: int, _frame: FrameType | None) -> None:
        if self._number is not None:
            os._exit(128 + number)
        self._number = number
        if not self._held:
            raise Stopped(number)
