"""Virtual time: the client sends, engines step, and nothing in between costs anything."""

from __future__ import annotations

import numpy as np

from sweep.twin.compiled import compiled, inner
from sweep.twin.queues import join, waiting
from sweep.twin.scheduler import end_step, plan_step, used_share
from sweep.twin.state import (
    ARRIVED,
    FIRST_BATCH,
    N_BATCHES,
    N_FINISHED,
    N_RUNNING,
    NEXT_REPLICA,
    REPLICA,
    SENT,
    STATUS,
    WAITING,
    Floats,
    Limits,
    State,
    Work,
)


@compiled
def run(limits: Limits, work: Work, state: State, cost: Floats, offset_s: float) -> bool:
    """Run until every request is answered. False when some can never be: nothing runs, and nothing more arrives.

    A request is sent when it is due and fewer than `in_flight` of those before it are unanswered; it reaches an engine
    `offset_s` later. A step is planned with what has arrived by then; what arrives at that very moment is in.
    """
    n = len(work.prompt)
    # np.int64: for a plain constant numba would compile what it is given to a second time.
    nought: int = np.int64(0)  # type: ignore[assignment]
    sent, arrived = nought, nought
    now_s = -np.inf
    while state.tally[N_FINISHED] < n:
        while sent < n and sent - state.tally[N_FINISHED] < limits.in_flight:
            state.moment_s[sent, SENT] = max(work.arrival_s[sent], now_s)
            state.moment_s[sent, ARRIVED] = state.moment_s[sent, SENT] + offset_s
            sent += 1
        next_s = state.moment_s[arrived, ARRIVED] if arrived < sent else np.inf
        engine = nought - 1
        for r in range(limits.replicas):
            if state.replica[r, N_BATCHES] > 0:
                end_s = state.batch_end_s[r, state.replica[r, FIRST_BATCH]]
                if end_s < next_s:
                    next_s, engine = end_s, r
        if next_s == np.inf:
            return False
        now_s = next_s
        if engine >= 0:
            end_step(limits, work, state, engine)
            _go_on(limits, work, state, engine, now_s, cost)
            continue
        while arrived < sent and state.moment_s[arrived, ARRIVED] <= now_s:
            _receive(limits, work, state, arrived)
            arrived += 1
        for r in range(limits.replicas):
            if state.replica[r, N_BATCHES] == 0:
                _go_on(limits, work, state, r, now_s, cost)
    return True


@inner
def _receive(limits: Limits, work: Work, state: State, q: int) -> None:
    """Give a request to the engine with the least to do, as vLLM's load balancer of data parallel engines (0.32).

    That one knows the engines' queues as of the last 100 ms, this one as they are.
    """
    chosen, least = limits.replicas - 1, np.inf
    for i in range(limits.replicas):
        r = (state.tally[NEXT_REPLICA] + i) % limits.replicas
        queued = waiting(state, r)
        score = float(queued + state.replica[r, N_RUNNING])
        score += queued * 6.0 * max(0.0, used_share(limits, state, r) - 0.5)
        if score < least:
            chosen, least = r, score
    state.tally[NEXT_REPLICA] = (state.tally[NEXT_REPLICA] + 1) % limits.replicas
    state.request[q, REPLICA] = chosen
    state.request[q, STATUS] = WAITING
    join(limits, work, state, chosen, q)


@inner
def _go_on(limits: Limits, work: Work, state: State, r: int, now_s: float, cost: Floats) -> None:
    """Plan steps until `depth` are in flight or nothing more can be planned."""
    while state.replica[r, N_BATCHES] < limits.depth and state.replica[r, N_RUNNING] + waiting(state, r) > 0:
        size, preempted = plan_step(limits, work, state, r, now_s, cost)
        if size == 0 and preempted == 0:
            break
        if size == 0 and state.replica[r, N_BATCHES] > 0:
            break
