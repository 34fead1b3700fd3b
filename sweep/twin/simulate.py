"""Requests, settings and costs in; what each request would have seen out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sweep.metrics import EngineSummary
from sweep.records import RequestRecord
from sweep.twin.clock import run
from sweep.twin.state import (
    ARRIVED,
    COMPUTED_TOKENS,
    DIGEST,
    N_PREEMPTED,
    N_TRACED,
    PEAK_BLOCKS,
    PEAK_RUNNING,
    PEAK_WAITING,
    PREEMPTIONS,
    PREFIX_HITS,
    PREFIX_QUERIES,
    REPLICA,
    SEATED,
    SENT,
    STEPS,
    Limits,
    State,
    Work,
    fresh_state,
)
from sweep.twin.values import Costs, Engine, Floats, Ints, Load, TwinError

_NO_LIMIT = 1 << 40


@dataclass(frozen=True, slots=True)
class SimulatedRequest(RequestRecord):
    """A request that nobody sent: the same fields as a measured one, and never to be taken for it."""

    @property
    def simulated(self) -> bool:
        """Always true."""
        return True


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulated load came to, one entry a request in order of the load; times in seconds.

    `sent_s` is later than the arrival where the client had to wait. `token_s` holds when each output token came, all
    requests one after another, those of request i from `token_at[i]` to `token_at[i + 1]`. `schedule` is equal for two
    simulations of a load whose engines did the same step by step. `trace`: see `simulate`.
    """

    load: Load
    sent_s: Floats
    queued_s: Floats
    token_s: Floats
    token_at: Ints
    preemptions: Ints
    replica: Ints
    steps: int
    computed_tokens: int
    engine: EngineSummary
    schedule: int
    trace: Ints

    @property
    def ttft_s(self) -> Floats:
        """Time to the first token."""
        waited: Floats = self.token_s[self.token_at[:-1]] - self.sent_s
        return waited

    @property
    def e2el_s(self) -> Floats:
        """Time to the last token."""
        waited: Floats = self.token_s[self.token_at[1:] - 1] - self.sent_s
        return waited

    @property
    def tpot_s(self) -> Floats:
        """Time per output token after the first; NaN for requests of one token."""
        gaps = self.load.output_tokens - 1.0
        whole = self.e2el_s - self.ttft_s
        each: Floats = np.divide(whole, gaps, out=np.full(len(gaps), np.nan), where=gaps > 0)
        return each

    @property
    def itl_s(self) -> Floats:
        """Gaps between tokens, of all requests."""
        gaps = np.diff(self.token_s)
        inside = np.ones(len(gaps), bool)
        inside[self.token_at[1:-1] - 1] = False
        found: Floats = gaps[inside]
        return found

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last token."""
        return float(self.token_s.max() - self.load.arrival_s[0])

    def records(self, round_number: int = 0) -> tuple[SimulatedRequest, ...]:
        """As rows like those of a measured round, each marked `simulated`."""
        rows = []
        ttft_ms, e2el_ms = self.ttft_s * 1000.0, self.e2el_s * 1000.0
        for i in range(len(self.load)):
            tokens_ms = self.token_s[self.token_at[i] : self.token_at[i + 1]] * 1000.0
            output = int(self.load.output_tokens[i])
            rows.append(
                SimulatedRequest(
                    round=round_number,
                    index=i,
                    prompt_id=f"simulated-{i}",
                    scheduled_s=float(self.load.arrival_s[i]),
                    start_s=float(self.sent_s[i]),
                    input_tokens=int(self.load.input_tokens[i]),
                    output_tokens=output,
                    asked_output_tokens=output,
                    ttft_ms=float(ttft_ms[i]),
                    itl_ms=tuple(np.diff(tokens_ms).tolist()),
                    e2el_ms=float(e2el_ms[i]),
                    error=None,
                )
            )
        return tuple(rows)


def simulate(
    load: Load, engine: Engine, costs: Costs, *, max_concurrency: int | None = None, traced_rows: int = 0
) -> Simulation:
    """Run `load` on `engine`. `max_concurrency`: the client's cap on unanswered requests.

    `traced_rows` > 0 keeps that many first rows of who computed in each step: (step, request, tokens), and tokens -1
    for a preemption on the way to the step. Raises TwinError for an empty load, and where some request can never be
    answered.
    """
    if not len(load):
        raise TwinError("no requests to simulate")
    limits, work = _limits(load, engine, max_concurrency), _work(load, engine)
    _refuse_impossible(load, limits)
    state = fresh_state(limits, work, traced_rows)
    values = costs.array()
    if not run(limits, work, state, values[:5], float(values[5])):
        raise TwinError("some requests can never be scheduled: raise max-num-batched-tokens or the KV cache")
    return _result(load, engine, limits, work, state)


def _limits(load: Load, engine: Engine, max_concurrency: int | None) -> Limits:
    total = load.input_tokens + load.output_tokens
    # With a block for every token there is, nobody is preempted and nothing evicted: more makes no difference.
    needed = int(np.sum(-(-total // engine.block_size))) or 1
    blocks = needed if engine.kv_blocks is None else engine.kv_blocks
    watermark = int(engine.watermark_share * (blocks + 1))
    if watermark == 0:
        blocks = min(blocks, needed)
    return Limits(
        seats=engine.max_num_seqs,
        budget=engine.max_num_batched_tokens,
        blocks=blocks,
        block_size=engine.block_size,
        chunked=engine.chunked_prefill,
        long_tokens=engine.long_prefill_tokens,
        long_adaptive=engine.long_prefill_adaptive,
        by_priority=engine.by_priority,
        caching=engine.prefix_caching,
        whole_prompt=engine.whole_prompt,
        watermark_blocks=watermark,
        depth=2 if engine.asynchronous else 1,
        max_len=engine.max_model_len or _NO_LIMIT,
        replicas=engine.replicas,
        in_flight=max_concurrency or _NO_LIMIT,
    )


def _work(load: Load, engine: Engine) -> Work:
    size = engine.block_size
    held = -(-(load.input_tokens + load.output_tokens) // size)
    block_at = np.concatenate(([0], np.cumsum(held)))
    content = np.arange(int(block_at[-1]), dtype=np.int64)
    if engine.prefix_caching:
        # The first request of a group that has a block names its content for all.
        named: dict[tuple[int, int], int] = {}
        for i in np.flatnonzero(load.prefix_group >= 0).tolist():
            group = int(load.prefix_group[i])
            shared = int(min(load.prefix_tokens[i], load.input_tokens[i])) // size
            for block in range(shared):
                place = int(block_at[i]) + block
                content[place] = named.setdefault((group, block), place)
    token_at = np.concatenate(([0], np.cumsum(load.output_tokens)))
    return Work(
        arrival_s=load.arrival_s,
        prompt=load.input_tokens,
        output=load.output_tokens,
        priority=load.priority,
        block_at=block_at.astype(np.int64),
        token_at=token_at.astype(np.int64),
        content=content,
    )


def _refuse_impossible(load: Load, limits: Limits) -> None:
    longest = int((load.input_tokens + load.output_tokens).max())
    if -(-(longest - 1) // limits.block_size) > limits.blocks:
        raise TwinError(
            f"a request of {longest:,} tokens does not fit into a KV cache of {limits.blocks * limits.block_size:,}"
        )
    if longest > limits.max_len:
        raise TwinError(f"a request of {longest:,} tokens is longer than max-model-len {limits.max_len:,}")


def _result(load: Load, engine: Engine, limits: Limits, work: Work, state: State) -> Simulation:
    count, moment = state.tally, state.moment_s
    queries = int(count[PREFIX_QUERIES])
    waited = moment[:, SEATED] - moment[:, ARRIVED]
    summary = EngineSummary(
        preemptions=float(count[N_PREEMPTED]),
        prefix_hit_share=int(count[PREFIX_HITS]) / queries if limits.caching and queries else None,
        peak_running=float(count[PEAK_RUNNING]),
        peak_waiting=float(count[PEAK_WAITING]),
        peak_kv_usage_share=None if engine.kv_blocks is None else int(count[PEAK_BLOCKS]) / engine.kv_blocks,
        mean_queue_time_ms=float(waited.mean()) * 1000.0,
    )
    return Simulation(
        load=load,
        sent_s=moment[:, SENT],
        queued_s=waited,
        token_s=state.token_s,
        token_at=work.token_at,
        preemptions=state.request[:, PREEMPTIONS],
        replica=state.request[:, REPLICA],
        steps=int(count[STEPS]),
        computed_tokens=int(count[COMPUTED_TOKENS]),
        engine=summary,
        schedule=int(count[DIGEST]),
        trace=state.trace[: int(count[N_TRACED])],
    )
