"""The KV cache of one simulated engine: free blocks in order of eviction, and what the prefix cache knows.

As `BlockPool` and `FullAttentionManager` of vLLM 0.32: the block to be taken next stands first in the free list; blocks
that are given back go to its end when the prefix cache knows them (the last of a request first, so that its tail is
evicted before its head) and to its front otherwise; a block that is full is known from the moment its step is planned.
Before about 0.20 all go to the end, which changes nothing but which known blocks survive.
"""

from __future__ import annotations

from sweep.twin.compiled import inner
from sweep.twin.state import (
    BLOCKS,
    CACHED,
    CONTENT,
    FREE_NEXT,
    FREE_PREV,
    N_FREE,
    REFERENCES,
    REPLICA,
    SAME_NEXT,
    SAME_PREV,
    TOKENS,
    Limits,
    State,
    Work,
)


@inner
def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens."""
    return (tokens + block_size - 1) // block_size


@inner
def _link(state: State, r: int, before: int, after: int) -> None:
    state.block[r, before, FREE_NEXT] = after
    state.block[r, after, FREE_PREV] = before


@inner
def _forget(state: State, r: int, block: int) -> None:
    content = state.block[r, block, CONTENT]
    if content < 0:
        return
    before, after = state.block[r, block, SAME_PREV], state.block[r, block, SAME_NEXT]
    if before < 0:
        state.known[r, content, 0] = after
    else:
        state.block[r, before, SAME_NEXT] = after
    if after < 0:
        state.known[r, content, 1] = before
    else:
        state.block[r, after, SAME_PREV] = before
    state.block[r, block, CONTENT] = -1


@inner
def _learn(state: State, r: int, block: int, content: int) -> None:
    last = state.known[r, content, 1]
    state.block[r, block, CONTENT] = content
    state.block[r, block, SAME_PREV] = last
    state.block[r, block, SAME_NEXT] = -1
    if last < 0:
        state.known[r, content, 0] = block
    else:
        state.block[r, last, SAME_NEXT] = block
    state.known[r, content, 1] = block


@inner
def remember(limits: Limits, work: Work, state: State, q: int, tokens: int) -> None:
    """Let the prefix cache know the blocks that the first `tokens` tokens of a request fill."""
    r, first = state.request[q, REPLICA], work.block_at[q]
    full = tokens // limits.block_size
    for i in range(state.request[q, CACHED], full):
        _learn(state, r, state.table[first + i], work.content[first + i])
    if full > state.request[q, CACHED]:
        state.request[q, CACHED] = full


@inner
def _take(work: Work, state: State, q: int, count: int, ends: int) -> None:
    r, first = state.request[q, REPLICA], work.block_at[q]
    for _ in range(count):
        block = state.block[r, ends, FREE_NEXT]
        _link(state, r, ends, state.block[r, block, FREE_NEXT])
        _forget(state, r, block)
        state.block[r, block, REFERENCES] = 1
        state.table[first + state.request[q, BLOCKS]] = block
        state.request[q, BLOCKS] += 1
    state.replica[r, N_FREE] -= count


@inner
def extend(limits: Limits, work: Work, state: State, q: int, tokens: int) -> bool:
    """Blocks for the first `tokens` tokens of a running request. False, and nothing changed, where too few are free."""
    need = blocks_for(tokens, limits.block_size) - state.request[q, BLOCKS]
    if need > state.replica[state.request[q, REPLICA], N_FREE]:
        return False
    if need > 0:
        _take(work, state, q, need, limits.blocks)
    if limits.caching:
        remember(limits, work, state, q, min(tokens, state.request[q, TOKENS]))
    return True


@inner
def known_blocks(limits: Limits, work: Work, state: State, q: int, r: int) -> int:
    """How many blocks from the start of a request the prefix cache knows; its last token is always computed."""
    first = work.block_at[q]
    most = (state.request[q, TOKENS] - 1) // limits.block_size
    hits = 0
    while hits < most and state.known[r, work.content[first + hits], 0] >= 0:
        hits += 1
    return hits


@inner
def admit(limits: Limits, work: Work, state: State, q: int, hits: int, tokens: int, watermark: int) -> bool:
    """Blocks for the first `tokens` tokens of a waiting request, the first `hits` of them shared with the cache.

    False, and nothing changed, where too few are free - for all its tokens, with `whole_prompt`.
    """
    r, first = state.request[q, REPLICA], work.block_at[q]
    revived = 0
    for i in range(hits):
        revived += state.block[r, state.known[r, work.content[first + i], 0], REFERENCES] == 0
    free = state.replica[r, N_FREE] - revived - watermark
    if limits.whole_prompt and blocks_for(state.request[q, TOKENS], limits.block_size) - hits > free:
        return False
    need = blocks_for(tokens, limits.block_size) - hits
    if need > free:
        return False
    for i in range(hits):
        block = state.known[r, work.content[first + i], 0]
        if state.block[r, block, REFERENCES] == 0:
            _link(state, r, state.block[r, block, FREE_PREV], state.block[r, block, FREE_NEXT])
        state.block[r, block, REFERENCES] += 1
        state.table[first + i] = block
    state.replica[r, N_FREE] -= revived
    state.request[q, BLOCKS] = hits
    state.request[q, CACHED] = hits
    _take(work, state, q, need, limits.blocks)
    if limits.caching:
        remember(limits, work, state, q, min(tokens, state.request[q, TOKENS]))
    return True


@inner
def release(limits: Limits, work: Work, state: State, q: int) -> None:
    """Give a request's blocks back, its last one first."""
    r, first = state.request[q, REPLICA], work.block_at[q]
    front, end = limits.blocks, limits.blocks + 1
    for i in range(state.request[q, BLOCKS] - 1, -1, -1):
        block = state.table[first + i]
        state.block[r, block, REFERENCES] -= 1
        if state.block[r, block, REFERENCES] > 0:
            continue
        state.replica[r, N_FREE] += 1
        if state.block[r, block, CONTENT] >= 0:
            last = state.block[r, end, FREE_PREV]
            _link(state, r, last, block)
            _link(state, r, block, end)
        else:
            # Given back together they stand in the order given: each goes behind the one before it.
            following = state.block[r, front, FREE_NEXT]
            _link(state, r, front, block)
            _link(state, r, block, following)
            front = block
    state.request[q, BLOCKS] = 0
    state.request[q, CACHED] = 0
