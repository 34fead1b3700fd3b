"""Critical errors (XID) of the cards, through NVML's event sets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

from sweep.gpu.lane import Lane, Problem
from sweep.gpu.nvml import Card, ask, problem_of
from sweep.gpu.values import XidEvent, device_label

_EVENTS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class _EventSet:
    handle: Any
    refused: tuple[int, ...]  # cards that cannot be watched


class XidWatch:
    """Collects the XIDs of some cards from its making until `close`."""

    def __init__(self, cards: Sequence[Card], lane: Lane, call_timeout_s: float, note: Callable[[str], None]) -> None:
        self._lane, self._call_timeout_s, self._note = lane, call_timeout_s, note
        self._events: _EventSet | None = None
        if not cards:
            return
        opened = lane.ask(lambda: _open(cards), call_timeout_s)
        if isinstance(opened, Problem):
            note(f"XID errors cannot be watched: {opened.text}")
            return
        self._events = opened
        if opened.refused:
            note(f"XID errors cannot be watched on {', '.join(map(device_label, opened.refused))}")

    def poll(self) -> tuple[XidEvent, ...] | None:
        """The XIDs since the call before, without waiting for more; None when there is no telling."""
        events = self._events
        if events is None:
            return None
        answer = self._lane.ask(lambda: _drain(events.handle), self._call_timeout_s)
        if isinstance(answer, Problem):
            self._note(f"XID errors cannot be read: {answer.text}")
            return None
        found, problem = answer
        if problem is not None:
            self._note(f"XID errors cannot be read: {problem.text}")
            return found or None
        return found

    def close(self) -> None:
        """Stop watching; may be called again."""
        events, self._events = self._events, None
        if events is not None:
            self._lane.ask(lambda: _free(events.handle), self._call_timeout_s)


def _open(cards: Sequence[Card]) -> _EventSet | Problem:
    boards = {card.info.index: card.board for card in cards}
    try:
        handle = ask(("nvmlEventSetCreate",))
    except pynvml.NVMLError as error:
        return problem_of(error)
    refused: list[int] = []
    reason = Problem("")
    for index, board in boards.items():
        try:
            ask(("nvmlDeviceRegisterEvents",), board, pynvml.nvmlEventTypeXidCriticalError, handle)
        except pynvml.NVMLError as error:
            refused.append(index)
            reason = problem_of(error)
    if len(refused) == len(boards):
        _free(handle)
        return reason
    return _EventSet(handle, tuple(refused))


def _drain(handle: Any) -> tuple[tuple[XidEvent, ...], Problem | None]:
    """What is there now; and why there may be more that cannot be had."""
    events: list[XidEvent] = []
    while len(events) < _EVENTS_AT_ONCE:
        try:
            event = ask(("nvmlEventSetWait_v2", "nvmlEventSetWait"), handle, 0)
        except pynvml.NVMLError as error:
            done = error.value == pynvml.NVML_ERROR_TIMEOUT
            return tuple(events), None if done else problem_of(error)
        if event.eventType & pynvml.nvmlEventTypeXidCriticalError:
            events.append(XidEvent(time.monotonic(), _index_of(event.device), int(event.eventData)))
    return tuple(events), None


def _free(handle: Any) -> None:
    try:
        ask(("nvmlEventSetFree",), handle)
    except pynvml.NVMLError:
        return  # a driver that no longer answers has nothing to take back


def _index_of(device: Any) -> int | None:
    try:
        return int(ask(("nvmlDeviceGetIndex",), device))
    except pynvml.NVMLError:
        return None
