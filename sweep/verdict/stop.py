"""When the confirmation may stop: the leader's interval is narrow enough, or the time is out.

**Price of looking.** After every block the interval is computed and compared with the stated width. Such a rule stops
too often where the variance happens to look small, and the interval at the stop holds the truth less often than it
says: at 95 % and six degrees of freedom at the first look in as few as 93 % (Starr, "The performance of a sequential
procedure for the fixed-width interval estimation of the mean", Annals of Mathematical Statistics 37 (1966) 36-50, has
such figures). The mean itself is not distorted, since in the normal model it does not depend on the variance that the
rule looks at; it never looks at how good the leader is. So the error of every interval is taken smaller by
`look_price`, which makes up for the worst case; the test simulates it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from sweep.verdict.values import Verdict

# Points of the score: "better by 10 %, interval 4 to 15".
WIDTH = 0.12
FIRST_LAUNCHES = 3
MOST_LAUNCHES = 12
_PRICE_DF = (2.0, 4.0, 6.0, 9.0, 15.0, 30.0, 100.0)
_PRICE = (0.42, 0.46, 0.52, 0.56, 0.62, 0.78, 1.0)


class Why(StrEnum):
    """Why the confirmation stops, or goes on."""

    NARROW = "the interval is narrow enough"
    TIME = "the time is out"
    LAUNCHES = "the most launches are made"
    NOTHING = "nothing is left to confirm"
    GO_ON = "the interval is still too wide"


@dataclass(frozen=True, slots=True)
class Enough:
    """Whether to stop. `launches_needed` is a forecast, for each configuration, of where the interval is narrow."""

    stop: bool
    why: Why
    width: float | None
    launches_needed: int | None


def enough(
    verdict: Verdict,
    *,
    width: float = WIDTH,
    first: int = FIRST_LAUNCHES,
    most: int = MOST_LAUNCHES,
    time_left_s: float | None = None,
    block_s: float | None = None,
) -> Enough:
    """Whether the launches so far are enough. To be asked after every block; `width` is in points of the score.

    `first` and `most` are launches of each configuration; `block_s` is what one more launch of each would take,
    `time_left_s` what there is. The answer depends on how wide the leader's interval is, never on where it lies.
    """
    leader = verdict.leader
    now = None if leader is None else leader.score.width
    done = verdict.launches if leader is None else min(verdict.launches, leader.launches)
    needed = None if now is None else max(first, math.ceil(done * min(1e4, (now / width) ** 2)))
    if time_left_s is not None and block_s is not None and block_s > time_left_s:
        return Enough(True, Why.TIME, now, needed)
    if leader is None:
        finished = verdict.launches >= first
        return Enough(finished, Why.NOTHING if finished else Why.GO_ON, None, None)
    if done >= first and leader.score.width <= width:
        return Enough(True, Why.NARROW, now, needed)
    # The larger count: launches of the other may fail for ever.
    if max(verdict.launches, leader.launches) >= most:
        return Enough(True, Why.LAUNCHES, now, needed)
    return Enough(False, Why.GO_ON, now, needed)


def look_price(df: float) -> float:
    """The share of the stated error that an interval of so many degrees of freedom may use, where it is looked at again
    and again."""
    return float(np.interp(math.log(max(df, 1.0)), np.log(_PRICE_DF), _PRICE))
