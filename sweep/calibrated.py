"""What the calibration of a study found, read back from its record: the knee, and the rate that `auto` stands for."""

from __future__ import annotations

import contextlib
from pathlib import Path

from sweep.config import LoadSection
from sweep.errors import HostError
from sweep.fingerprint import Fingerprint
from sweep.knee import Knee, describe, find_knee, rate_at
from sweep.store import read_rounds, read_trials
from sweep.trial import TrialKind, TrialStatus


def stored_knee(folder: Path) -> Knee | None:
    """The knee by the last calibration stored in a study's folder; None where there is none to be read."""
    with contextlib.suppress(HostError):  # damaged files are set aside, and said, before anything runs
        trials = [one for one in read_trials(folder) if one.kind is TrialKind.CALIBRATION]
        whole = [one.number for one in trials if one.status is TrialStatus.COMPLETE]
        return find_knee(read_rounds(folder, whole[-1])) if whole else None
    return None


def auto_rate(folder: Path, load: LoadSection) -> float | None:
    """Requests a second that `load.request_rate: auto` stands for; None where the study says the rate itself, and
    before a calibration.

    What the study's fingerprint holds goes before the stored calibration: once trials were measured at a rate it stays.
    """
    if load.request_rate != "auto":
        return None
    if any((folder / "trials").glob("*.parquet")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            known = Fingerprint.from_json((folder / "fingerprint.json").read_text()).request_rate_per_s
            if known is not None:
                return known
    knee = stored_knee(folder)
    return None if knee is None else rate_at(knee, load.knee_share)


def calibration_lines(folder: Path, load: LoadSection) -> list[str]:
    """What to tell the person of the stored calibration; nothing before there is one."""
    knee = stored_knee(folder) if load.calibrate else None
    if knee is None:
        return []
    return describe(knee, load.rates, share=load.knee_share if load.request_rate == "auto" else None)
