"""The completed requests of a load as arrays: what every metric is computed from, whether just measured or stored."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sweep.records import RequestRecord

Numbers = NDArray[np.float64]
Counts = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class RequestColumns:
    """Completed requests (without an error, with a first token), one entry each; NaN is "not known".

    `itl_ms` are the gaps of all of them in one array, None where they were not read; `gap_counts` says how many of them
    each has, `rounds` which round it was sent in, both None where that is not known. `failed` counts the others.
    """

    ttft_ms: Numbers
    e2el_ms: Numbers
    input_tokens: Numbers
    output_tokens: Numbers
    itl_ms: Numbers | None
    failed: int = 0
    gap_counts: Counts | None = None
    rounds: Counts | None = None

    @classmethod
    def of(cls, requests: Sequence[RequestRecord]) -> Self:
        """The columns of `requests`, in their order."""
        done = [request for request in requests if request.error is None and request.ttft_ms is not None]
        return cls(
            ttft_ms=_array([request.ttft_ms for request in done]),
            e2el_ms=_array([request.e2el_ms for request in done]),
            input_tokens=_array([request.input_tokens for request in done]),
            output_tokens=_array([request.output_tokens for request in done]),
            itl_ms=_array([gap for request in done for gap in request.itl_ms]),
            failed=len(requests) - len(done),
            gap_counts=np.array([len(request.itl_ms) for request in done], dtype=np.intp),
            rounds=np.array([request.round for request in done], dtype=np.intp),
        )

    @classmethod
    def pooled(cls, every: Sequence[Self]) -> Self:
        """Those of several loads, one after another; gaps only where all have theirs."""
        if len(every) == 1:
            return every[0]
        gaps = [columns.itl_ms for columns in every if columns.itl_ms is not None]
        counts = [columns.gap_counts for columns in every if columns.gap_counts is not None]
        rounds = [columns.rounds for columns in every if columns.rounds is not None]
        return cls(
            ttft_ms=_join([columns.ttft_ms for columns in every]),
            e2el_ms=_join([columns.e2el_ms for columns in every]),
            input_tokens=_join([columns.input_tokens for columns in every]),
            output_tokens=_join([columns.output_tokens for columns in every]),
            itl_ms=_join(gaps) if len(gaps) == len(every) else None,
            failed=sum(columns.failed for columns in every),
            gap_counts=np.concatenate(counts) if counts and len(counts) == len(every) else None,
            rounds=np.concatenate(rounds) if rounds and len(rounds) == len(every) else None,
        )

    def of_rounds(self, numbers: Collection[int]) -> RequestColumns:
        """Those of some rounds; which the failed ones belong to is not known. Raises ValueError where `rounds` is
        None, or `gap_counts` beside gaps."""
        if self.rounds is None or (self.itl_ms is not None and self.gap_counts is None):
            raise ValueError("which round a request belongs to was not read")
        keep = np.isin(self.rounds, list(numbers))
        counts, gaps = self.gap_counts, self.itl_ms
        return RequestColumns(
            ttft_ms=self.ttft_ms[keep],
            e2el_ms=self.e2el_ms[keep],
            input_tokens=self.input_tokens[keep],
            output_tokens=self.output_tokens[keep],
            itl_ms=None if gaps is None or counts is None else gaps[np.repeat(keep, counts)],
            gap_counts=None if counts is None else counts[keep],
            rounds=self.rounds[keep],
        )

    @property
    def completed(self) -> int:
        """How many they are."""
        return len(self.ttft_ms)

    def tpot_ms(self) -> Numbers:
        """(E2EL - TTFT) / (output tokens - 1); NaN for a request of fewer than two tokens."""
        found = np.full(self.completed, np.nan)
        several = self.output_tokens >= 2
        span_ms = self.e2el_ms[several] - self.ttft_ms[several]
        found[several] = span_ms / (self.output_tokens[several] - 1)
        return found

    def of_request(self, stem: str) -> Numbers:
        """One number a request: `ttft`, `tpot` or `e2el`; NaN where it has none."""
        if stem == "tpot":
            return self.tpot_ms()
        return {"ttft": self.ttft_ms, "e2el": self.e2el_ms}[stem]

    def samples(self, stem: str) -> Numbers:
        """The values that statistics of a latency are made of, all known. Raises ValueError for gaps not read."""
        if stem == "itl":
            if self.itl_ms is None:
                raise ValueError("the gaps between tokens were not read")
            return self.itl_ms
        values = self.of_request(stem)
        known: Numbers = values[~np.isnan(values)]
        return known


def _array(values: Sequence[float | None]) -> Numbers:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _join(columns: Sequence[Numbers]) -> Numbers:
    return np.concatenate(columns) if columns else np.empty(0)
