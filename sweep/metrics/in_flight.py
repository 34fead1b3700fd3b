"""The load client's view of what an engine was asked for at once: an upper bound of what it can have run and held."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sweep.records import EngineSummary, RequestRecord


def with_client_view(summary: EngineSummary, requests: Sequence[RequestRecord]) -> EngineSummary:
    """`summary` with the figures that `requests`, all of a trial's rounds, tell.

    A request is in flight from its send to its last token, with its prompt and its whole reply: a server can neither
    run a request nor hold its tokens outside that time, so unlike a sampled gauge the peaks miss nothing. None where a
    request failed, since nobody knows how long the server was busy with it.
    """
    changes: list[tuple[int, float, int, int]] = []
    longest = total = 0
    for one in requests:
        if one.start_s is None or one.e2el_ms is None or one.input_tokens is None or one.output_tokens is None:
            return summary
        tokens = one.input_tokens + one.output_tokens
        changes.append((one.round, one.start_s, 1, tokens))
        changes.append((one.round, one.start_s + one.e2el_ms / 1000.0, -1, -tokens))
        longest, total = max(longest, one.input_tokens), total + tokens
    if not changes:
        return summary
    running = held = most = most_held = 0
    for _, _, count, tokens in sorted(changes, key=lambda one: (one[0], one[1], -one[2])):
        running, held = running + count, held + tokens
        most, most_held = max(most, running), max(most_held, held)
    return dataclasses.replace(
        summary,
        peak_in_flight=float(most),
        peak_in_flight_tokens=float(most_held),
        longest_prompt_tokens=float(longest),
        load_tokens=float(total),
    )
