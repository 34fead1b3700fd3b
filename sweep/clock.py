"""The end of a study's time: how much is left, and how long a trial may go on after it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta

# A trial is planned to take as long as the slowest of the last few, and this much more.
MARGIN = 1.1
# A trial that still runs so long after the end of the time is cut: this, or this share of a short time.
_GRACE_S, _GRACE_SHARE = 30.0, 0.02


def grace_of(time_left_s: float) -> float:
    """How long after the end of a time a trial that has begun may go on, in seconds."""
    return min(_GRACE_S, _GRACE_SHARE * time_left_s)


def deadline_clock(budget_s: float | None, started: float | None = None) -> Callable[[], float]:
    """Seconds left of a budget that began at monotonic time `started` (default: now); infinite without a budget."""
    if budget_s is None:
        return lambda: float("inf")
    begin = time.monotonic() if started is None else started
    return lambda: begin + budget_s - time.monotonic()


def describe_end(left_s: float, minimum_s: float, grace_s: float) -> str | None:
    """What the end of the time means, in one line; None where there is no end. `minimum_s`: the shortest load."""
    if left_s == float("inf"):
        return None
    ends = datetime.now().astimezone() + timedelta(seconds=left_s)
    shortest = f" (a load takes {minimum_s:.0f} s or more)" if minimum_s >= 1 else ""
    return (
        f"the study ends at {ends:%H:%M:%S}: no trial starts that would end later{shortest}; one that still runs "
        f"{grace_s:.0f} s after is cut, and measured when the same command is typed again"
    )


def why_no_time(left_s: float, expected_s: float | None, minimum_s: float) -> str | None:
    """Why no further trial can end in the time left; None when one can. `expected_s`: how long one takes, if known."""
    if expected_s is None and minimum_s > left_s > 0:
        return f"the time left, {left_s:.0f} s, is shorter than the load of one trial, {minimum_s:.0f} s"
    if left_s <= 0 or (expected_s is not None and expected_s * MARGIN > left_s):
        return "the time left is shorter than a trial"
    return None
