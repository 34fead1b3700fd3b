"""A round as columns, and two rounds side by side: the same requests on two servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sweep.metrics import Part, RequestColumns, summarize_parts
from sweep.objective import Objective
from sweep.records import RequestRecord

Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """The completed requests of one round in order of arrival, one entry each.

    `keys` are their places in the round with their prompts; `gap_counts` says how many of `columns.itl_ms` each has.
    `rate` is the request rate, None for all at once.
    """

    keys: tuple[tuple[int, str], ...]
    start_s: Numbers
    columns: RequestColumns
    gap_counts: NDArray[np.intp]
    rate: float | None = None

    @classmethod
    def of(cls, requests: Iterable[RequestRecord], rate: float | None = None) -> Self:
        """The columns of one round's records, in any order."""
        rows = sorted(
            (request for request in requests if request.error is None and request.ttft_ms is not None),
            key=lambda request: request.index,
        )
        starts = [row.scheduled_s if row.start_s is None else row.start_s for row in rows]
        return cls(
            keys=tuple((row.index, row.prompt_id) for row in rows),
            start_s=np.array([np.nan if start is None else start for start in starts], dtype=np.float64),
            columns=RequestColumns.of(rows),
            gap_counts=np.array([len(row.itl_ms) for row in rows], dtype=np.intp),
            rate=rate,
        )

    def __len__(self) -> int:
        return len(self.keys)

    def where(self, mask: Mask) -> Round:
        """The requests of `mask`."""
        columns, gaps = self.columns, self.columns.itl_ms
        return Round(
            keys=tuple(key for key, keep in zip(self.keys, mask.tolist(), strict=True) if keep),
            start_s=self.start_s[mask],
            columns=RequestColumns(
                ttft_ms=columns.ttft_ms[mask],
                e2el_ms=columns.e2el_ms[mask],
                input_tokens=columns.input_tokens[mask],
                output_tokens=columns.output_tokens[mask],
                itl_ms=None if gaps is None else gaps[np.repeat(mask, self.gap_counts)],
            ),
            gap_counts=self.gap_counts[mask],
            rate=self.rate,
        )

    def span_s(self) -> float | None:
        """Seconds from the first send to the last token; None where a time is missing."""
        if not len(self):
            return None
        span_s = float(np.max(self.start_s + self.columns.e2el_ms / 1000.0) - np.min(self.start_s))
        return span_s if span_s > 0 else None


def split(requests: Iterable[RequestRecord], rates: Sequence[float | None] = ()) -> tuple[Round, ...]:
    """The rounds of records that may be of several, by their number, which `rates` goes by."""
    by_round: dict[int, list[RequestRecord]] = {}
    for request in requests:
        by_round.setdefault(request.round, []).append(request)
    return tuple(
        Round.of(by_round[number], rates[number] if number < len(rates) else None) for number in sorted(by_round)
    )


def pair(candidate: Round, incumbent: Round) -> tuple[Round, Round]:
    """Both rounds, cut down to the requests that both completed: same place, same prompt."""
    if candidate.keys == incumbent.keys:
        return candidate, incumbent
    common = set(candidate.keys) & set(incumbent.keys)
    return candidate.where(_holds(candidate, common)), incumbent.where(_holds(incumbent, common))


def measure(rounds: Sequence[Round], objective: Objective) -> dict[str, float | None]:
    """The metrics that the objective needs, over all `rounds` pooled; None where nothing defines one.

    Throughputs count the time from the first send to the last token of each round.
    """
    parts = [Part(part.columns, part.span_s(), part.rate) for part in rounds]
    return summarize_parts(parts, objective.metrics_needed(), slo=objective.limits)


def score(rounds: Sequence[Round], objective: Objective, baseline_metrics: Mapping[str, float | None]) -> float | None:
    """The objective's value over all `rounds` pooled, of the request rates that they have."""
    return objective.value_at(measure(rounds, objective), baseline_metrics, {part.rate for part in rounds})


def _holds(part: Round, keys: set[tuple[int, str]]) -> Mask:
    return np.array([key in keys for key in part.keys], dtype=np.bool_)
