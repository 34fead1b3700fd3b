"""Sampling devices and host beside a load."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sweep.gpu.devices import Gpus
from sweep.gpu.host import HostClock, HostReading
from sweep.gpu.values import DeviceInfo, DeviceReading, XidEvent
from sweep.gpu.xid import XidWatch

_XID_LIMIT = 1000
_STOP_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What was sampled: rows in order of time, host and devices apart.

    `xids` is None when the driver cannot tell of them. `cost_s` is the wall time spent sampling, all samples
    together and an upper bound of the CPU time taken from the load; `cost_max_s` is the longest sample.
    """

    devices: tuple[DeviceReading, ...] = ()
    host: tuple[HostReading, ...] = ()
    xids: tuple[XidEvent, ...] | None = None
    samples: int = 0
    cost_s: float = 0.0
    cost_max_s: float = 0.0

    @property
    def cost_per_sample_s(self) -> float | None:
        return self.cost_s / self.samples if self.samples else None


class TelemetrySampler:
    """A thread that looks at `devices` and the host every `interval_s`, from `start` to `stop`.

    The first sample is taken at the start; a sample that is late makes the next ones skip, never crowd.
    `client_pids` gives the load client's process ids of the moment. At most `max_samples` are kept: when
    they are full every two become one, with the throttle reasons of both, and sampling goes on half as
    often.
    """

    def __init__(
        self,
        gpus: Gpus,
        devices: Sequence[DeviceInfo],
        *,
        interval_s: float = 1.0,
        client_pids: Callable[[], Iterable[int]] | None = None,
        max_samples: int = 7200,
    ) -> None:
        if interval_s <= 0 or max_samples < 2:
            raise ValueError("a sampler needs an interval above 0 and room for two samples")
        self._gpus, self._devices, self._client_pids = gpus, tuple(devices), client_pids
        self._interval_s, self._max_samples = interval_s, max_samples
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._rows: list[tuple[tuple[DeviceReading, ...], HostReading]] = []
        self._xids: list[XidEvent] | None = None
        self._samples, self._cost_s, self._cost_max_s = 0, 0.0, 0.0

    def __enter__(self) -> TelemetrySampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin; once for each sampler."""
        if self._thread is not None:
            raise RuntimeError("a sampler is started once")
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def stop(self) -> Telemetry:
        """End the thread, which may take as long as the limit of one stuck call; may be repeated."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_STOP_LIMIT_S)
        return self.telemetry

    @property
    def telemetry(self) -> Telemetry:
        """What has been sampled so far."""
        with self._lock:
            return Telemetry(
                devices=tuple(reading for readings, _ in self._rows for reading in readings),
                host=tuple(host for _, host in self._rows),
                xids=None if self._xids is None else tuple(self._xids),
                samples=self._samples,
                cost_s=self._cost_s,
                cost_max_s=self._cost_max_s,
            )

    def _run(self) -> None:
        watch = self._gpus.watch_xids(self._devices)
        host = HostClock(self._client_pids)
        due_s = time.monotonic()
        try:
            while not self._ended.wait(max(0.0, due_s - time.monotonic())):
                self._sample(watch, host)
                missed = max(0.0, time.monotonic() - due_s) // self._interval_s
                due_s += (1 + missed) * self._interval_s
            self._note_xids(watch.poll())
        finally:
            watch.close()

    def _sample(self, watch: XidWatch, host: HostClock) -> None:
        start_s = time.perf_counter()
        row = (self._gpus.read(self._devices) if self._devices else (), host.read())
        self._note_xids(watch.poll())
        with self._lock:
            self._rows.append(row)
            if len(self._rows) > self._max_samples:
                self._thin()
            cost_s = time.perf_counter() - start_s
            self._samples += 1
            self._cost_s += cost_s
            self._cost_max_s = max(self._cost_max_s, cost_s)

    def _note_xids(self, events: tuple[XidEvent, ...] | None) -> None:
        if events is None:
            return
        with self._lock:
            self._xids = ((self._xids or []) + list(events))[:_XID_LIMIT]

    def _thin(self) -> None:
        """Two samples become the later one, so that a whole load stays covered in bounded memory."""
        rows = self._rows
        pairs = zip(rows[0::2], rows[1::2], strict=False)
        odd = rows[-1:] if len(rows) % 2 else []
        self._rows = [(_merged(early[0], late[0]), late[1]) for early, late in pairs] + odd
        self._interval_s *= 2


def _merged(early: tuple[DeviceReading, ...], late: tuple[DeviceReading, ...]) -> tuple[DeviceReading, ...]:
    merged = []
    for before, after in zip(early, late, strict=True):
        both = [r for reading in (before, after) for r in reading.throttle_reasons or ()]
        known = before.throttle_reasons is not None or after.throttle_reasons is not None
        merged.append(replace(after, throttle_reasons=tuple(dict.fromkeys(both)) if known else None))
    return tuple(merged)
