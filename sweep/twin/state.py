"""The state of simulated engines as a few arrays, for compiled code: constants name their columns.

`R` replicas, `N` requests in order of arrival, `B` blocks of KV cache a replica, `S` seats (`max-num-seqs`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Columns of State.request. PENDING: tokens that a step in flight will bring (asynchronous scheduling).
# BLOCKS: blocks held; CACHED: how many of them are known to the prefix cache. PLANNED: tokens in the step being made.
TOKENS, COMPUTED, PENDING, BLOCKS, CACHED, STATUS, PREEMPTIONS, REPLICA, PLANNED = range(9)
REQUEST_COLUMNS = 9
# Values of STATUS.
ABSENT, WAITING, RUNNING, FINISHED = range(4)

# Columns of State.replica. [HEAD, TAIL) is what waits, in State.queue; the batches in flight are a ring.
N_RUNNING, HEAD, TAIL, N_FREE, FIRST_BATCH, N_BATCHES = range(6)
REPLICA_COLUMNS = 6

# Columns of State.block: neighbours in the free list and among blocks of one content, references, content (-1: none).
# Blocks B and B + 1 are the ends of the free list.
FREE_NEXT, FREE_PREV, REFERENCES, CONTENT, SAME_NEXT, SAME_PREV = range(6)
BLOCK_COLUMNS = 6

# Columns of State.batch, one row a request of a step. LIFE: its PREEMPTIONS when the step was made.
MEMBER, LIFE, EMITS = range(3)
BATCH_COLUMNS = 3

# Columns of State.moment. SENT: by the client. ARRIVED: at the engine. SEATED: first scheduled.
SENT, ARRIVED, SEATED = range(3)
MOMENT_COLUMNS = 3

# Entries of State.tally. DIGEST: of the whole schedule.
(
    STEPS,
    N_PREEMPTED,
    PEAK_RUNNING,
    PEAK_WAITING,
    PEAK_BLOCKS,
    PREFIX_HITS,
    PREFIX_QUERIES,
    N_TRACED,
    NEXT_REPLICA,
    N_FINISHED,
    COMPUTED_TOKENS,
    DIGEST,
) = range(12)
COUNTS = 12


class Limits(NamedTuple):
    """What bounds the engine and the client; see `Engine` for the meaning. `depth`: steps planned ahead, 1 or 2."""

    seats: int
    budget: int
    blocks: int
    block_size: int
    chunked: bool
    long_tokens: int
    long_adaptive: bool
    by_priority: bool
    caching: bool
    whole_prompt: bool
    watermark_blocks: int
    depth: int
    max_len: int
    replicas: int
    in_flight: int


class Work(NamedTuple):
    """The requests, and where each one's blocks (in State.table and `content`) and tokens (State.token_s) begin."""

    arrival_s: Floats
    prompt: Ints
    output: Ints
    priority: Ints
    block_at: Ints
    token_at: Ints
    content: Ints


class State(NamedTuple):
    """Everything that changes. `trace` rows: step, request, tokens (-1: preempted); no rows: nothing is traced."""

    request: Ints
    replica: Ints
    block: Ints
    known: Ints
    table: Ints
    running: Ints
    queue: Ints
    batch: Ints
    batch_size: Ints
    batch_end_s: Floats
    device_free_s: Floats
    moment_s: Floats
    token_s: Floats
    tally: Ints
    trace: Ints


def fresh_state(limits: Limits, work: Work, traced_rows: int) -> State:
    """Engines that have just started, and nothing sent yet."""
    n, replicas, blocks = len(work.prompt), limits.replicas, limits.blocks
    request = np.zeros((n, REQUEST_COLUMNS), np.int64)
    request[:, TOKENS] = work.prompt
    replica = np.zeros((replicas, REPLICA_COLUMNS), np.int64)
    replica[:, N_FREE] = blocks
    block = np.zeros((replicas, blocks + 2, BLOCK_COLUMNS), np.int64)
    # The free list in order of block: B, 0, 1, ..., B - 1, B + 1.
    ring = np.concatenate(([blocks], np.arange(blocks), [blocks + 1]))
    block[:, ring[:-1], FREE_NEXT] = ring[1:]
    block[:, ring[1:], FREE_PREV] = ring[:-1]
    block[:, :, CONTENT] = -1
    contents = int(work.content.max(initial=-1)) + 1 if limits.caching else 0
    seats = min(limits.seats, n)
    return State(
        request=request,
        replica=replica,
        block=block,
        known=np.full((replicas, contents, 2), -1, np.int64),
        table=np.zeros(int(work.block_at[-1]), np.int64),
        running=np.zeros((replicas, seats), np.int64),
        queue=np.zeros((replicas, n), np.int64),
        batch=np.zeros((replicas, limits.depth, seats, BATCH_COLUMNS), np.int64),
        batch_size=np.zeros((replicas, limits.depth), np.int64),
        batch_end_s=np.zeros((replicas, limits.depth)),
        device_free_s=np.zeros(replicas),
        moment_s=np.full((n, MOMENT_COLUMNS), np.nan),
        token_s=np.full(int(work.token_at[-1]), np.nan),
        tally=np.zeros(COUNTS, np.int64),
        trace=np.zeros((traced_rows, 3), np.int64),
    )
