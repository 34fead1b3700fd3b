"""What waits at a simulated engine, in the order of its policy: a stretch of one row of `State.queue`."""

from __future__ import annotations

from sweep.twin.compiled import inner
from sweep.twin.state import HEAD, TAIL, Limits, State, Work


@inner
def waiting(state: State, r: int) -> int:
    """How many requests wait at engine `r`."""
    count: int = state.replica[r, TAIL] - state.replica[r, HEAD]
    return count


@inner
def join(limits: Limits, work: Work, state: State, r: int, q: int) -> None:
    """Let a request that has just arrived wait: behind all others, or by (priority, arrival)."""
    if limits.by_priority:
        _insert(work, state, r, q)
    else:
        state.queue[r, state.replica[r, TAIL]] = q
        state.replica[r, TAIL] += 1


@inner
def rejoin(limits: Limits, work: Work, state: State, r: int, q: int) -> None:
    """Let a request that was preempted wait: before all others, or by (priority, arrival)."""
    if limits.by_priority:
        _insert(work, state, r, q)
    else:
        # It was admitted before, so there is room before the head.
        state.replica[r, HEAD] -= 1
        state.queue[r, state.replica[r, HEAD]] = q


@inner
def _insert(work: Work, state: State, r: int, q: int) -> None:
    head, tail = state.replica[r, HEAD], state.replica[r, TAIL]
    place = tail
    while place > head and _before(work, q, state.queue[r, place - 1]):
        place -= 1
    if head > 0:
        for i in range(head - 1, place - 1):
            state.queue[r, i] = state.queue[r, i + 1]
        state.queue[r, place - 1] = q
        state.replica[r, HEAD] = head - 1
    else:
        for i in range(tail, place, -1):
            state.queue[r, i] = state.queue[r, i - 1]
        state.queue[r, place] = q
        state.replica[r, TAIL] = tail + 1


@inner
def _before(work: Work, one: int, other: int) -> bool:
    important, less = work.priority[one], work.priority[other]
    early, late = work.arrival_s[one], work.arrival_s[other]
    return bool(important < less or (important == less and (early < late or (early == late and one < other))))


@inner
def leave(state: State, r: int, q: int) -> None:
    """Take a request out of the queue, wherever it stands."""
    place = state.replica[r, HEAD]
    while state.queue[r, place] != q:
        place += 1
    for i in range(place, state.replica[r, HEAD], -1):
        state.queue[r, i] = state.queue[r, i - 1]
    state.replica[r, HEAD] += 1
