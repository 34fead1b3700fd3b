"""`Gpus`: the NVIDIA devices of this machine. A machine without them is said to be one; nothing raises."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from sweep.gpu import clean, nvml
from sweep.gpu.lane import Job, Lane, Problem
from sweep.gpu.reading import read_card, read_occupancy
from sweep.gpu.values import Cleanliness, DeviceInfo, DeviceMemory, DeviceReading
from sweep.gpu.visible import select_visible
from sweep.gpu.xid import XidWatch

T = TypeVar("T")
_NOTES_LIMIT = 50
_CLOSED = Problem("the GPUs were closed")


class Gpus:
    """An open NVML, or the reason why there is none.

    Construction never raises and takes at most `open_timeout_s`; each later question to the driver takes at
    most `call_timeout_s`, and what stays unanswered is None. Any number may be open at once, from any
    threads; each must be closed (or used as a context manager). Opening again after closing finds devices
    that came or went.
    """

    def __init__(self, *, call_timeout_s: float = 5.0, open_timeout_s: float = 30.0) -> None:
        self._call_timeout_s = call_timeout_s
        self._lock = threading.Lock()
        self._notes: dict[str, None] = {}
        self._unread: dict[str, list[str]] = {}
        self._cards: dict[tuple[int, int | None], nvml.Card] = {}
        self._lanes: dict[int, Lane] = {}
        self._driver, self._xids = Lane("nvml"), Lane("nvml-xid")
        self._open = False
        opened = self._driver.ask(nvml.open_nvml, open_timeout_s, undo=nvml.close_nvml)
        if isinstance(opened, Problem):
            self._note(f"no GPU readings: {opened.text}")
            self._driver.close()
            return
        self._open = True
        self._cards = {(card.info.index, card.info.mig_index): card for card in opened.cards}
        self._lanes = {index: Lane(f"nvml-gpu-{index}") for index, _ in self._cards}
        for note in opened.notes:
            self._note(note)
        self.read()  # so that what cannot be read here is known from the start

    def __enter__(self) -> Gpus:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give NVML back; may be repeated. While a call is stuck NVML stays open: closing would hang too."""
        with self._lock:
            was_open, self._open = self._open, False
        if not was_open:
            return
        others = (self._xids, *self._lanes.values())
        if not any(lane.stuck for lane in others):
            self._driver.ask(nvml.close_nvml, self._call_timeout_s)
        for lane in (self._driver, *others):
            lane.close()

    @property
    def available(self) -> bool:
        """Whether there is at least one device that can be asked."""
        return self._open and bool(self._cards)

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """All devices by index; the instances of a card in MIG mode stand in its place."""
        return tuple(card.info for card in self._cards.values())

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should know so far, one plain line each, in the order it was noticed."""
        with self._lock:
            lines = list(self._notes)
            unread = {what: list(labels) for what, labels in self._unread.items()}
        everywhere = {card.info.label for card in self._cards.values()}
        said = [
            what if set(labels) == everywhere else f"{what} ({', '.join(labels)})" for what, labels in unread.items()
        ]
        if said:
            lines.append(f"not told by this device or driver and left empty: {', '.join(said)}")
        return tuple(lines)

    @property
    def notice(self) -> str | None:
        """All notices in one line; None when there is nothing to say."""
        return "; ".join(self.notices) or None

    def visible(self, value: str | None, *, device_order: str | None = None) -> tuple[DeviceInfo, ...]:
        """The devices behind a value of `CUDA_VISIBLE_DEVICES` (None: unset), in CUDA's order.

        `device_order` is the value of `CUDA_DEVICE_ORDER`, by default this process's. A value that hides or
        misses devices is followed as CUDA follows it, and leaves a notice.
        """
        order = os.environ.get("CUDA_DEVICE_ORDER") if device_order is None else device_order
        chosen, warning = select_visible(value, self.devices, device_order=order)
        if warning is not None and self._cards:
            self._note(warning)
        return chosen

    def read(self, devices: Sequence[DeviceInfo] | None = None) -> tuple[DeviceReading, ...]:
        """One reading of each device (by default of all), in their order. All fields None: no answer."""
        wanted = self.devices if devices is None else tuple(devices)
        readings = []
        for device, found in self._ask_each(wanted, read_card):
            if isinstance(found, Problem):
                self._cannot_read(device, found)
                readings.append(DeviceReading(time.monotonic(), device.index, device.mig_index))
            else:
                self._left_empty(device, found.unread)
                readings.append(found.reading)
        return tuple(readings)

    def baseline(self, devices: Sequence[DeviceInfo] | None = None) -> tuple[DeviceMemory, ...]:
        """Used memory of each device (by default of all), less what compute processes hold at the moment."""
        return clean.resting_memory(self._look(self.devices if devices is None else tuple(devices)))

    def wait_until_clean(
        self,
        devices: Sequence[DeviceInfo],
        baseline: Sequence[DeviceMemory],
        *,
        timeout_s: float,
        own_pids: Collection[int] = (),
        tolerance_gib: float = 0.5,
        poll_s: float = 0.5,
    ) -> Cleanliness:
        """Wait until memory is within `tolerance_gib` of its baseline and no foreign process is there.

        At most `timeout_s` plus one call's limit. `own_pids`, the caller's processes, may stay, and so may the server
        of NVIDIA's MPS while it holds little and no more than a look before. What the driver does not tell is not held
        against a device, a device that does not answer is. No devices: clean.
        """
        wanted = tuple(devices)
        return clean.wait_until_clean(
            lambda: self._look(wanted),
            baseline,
            timeout_s=timeout_s,
            own_pids=own_pids,
            tolerance_gib=tolerance_gib,
            poll_s=poll_s,
        )

    def watch_xids(self, devices: Sequence[DeviceInfo]) -> XidWatch:
        """Collect the critical errors of these devices' cards from now on. Close it before this object."""
        cards = [card for device in devices if (card := self._card(device)) is not None]
        return XidWatch(cards if self._open else [], self._xids, self._call_timeout_s, self._note)

    def _look(self, devices: Iterable[DeviceInfo]) -> clean.Seen:
        seen = self._ask_each(devices, read_occupancy)
        for device, found in seen:
            if isinstance(found, Problem):
                self._cannot_read(device, found)
        return seen

    def _ask_each(
        self, devices: Iterable[DeviceInfo], question: Callable[[nvml.Card], T | Problem]
    ) -> tuple[tuple[DeviceInfo, T | Problem], ...]:
        """Ask all devices at the same time, so that several stuck ones cost one time limit."""
        asked = [(device, self._submit(device, question)) for device in devices]
        deadline_s = time.monotonic() + self._call_timeout_s
        return tuple((device, job if isinstance(job, Problem) else job.wait(deadline_s)) for device, job in asked)

    def _submit(self, device: DeviceInfo, question: Callable[[nvml.Card], T]) -> Job[T] | Problem:
        card = self._card(device)
        if not self._open:
            return _CLOSED
        if card is None:
            return Problem("it was not there when the GPUs were opened")
        return self._lanes[device.index].submit(lambda: question(card))

    def _card(self, device: DeviceInfo) -> nvml.Card | None:
        return self._cards.get((device.index, device.mig_index))

    def _cannot_read(self, device: DeviceInfo, problem: Problem) -> None:
        self._note(f"{device.label} cannot be read: {problem.text}")

    def _left_empty(self, device: DeviceInfo, unread: Iterable[str]) -> None:
        with self._lock:
            for what in unread:
                labels = self._unread.setdefault(what, [])
                if device.label not in labels:
                    labels.append(device.label)

    def _note(self, line: str) -> None:
        with self._lock:
            if len(self._notes) < _NOTES_LIMIT:
                self._notes.setdefault(line)
