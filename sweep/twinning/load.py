"""The requests a study sends, and the same ones at another rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sweep.errors import UserError
from sweep.records import RequestRecord, RoundRecord
from sweep.twin import Load
from sweep.twin.calibrate import arrivals_per_s
from sweep.workload import Round, arrival_times


@dataclass(frozen=True, slots=True)
class SentRound:
    """One round as it was planned; `request_rate_per_s` None for all at once."""

    load: Load
    request_rate_per_s: float | None


def own_rounds(requests: Sequence[RequestRecord], rounds: Sequence[RoundRecord]) -> tuple[SentRound, ...]:
    """The rounds of one trial: planned sends, and the lengths that were sent and answered, or asked for.

    Left out are requests whose time or lengths are not known. Raises UserError when nothing is left.
    """
    rates = {one.round: one.request_rate_per_s for one in rounds}
    found = []
    for number, group in by_round(requests).items():
        rows = [
            (at, one.input_tokens, output)
            for one in group
            if (at := one.start_s if one.scheduled_s is None else one.scheduled_s) is not None
            and one.input_tokens
            and (output := one.output_tokens or one.asked_output_tokens)
        ]
        if rows:
            times, inputs, outputs = zip(*sorted(rows), strict=True)
            load = Load.of(times, np.array(inputs, np.int64), np.array(outputs, np.int64))
            rate = rates.get(number)
            finite = rate is None and number not in rates and np.isfinite(arrivals_per_s(load))
            found.append(SentRound(load, arrivals_per_s(load) if finite else rate))
    if not found:
        raise UserError("the nearest trial's requests have no lengths or times: there is no load to simulate")
    return tuple(found)


def planned(one: Round) -> Load:
    """A round of a study's load as it is planned."""
    outputs = [one.output_tokens or prompt.output_tokens or 1 for prompt in one.prompts]
    return Load.of(
        np.array(one.arrivals_s) - one.arrivals_s[0],
        np.array([max(prompt.input_tokens, 1) for prompt in one.prompts], np.int64),
        np.array(outputs, np.int64),
    )


def by_round(requests: Sequence[RequestRecord]) -> Mapping[int, list[RequestRecord]]:
    """Requests grouped, rounds ascending."""
    groups: dict[int, list[RequestRecord]] = {}
    for one in sorted(requests, key=lambda one: one.round):
        groups.setdefault(one.round, []).append(one)
    return groups


def at_rate(rounds: Sequence[SentRound], rate_per_s: float, *, burstiness: float, seed: int) -> tuple[SentRound, ...]:
    """The rounds with their own arrivals closer together or farther apart; of rounds sent all at once, with those that
    the load client would have for the seed."""
    found = []
    for place, one in enumerate(rounds):
        if one.request_rate_per_s is None:
            times = arrival_times(len(one.load), request_rate=rate_per_s, burstiness=burstiness, seed=seed + place)
            arrivals = np.array(times) - times[0]
        else:
            arrivals = one.load.arrival_s * (one.request_rate_per_s / rate_per_s)
        found.append(SentRound(replace(one.load, arrival_s=arrivals), rate_per_s))
    return tuple(found)


def in_one(rounds: Sequence[SentRound], *, requests: int, tokens: int) -> Load:
    """Rounds of one rate as one load without a pause, over and over until it has `requests`; no more than `tokens`
    output tokens, but every round once."""
    columns: list[tuple[npt.NDArray[Any], ...]] = []
    count, held, begin_s = 0, 0, 0.0
    while not columns or (count < requests and held < tokens):
        for one in rounds:
            load = one.load
            columns.append((load.arrival_s - load.arrival_s[0] + begin_s, load.input_tokens, load.output_tokens))
            begin_s = float(columns[-1][0][-1]) + 1.0 / (one.request_rate_per_s or 1.0)
            count, held = count + len(load), held + int(load.output_tokens.sum())
    arrivals, inputs, outputs = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    return Load.of(arrivals, inputs, outputs)
