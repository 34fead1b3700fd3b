"""What in the samples of a load spoils its measurement, and what is only worth a remark.

A card that is too hot for one second of a night spoils nothing; one that was held back for a while, or again and
again, does. A machine that holds its cards back in the baseline, too, is as it is: there every trial is judged by what
is usual on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sweep.gpu.values import DISTURBING, DeviceReading, XidEvent, device_label

# A sample is about a second: three in a row are an episode and no glitch, whatever the length of the load.
_LONG_RUN = 3
# Short episodes add up: the slowest twentieth of the time is what a p95 sees.
_SHARE, _FEWEST = 0.05, 2
# On a machine that throttles anyhow: so much more than in its baseline.
_MORE_THAN_USUAL = 0.10
# Errors that a program running on the card brings about: exceptions of its kernels, its page faults, the end of its
# channels. The list is that of NVIDIA's k8s-device-plugin (health.go), less 109, which hardware causes as well.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68})


@dataclass(frozen=True, slots=True)
class Throttling:
    """How long one device was held back for one reason: `samples` of `told`, at most `longest` of them in a row."""

    label: str
    reason: str
    samples: int
    told: int
    longest: int

    @property
    def share(self) -> float:
        return self.samples / self.told

    @property
    def notable(self) -> bool:
        """Long or often enough to move a percentile."""
        return self.longest >= _LONG_RUN or (self.samples >= _FEWEST and self.share >= _SHARE)

    def __str__(self) -> str:
        return f"{self.label}: {self.reason.replace('_', ' ')} for {self.samples} of {self.told} samples"


@dataclass(frozen=True, slots=True)
class Findings:
    """Plain lines: `disturbances` are reasons to distrust a measurement, `remarks` are not."""

    disturbances: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def throttling(readings: Iterable[DeviceReading]) -> tuple[Throttling, ...]:
    """What `readings`, in order of time, tell of heat, power and hardware, by device and reason.

    Samples that do not tell of throttling are not counted. The general hardware slowdown bit is left out beside the
    bit that says why.
    """
    by_device: dict[str, list[frozenset[str]]] = {}
    for reading in readings:
        if reading.throttle_reasons is None:
            continue
        bad = DISTURBING.intersection(reading.throttle_reasons)
        if bad & {"hw_thermal_slowdown", "hw_power_brake"}:
            bad -= {"hw_slowdown"}
        by_device.setdefault(reading.label, []).append(bad)
    return tuple(
        Throttling(
            label, reason, sum(reason in bad for bad in rows), len(rows), _longest(reason in bad for bad in rows)
        )
        for label, rows in sorted(by_device.items())
        for reason in sorted(frozenset().union(*rows))
    )


def usual_throttling(readings: Iterable[DeviceReading]) -> dict[str, float]:
    """Reason -> share of the samples of the device that had most of it: what is usual on a machine, by its baseline.

    Empty for a baseline that was not held back notably.
    """
    usual: dict[str, float] = {}
    for found in throttling(readings):
        if found.notable:
            usual[found.reason] = max(found.share, usual.get(found.reason, 0.0))
    return usual


def judge(
    readings: Sequence[DeviceReading], xids: Iterable[XidEvent] = (), *, usual: Mapping[str, float] | None = None
) -> Findings:
    """The verdict on the samples of a load and the XIDs of its trial; `usual` is that of the baseline.

    A device disturbs when it was held back notably; where the baseline was, too, only by a tenth of the samples more
    than there. XIDs that a program causes are the trial's own, any other disturbs.
    """
    usual = usual or {}
    disturbances: list[str] = []
    remarks: list[str] = []
    found = throttling(readings)
    for one in found:
        before = usual.get(one.reason)
        if before is None and one.notable:
            disturbances.append(str(one))
        elif before is not None and one.share >= before + _MORE_THAN_USUAL:
            disturbances.append(f"{one}, in the baseline for {before:.0%}")
        elif before is not None:
            remarks.append(f"{one}; usual on this machine: in the baseline for {before:.0%}")
    if readings:
        for reason, before in usual.items():
            now = max((one.share for one in found if one.reason == reason), default=0.0)
            if now <= before / 2:
                remarks.append(
                    f"{reason.replace('_', ' ')} for {now:.0%} of the samples, in the baseline for {before:.0%}: "
                    "some of the difference may be the machine's"
                )
    for line, own in _xid_lines(xids):
        if own:
            remarks.append(f"{line}, an error that the program on the card causes: this trial's own")
        else:
            disturbances.append(line)
    return Findings(tuple(disturbances), tuple(remarks))


def _longest(flags: Iterable[bool]) -> int:
    longest = run = 0
    for flag in flags:
        run = run + 1 if flag else 0
        longest = max(longest, run)
    return longest


def _xid_lines(xids: Iterable[XidEvent]) -> list[tuple[str, bool]]:
    """One line for each card and number, and whether a program causes it."""
    counts: dict[tuple[int, int], int] = {}
    for event in xids:
        key = (-1 if event.index is None else event.index, event.xid)
        counts[key] = counts.get(key, 0) + 1
    lines = []
    for (index, xid), count in sorted(counts.items()):
        where = "a GPU" if index < 0 else device_label(index)
        times = f", {count} times" if count > 1 else ""
        lines.append((f"{where}: XID error {xid}{times}", xid in APPLICATION_XIDS))
    return lines
