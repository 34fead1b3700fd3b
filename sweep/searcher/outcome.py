"""How a trial ended, in the words of the search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sweep.trial import Finished, Flags, TrialStatus


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended, for the search. `value`: the score, lower is better; `violations`: above 0 misses an SLO.

    `front`: the ratios of a study that looks for a front, lower is better. Raises ValueError unless a complete trial
    has a value and, but for a censored one, only a complete one.
    """

    kind: Literal["complete", "censored", "infeasible", "ignored"]
    value: float | None = None
    violations: Mapping[str, float] = field(default_factory=dict)
    front: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.kind != "censored" and (self.kind == "complete") is not (self.value is not None):
            raise ValueError(f"an outcome {self.kind!r} does not go with the value {self.value}")
        if any(math.isnan(value) for value in (self.value, *(self.front or ())) if value is not None):
            raise ValueError("a score that is not a number")
        if any(math.isnan(excess) for excess in self.violations.values()):
            raise ValueError("a violation that is not a number")

    @classmethod
    def of(cls, finished: Finished, slo_names: Sequence[str], *, front: bool) -> Outcome:
        """That of a trial as the plan knows it. One without a verdict on its flags or a score is ignored, and so is one
        that something on the machine disturbed."""
        placed = finished.score is not None and (finished.front is not None or not front)
        if finished.status is TrialStatus.COMPLETE and placed and not finished.disturbed:
            return cls("complete", finished.score, finished.violations, finished.front)
        if (
            finished.status is TrialStatus.CENSORED
            and not finished.disturbed
            and set(slo_names) <= set(finished.violations)
        ):
            return cls("censored", finished.score, finished.violations, finished.front)
        return cls("infeasible" if finished.status is TrialStatus.INFEASIBLE else "ignored")


@dataclass(frozen=True, slots=True)
class Told:
    """What became of trial `number`."""

    number: int
    flags: Flags
    outcome: Outcome
