"""What the calibration of a study found, read back from its record: the knee, and the rate that `auto` stands for."""

from __future__ import annotations

import contextlib
from pathlib import Path

from sweep.config import LoadSection
from sweep.errors import HostError
from sweep.fingerprint import Fingerprint
from sweep.knee import Knee, describe, find_knee, rate_at
from sweep.search_space import flags_key
from sweep.store import read_rounds, read_trials
from sweep.trial import Flags, TrialKind, TrialStatus


def stored_knee(folder: Path, baseline: Flags) -> Knee | None:
    """The knee by the calibration of these flags stored in a study's folder; None where there is none to be read."""
    with contextlib.suppress(HostError):  # damaged files are set aside, and said, before anything runs
        for one in reversed(read_trials(folder)):
            same = one.kind is TrialKind.CALIBRATION and flags_key(one.flags) == flags_key(baseline)
            if same and one.status is TrialStatus.COMPLETE:
                return find_knee(read_rounds(folder, one.number))
    return None


def auto_rate(folder: Path, load: LoadSection, baseline: Flags) -> float | None:
    """Requests a second that `load.request_rate: auto` stands for; None where the study says the rate itself, and
    before a calibration.

    Once the baseline was measured, the rate that the study's fingerprint holds stays, whatever a calibration says.
    """
    if load.request_rate != "auto":
        return None
    if _begun(folder):
        with contextlib.suppress(OSError, ValueError, TypeError):
            known = Fingerprint.from_json((folder / "fingerprint.json").read_text()).request_rate_per_s
            if known is not None:
                return known
    knee = stored_knee(folder, baseline)
    return None if knee is None else rate_at(knee, load.knee_share)


def _begun(folder: Path) -> bool:
    try:
        return any(one.number == 0 and one.failure is None for one in read_trials(folder))
    except HostError:  # what is damaged is not the only trial, or soon will not be there
        return True


def calibration_lines(folder: Path, load: LoadSection, baseline: Flags) -> list[str]:
    """What to tell the person of the stored calibration; nothing before there is one."""
    knee = stored_knee(folder, baseline) if load.calibrate else None
    if knee is None:
        return []
    return describe(knee, load.rates, share=load.knee_share if load.request_rate == "auto" else None)
