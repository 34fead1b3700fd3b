"""What engine, devices and host did during a trial's load: bounded in points, whatever the length of the load."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from sweep.gpu import disturbing
from sweep.gpu.values import device_label
from sweep.records import EngineSample, RoundRecord
from sweep.store import TelemetryRow
from sweep.trial import Phase

MOST_POINTS = 120
_MOST_MARKS = 60
_SHOWN = (Phase.WARMUP, Phase.LOAD)
# What of a row of telemetry a timeline is made of.
TELEMETRY = (
    "attempt",
    "device",
    "mig_device",
    "memory_used_gib",
    "sm_clock_mhz",
    "power_w",
    "temperature_c",
    "throttle_reasons",
    "host_cpu_percent",
    "client_cpu_percent",
)
Indexes = np.ndarray[tuple[int], np.dtype[np.intp]]


class _Of(Enum):
    """What of the readings of a stretch is shown."""

    MOST, LEAST, MEAN = range(3)


@dataclass(frozen=True, slots=True)
class Track:
    """One figure over the timeline's `at_s`; None where nothing was read. `of` says what of each stretch it is."""

    name: str
    unit: str
    of: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Throttle:
    """A device whose clocks were held back. `disturbing`: by heat, power or hardware (see `sweep.gpu.disturbing`)."""

    at_s: float
    device: str
    reasons: tuple[str, ...]
    disturbing: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """The last attempt's warm-up and load. Times are seconds since the attempt began; `at_s` are middles of equal
    stretches. `rounds` are (start, end) of the measured rounds. `throttles_left_out`: marks beyond those kept.
    """

    at_s: tuple[float, ...]
    tracks: tuple[Track, ...]
    rounds: tuple[tuple[float, float], ...]
    throttles: tuple[Throttle, ...]
    throttles_left_out: int = 0


def timeline_of(
    engine: Sequence[EngineSample], telemetry: Sequence[TelemetryRow], rounds: Sequence[RoundRecord]
) -> Timeline | None:
    """The timeline of a load, None where nothing was read while it ran."""
    attempt = max((row.attempt or 0 for row in telemetry), default=0)
    rows = [row for row in telemetry if row.phase in _SHOWN and (row.attempt or 0) == attempt]
    samples = [sample for sample in engine if sample.phase in _SHOWN]
    times = [row.at_s for row in rows] + [sample.at_s for sample in samples]
    if not times:
        return None
    grid = _Grid.over(min(times), max(times), max(len(samples), len({row.at_s for row in rows})))
    devices = [row for row in rows if row.device is not None]
    host = [row for row in rows if row.device is None]
    tracks = (*_of_engine(grid, samples), *_of_devices(grid, devices), *_of_host(grid, host))
    throttles = _throttles(devices)
    return Timeline(
        at_s=grid.middles,
        tracks=tuple(track for track in tracks if any(value is not None for value in track.values)),
        rounds=tuple((one.began_at_s, one.began_at_s + one.duration_s) for one in rounds),
        throttles=tuple(throttles[:_MOST_MARKS]),
        throttles_left_out=max(0, len(throttles) - _MOST_MARKS),
    )


@dataclass(frozen=True, slots=True)
class _Grid:
    start_s: float
    step_s: float
    count: int

    @classmethod
    def over(cls, start_s: float, end_s: float, readings: int) -> _Grid:
        count = max(1, min(MOST_POINTS, readings))
        return cls(start_s, (end_s - start_s) / count or 1.0, count)

    @property
    def middles(self) -> tuple[float, ...]:
        return tuple(self.start_s + (place + 0.5) * self.step_s for place in range(self.count))

    def places(self, at_s: Iterable[float]) -> Indexes:
        """Which stretch each moment lies in."""
        found = ((np.fromiter(at_s, float) - self.start_s) / self.step_s).astype(np.intp)
        return np.minimum(found, self.count - 1)

    def gathered(self, places: Indexes, values: Iterable[float | None], of: _Of) -> tuple[float | None, ...]:
        """One value a stretch, of all that were read in it."""
        read = np.array([math.nan if value is None else value for value in values], float)
        known = np.isfinite(read)
        where, read = places[known], read[known]
        counts = np.bincount(where, minlength=self.count)
        if of is _Of.MEAN:
            result = np.bincount(where, read, self.count) / np.maximum(counts, 1)
        else:
            most = of is _Of.MOST
            result = np.full(self.count, -math.inf if most else math.inf)
            (np.maximum if most else np.minimum).at(result, where, read)
        return tuple(value if count else None for value, count in zip(result.tolist(), counts.tolist(), strict=True))


def _of_engine(grid: _Grid, samples: Sequence[EngineSample]) -> list[Track]:
    first = next((sample.preemptions for sample in samples if sample.preemptions is not None), None)
    places = grid.places(sample.at_s for sample in samples)

    def track(name: str, unit: str, value: Callable[[EngineSample], float | None], of: str = "most") -> Track:
        return Track(name, unit, of, grid.gathered(places, map(value, samples), _Of.MOST))

    return [
        track("running", "requests", lambda one: one.running),
        track("waiting", "requests", lambda one: one.waiting),
        track("KV cache in use", "%", lambda one: None if one.kv_usage_share is None else 100 * one.kv_usage_share),
        track(
            "preemptions",
            "since the first reading",
            lambda one: None if one.preemptions is None or first is None else one.preemptions - first,
            "total",
        ),
    ]


def _of_devices(grid: _Grid, rows: Sequence[TelemetryRow]) -> list[Track]:
    places = grid.places(row.at_s for row in rows)

    def track(name: str, unit: str, what: str, value: Callable[[TelemetryRow], float | None], of: _Of) -> Track:
        return Track(name, unit, what, grid.gathered(places, map(value, rows), of))

    return [
        track("SM clock", "MHz", "slowest device", lambda row: row.sm_clock_mhz, _Of.LEAST),
        track("power", "W", "mean of the devices", lambda row: row.power_w, _Of.MEAN),
        track("temperature", "°C", "hottest device", lambda row: row.temperature_c, _Of.MOST),
        track("device memory", "GiB", "fullest device", lambda row: row.memory_used_gib, _Of.MOST),
    ]


def _of_host(grid: _Grid, rows: Sequence[TelemetryRow]) -> list[Track]:
    places = grid.places(row.at_s for row in rows)
    client = grid.gathered(places, (row.client_cpu_percent for row in rows), _Of.MOST)
    host = grid.gathered(places, (row.host_cpu_percent for row in rows), _Of.MEAN)
    return [Track("load client", "% of a core", "most", client), Track("host CPU", "%", "mean", host)]


def _throttles(rows: Sequence[TelemetryRow]) -> list[Throttle]:
    """Where a device's reasons change to something that holds it back: disturbing ones first, each by time."""
    found: list[Throttle] = []
    last: dict[str, frozenset[str]] = {}
    for row in rows:
        assert row.device is not None
        label = device_label(row.device, row.mig_device)
        reasons = frozenset(row.throttle_reasons or ()) - {"gpu_idle"}
        if reasons and reasons != last.get(label, frozenset()):
            found.append(Throttle(row.at_s, label, tuple(sorted(reasons)), disturbing(reasons)))
        last[label] = reasons
    return sorted(found, key=lambda mark: (not mark.disturbing, mark.at_s))
