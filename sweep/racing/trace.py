"""A round as its engine saw it, second by second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from sweep.racing.rounds import Numbers
from sweep.records import EngineSample


@dataclass(frozen=True, slots=True, eq=False)
class LiveTrace:
    """A round as the engine saw it: `at_s` since its start, requests waiting and running, and what the counters gained.

    What a version does not tell is nan.
    """

    at_s: Numbers
    waiting: Numbers
    running: Numbers
    finished: Numbers
    preemptions: Numbers
    tokens: Numbers

    @classmethod
    def of(cls, samples: Sequence[EngineSample], *, started_at_s: float) -> Self:
        """Of `samples` those from `started_at_s` on (the round's start, on their clock); give none of later rounds."""
        rows = [sample for sample in samples if sample.at_s >= started_at_s]
        prompt, generation = _gain([row.prompt_tokens for row in rows]), _gain([row.generation_tokens for row in rows])
        return cls(
            at_s=np.array([row.at_s - started_at_s for row in rows], dtype=np.float64),
            waiting=_values([row.waiting for row in rows]),
            running=_values([row.running for row in rows]),
            finished=_gain([row.requests_finished for row in rows]),
            preemptions=_gain([row.preemptions for row in rows]),
            tokens=prompt + generation,
        )

    def until(self, at_s: float) -> LiveTrace:
        """The part up to that second of the round."""
        keep = self.at_s <= at_s
        columns = (self.waiting, self.running, self.finished, self.preemptions, self.tokens)
        return LiveTrace(self.at_s[keep], *(column[keep] for column in columns))

    def longest_pause_s(self) -> float:
        """The longest time that requests were there and no token was read or written."""
        if len(self.at_s) < 2:
            return 0.0
        moved = np.concatenate([[True], (np.diff(self.tokens) > 0) | ~(self.waiting + self.running > 0)[1:]])
        last_move_s = np.maximum.accumulate(np.where(moved, self.at_s, -np.inf))
        return float(np.max(self.at_s - last_move_s))


def _values(values: Sequence[float | None]) -> Numbers:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _gain(values: Sequence[float | None]) -> Numbers:
    column = _values(values)
    known = column[np.isfinite(column)]
    return column - known[0] if len(known) else column
