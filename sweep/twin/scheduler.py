"""One step of vLLM's scheduler (V1) in virtual time: who computes how many tokens, who is preempted.

As `Scheduler.schedule` and `update_from_output` of vLLM 0.32, and as `AsyncScheduler` with `depth` 2, where the next
step is planned while one computes. Versions differ in what a study can see:

- A prompt alone in the engine is not held to `long-prefill-token-threshold` since 0.32; the adaptive form is as new.
- A prompt is admitted only when blocks for all of it are free (`scheduler-reserve-full-isl`): not yet in 0.10.
- Without chunked prefill a prompt over what is left of the budget stops admission; 0.10 tries those behind it.
- With asynchronous scheduling the token in flight of a preempted request still counts; earlier it was thrown away.
- `watermark` is new; partial prefills were limited in number (`max-num-partial-prefills`) up to 0.19.
"""

from __future__ import annotations

import numpy as np

from sweep.twin.blocks import admit, extend, known_blocks, release, remember
from sweep.twin.compiled import inner
from sweep.twin.queues import leave, rejoin, waiting
from sweep.twin.state import (
    BATCH_COLUMNS,
    BLOCKS,
    CACHED,
    COMPUTED,
    COMPUTED_TOKENS,
    DIGEST,
    EMITS,
    FINISHED,
    FIRST_BATCH,
    HEAD,
    LIFE,
    MEMBER,
    N_BATCHES,
    N_FINISHED,
    N_FREE,
    N_PREEMPTED,
    N_RUNNING,
    N_TRACED,
    PEAK_BLOCKS,
    PEAK_RUNNING,
    PEAK_WAITING,
    PENDING,
    PLANNED,
    PREEMPTIONS,
    PREFIX_HITS,
    PREFIX_QUERIES,
    RUNNING,
    SEATED,
    STATUS,
    STEPS,
    TOKENS,
    WAITING,
    Floats,
    Ints,
    Limits,
    State,
    Work,
)


@inner
def plan_step(limits: Limits, work: Work, state: State, r: int, now_s: float, cost: Floats) -> tuple[int, int]:
    """Plan one step of engine `r`, and put it behind the batches in flight if it computes anything.

    Returns how many requests compute in it and how many were preempted for it. `cost`: see `Costs.array`.
    """
    slot = (state.replica[r, FIRST_BATCH] + state.replica[r, N_BATCHES]) % limits.depth
    state.batch_size[r, slot] = 0
    long_tokens = limits.long_tokens
    eligible = state.replica[r, N_RUNNING] + waiting(state, r)
    if eligible <= 1:
        long_tokens = 0
    elif long_tokens > 0 and limits.long_adaptive:
        long_tokens = max(long_tokens, limits.budget // eligible)
    budget, preempted = _plan_running(limits, work, state, r, slot, long_tokens)
    if preempted == 0:
        _plan_waiting(limits, work, state, r, slot, long_tokens, budget, now_s)
    size = state.batch_size[r, slot]
    if size > 0:
        begin_s = max(now_s, state.device_free_s[r])
        state.device_free_s[r] = begin_s + _close(limits, work, state, r, slot, cost)
        state.batch_end_s[r, slot] = state.device_free_s[r]
        state.replica[r, N_BATCHES] += 1
        state.tally[STEPS] += 1
    return size, preempted


@inner
def _plan_running(limits: Limits, work: Work, state: State, r: int, slot: int, long_tokens: int) -> tuple[int, int]:
    budget, preempted, i = limits.budget, 0, 0
    while i < state.replica[r, N_RUNNING] and budget > 0:
        q = state.running[r, i]
        pending, computed = state.request[q, PENDING], state.request[q, COMPUTED]
        if pending > 0 and computed + 2 - pending >= work.prompt[q] + work.output[q]:
            # The step in flight brings its last token.
            i += 1
            continue
        tokens = state.request[q, TOKENS] + pending - computed
        if 0 < long_tokens < tokens:
            tokens = long_tokens
        tokens = min(tokens, budget, limits.max_len - 1 - computed)
        if tokens <= 0:
            i += 1
            continue
        end = computed + tokens
        # Most tokens fall into a block that is held, and fill none.
        fits = end <= state.request[q, BLOCKS] * limits.block_size and (
            not limits.caching or min(end, state.request[q, TOKENS]) // limits.block_size <= state.request[q, CACHED]
        )
        while not fits:
            fits = extend(limits, work, state, q, end)
            if fits:
                break
            victim = _victim(limits, work, state, r)
            at, restored = _unseat(limits, work, state, r, slot, victim)
            budget += restored
            preempted += 1
            if at < i:
                i -= 1
            if victim == q:
                break
        if not fits:
            break
        state.batch[r, slot, state.batch_size[r, slot], MEMBER] = q
        state.batch_size[r, slot] += 1
        state.request[q, PLANNED] = tokens
        budget -= tokens
        i += 1
    return budget, preempted


@inner
def _plan_waiting(
    limits: Limits, work: Work, state: State, r: int, slot: int, long_tokens: int, budget: int, now_s: float
) -> None:
    while budget > 0 and waiting(state, r) > 0 and state.replica[r, N_RUNNING] < limits.seats:
        q = state.queue[r, state.replica[r, HEAD]]
        hits = known_blocks(limits, work, state, q, r) if limits.caching else 0
        known = hits * limits.block_size
        tokens = state.request[q, TOKENS] - known
        if 0 < long_tokens < tokens:
            tokens = long_tokens
        if not limits.chunked and tokens > budget:
            break
        tokens = min(tokens, budget)
        watermark = limits.watermark_blocks if state.replica[r, N_RUNNING] > 0 else 0
        if not admit(limits, work, state, q, hits, known + tokens, watermark):
            break
        if state.request[q, PREEMPTIONS] == 0:
            state.tally[PREFIX_QUERIES] += state.request[q, TOKENS]
            state.tally[PREFIX_HITS] += known
            state.moment_s[q, SEATED] = now_s
        state.replica[r, HEAD] += 1
        state.running[r, state.replica[r, N_RUNNING]] = q
        state.replica[r, N_RUNNING] += 1
        state.request[q, STATUS] = RUNNING
        state.request[q, COMPUTED] = known
        state.batch[r, slot, state.batch_size[r, slot], MEMBER] = q
        state.batch_size[r, slot] += 1
        state.request[q, PLANNED] = tokens
        budget -= tokens


@inner
def _victim(limits: Limits, work: Work, state: State, r: int) -> int:
    """Who is preempted: the last one running, or the least important, of those the last to arrive."""
    n = state.replica[r, N_RUNNING]
    victim = state.running[r, n - 1]
    if limits.by_priority:
        victim = state.running[r, 0]
        for i in range(1, n):
            q = state.running[r, i]
            if work.priority[q] > work.priority[victim] or (
                work.priority[q] == work.priority[victim] and work.arrival_s[q] > work.arrival_s[victim]
            ):
                victim = q
    return int(victim)


@inner
def _unseat(limits: Limits, work: Work, state: State, r: int, slot: int, victim: int) -> tuple[int, int]:
    """Preempt: blocks back, tokens to be computed anew. Returns its place and what it had of this step's budget."""
    n = state.replica[r, N_RUNNING]
    at = 0
    while state.running[r, at] != victim:
        at += 1
    for i in range(at, n - 1):
        state.running[r, i] = state.running[r, i + 1]
    state.replica[r, N_RUNNING] = n - 1
    restored = state.request[victim, PLANNED]
    if restored > 0:
        place = 0
        while state.batch[r, slot, place, MEMBER] != victim:
            place += 1
        for i in range(place, state.batch_size[r, slot] - 1):
            for column in range(BATCH_COLUMNS):
                state.batch[r, slot, i, column] = state.batch[r, slot, i + 1, column]
        state.batch_size[r, slot] -= 1
        state.request[victim, PLANNED] = 0
    release(limits, work, state, victim)
    state.request[victim, COMPUTED] = 0
    state.request[victim, PENDING] = 0
    state.request[victim, STATUS] = WAITING
    state.request[victim, PREEMPTIONS] += 1
    state.tally[N_PREEMPTED] += 1
    _trace(state.tally, state.trace, victim, np.int64(-1))  # type: ignore[arg-type]
    rejoin(limits, work, state, r, victim)
    return at, restored


@inner
def _close(limits: Limits, work: Work, state: State, r: int, slot: int, cost: Floats) -> float:
    """Make the plan so, and tell what the step costs in seconds."""
    prefill, decoding, context, attention = 0, 0, 0, 0.0
    for i in range(state.batch_size[r, slot]):
        q = state.batch[r, slot, i, MEMBER]
        tokens, before = state.request[q, PLANNED], state.request[q, COMPUTED]
        state.request[q, PLANNED] = 0
        if tokens == 1 and before >= work.prompt[q]:
            decoding += 1
            context += before
        else:
            prefill += tokens
            attention += tokens * (before + tokens / 2.0)
        state.request[q, COMPUTED] = before + tokens
        emits = before + tokens >= state.request[q, TOKENS] + state.request[q, PENDING]
        state.batch[r, slot, i, LIFE] = state.request[q, PREEMPTIONS]
        state.batch[r, slot, i, EMITS] = emits
        if emits and limits.depth > 1:
            state.request[q, PENDING] += 1
        _trace(state.tally, state.trace, q, tokens)
    state.tally[COMPUTED_TOKENS] += prefill + decoding
    state.tally[PEAK_RUNNING] = max(state.tally[PEAK_RUNNING], state.replica[r, N_RUNNING])
    state.tally[PEAK_WAITING] = max(state.tally[PEAK_WAITING], waiting(state, r))
    state.tally[PEAK_BLOCKS] = max(state.tally[PEAK_BLOCKS], limits.blocks - state.replica[r, N_FREE])
    return float(cost[0] + cost[1] * prefill + cost[2] * decoding + cost[3] * context + cost[4] * attention)


@inner
def _trace(count: Ints, trace: Ints, q: int, tokens: int) -> None:
    """Add to the schedule's digest (FNV-1a of step, request and tokens, modulo 2^64) and, if asked for, its trace."""
    value = (count[STEPS] << 40) ^ (q << 20) ^ (tokens + 1)
    count[DIGEST] = (count[DIGEST] ^ value) * 1099511628211
    n = count[N_TRACED]
    if n < len(trace):
        trace[n, 0] = count[STEPS]
        trace[n, 1] = q
        trace[n, 2] = tokens
        count[N_TRACED] = n + 1


@inner
def end_step(limits: Limits, work: Work, state: State, r: int) -> int:
    """The oldest step in flight ends: its tokens are out, requests that have all of theirs leave. Returns how many."""
    slot = state.replica[r, FIRST_BATCH]
    state.replica[r, FIRST_BATCH] = (slot + 1) % limits.depth
    state.replica[r, N_BATCHES] -= 1
    done = 0
    for i in range(state.batch_size[r, slot]):
        if not state.batch[r, slot, i, EMITS]:
            continue
        q = state.batch[r, slot, i, MEMBER]
        produced = state.request[q, TOKENS] - work.prompt[q]
        state.token_s[work.token_at[q] + produced] = state.batch_end_s[r, slot]
        state.request[q, TOKENS] += 1
        # A request preempted meanwhile gets its token all the same.
        if limits.depth > 1 and state.batch[r, slot, i, LIFE] == state.request[q, PREEMPTIONS]:
            state.request[q, PENDING] -= 1
            full = (state.request[q, COMPUTED] - state.request[q, PENDING]) // limits.block_size
            if limits.caching and full > state.request[q, CACHED]:
                remember(limits, work, state, q, full * limits.block_size)
        if produced + 1 >= work.output[q] or state.request[q, TOKENS] >= limits.max_len:
            done += 1
            if state.request[q, STATUS] == RUNNING:
                release(limits, work, state, q)
            else:
                leave(state, r, q)
            state.request[q, STATUS] = FINISHED
    if done > 0:
        _close_ranks(state, r)
        state.tally[N_FINISHED] += done
    return done


@inner
def _close_ranks(state: State, r: int) -> None:
    kept = 0
    for i in range(state.replica[r, N_RUNNING]):
        q = state.running[r, i]
        if state.request[q, STATUS] == RUNNING:
            state.running[r, kept] = q
            kept += 1
    state.replica[r, N_RUNNING] = kept


@inner
def used_share(limits: Limits, state: State, r: int) -> float:
    """Share of the blocks of engine `r` that are held."""
    return float(1.0 - state.replica[r, N_FREE] / limits.blocks)
