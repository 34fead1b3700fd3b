"""Trials in a few words, for every view."""

from __future__ import annotations

from sweep.trial import Finished, Flags, TrialKind, TrialStatus


def flags_text(flags: Flags) -> str:
    """Flags in a few words: `max-num-seqs=64 block-size=(vLLM)`."""
    return " ".join(f"{name}={'(vLLM)' if value is None else value}" for name, value in flags.items())


def score_text(finished: Finished) -> str:
    """How a trial ended, in a few words."""
    if finished.status is TrialStatus.CENSORED:
        return "stopped early" if finished.score is None else f"stopped early, score {finished.score:.3f} so far"
    if finished.status is not TrialStatus.COMPLETE:
        cause = (
            f"{finished.failure_class}: {finished.failure_line}" if finished.failure_line else finished.failure_class
        )
        return f"{finished.status} ({cause})"
    if finished.score is None and finished.kind in (TrialKind.CALIBRATION, TrialKind.CONFIRM, TrialKind.SOAK):
        return "measured"  # there is nothing to compare it with, or not yet
    score = "no score: a metric is missing" if finished.score is None else f"score {finished.score:.3f}"
    broken = [name for name, excess in finished.violations.items() if excess > 0]
    return score + (f", breaks the SLO on {', '.join(broken)}" if broken else "")


def duration_text(seconds: float) -> str:
    """`3 h 05 min`, `2 min 05 s`, `9 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
