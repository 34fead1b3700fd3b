"""What was measured, as plain values: one request, one round, one look at the engine, one change of phase."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request of one round. Times are seconds since the round's first scheduled request; None is "not known".

    `itl_ms` holds every gap between two received chunks, so `ttft_ms + sum(itl_ms)` is `e2el_ms`.
    `lag_ms` is the real send minus the scheduled one: what the load client itself was late.
    A failed request has `error` and no latencies.
    """

    round: int
    index: int
    prompt_id: str
    scheduled_s: float | None
    start_s: float | None
    input_tokens: int | None
    output_tokens: int | None
    asked_output_tokens: int | None
    ttft_ms: float | None
    itl_ms: tuple[float, ...]
    e2el_ms: float | None
    error: str | None

    @property
    def lag_ms(self) -> float | None:
        """Milliseconds between the scheduled and the real send."""
        if self.scheduled_s is None or self.start_s is None:
            return None
        return (self.start_s - self.scheduled_s) * 1000.0


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One run of the load client on a trial's server; `round` counts from 0. None is "not known".

    `began_at_s` is when the client began to send, in seconds since the attempt began; `duration_s` is the client's own,
    from there to the last token; `took_s` is the client's whole run, its start-up included. `request_rate_per_s` is the
    planned one, None for all at once. Engine figures are of this round alone, counters as their gain.
    `prefix_cache_reset` says whether the server emptied its prefix cache just before, None when that was not tried.
    `client_cpu_percent` is of one core, the mean while requests were sent and answered. The lags are of real behind
    planned sends. `disturbed` holds the reasons to distrust this round.
    """

    attempt: int
    round: int
    began_at_s: float
    duration_s: float
    took_s: float
    request_rate_per_s: float | None
    prompts: int
    completed: int
    failed: int
    output_tokens: int
    prefix_cache_reset: bool | None = None
    prefix_hit_share: float | None = None
    preemptions: float | None = None
    peak_running: float | None = None
    peak_waiting: float | None = None
    peak_kv_usage_share: float | None = None
    mean_queue_time_ms: float | None = None
    client_cpu_percent: float | None = None
    p99_lag_ms: float | None = None
    max_lag_ms: float | None = None
    p50_ttft_ms: float | None = None
    p95_ttft_ms: float | None = None
    p50_tpot_ms: float | None = None
    p95_tpot_ms: float | None = None
    p50_e2el_ms: float | None = None
    p95_e2el_ms: float | None = None
    disturbed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One reading of the engine's `/metrics`. Counters are totals since its start. `at_s`: seconds since launch."""

    at_s: float
    phase: str
    running: float | None = None
    waiting: float | None = None
    kv_usage_share: float | None = None
    preemptions: float | None = None
    prefix_hits_tokens: float | None = None
    prefix_queries_tokens: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    requests_finished: float | None = None
    queue_time_sum_s: float | None = None
    queue_time_count: float | None = None
    # Steps so far by the upper edge of their tokens, cumulative as Prometheus has it; summed up, not stored.
    steps: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the engine made of the flags, read from the engine itself (`cache_config_info`) or its start-up log."""

    block_size: int | None = None
    gpu_blocks: int | None = None
    kv_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    enable_prefix_caching: bool | None = None
    cache_dtype: str | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None


@dataclass(frozen=True, slots=True)
class EngineSummary:
    """What the engine says of a span of samples. None where the version does not tell or nothing defines it.

    `largest_step_tokens` is the upper edge of the highest bucket of `vllm:iteration_tokens_total` that a step fell
    into, infinite above the last one. vLLM counts a prompt there whole, in the step that ends it. The last four are
    the load client's own view of the same load: requests and their tokens that were in flight at once, at most; the
    longest prompt; all tokens of the load.
    """

    preemptions: float | None = None
    prefix_hit_share: float | None = None
    peak_running: float | None = None
    peak_waiting: float | None = None
    peak_kv_usage_share: float | None = None
    mean_queue_time_ms: float | None = None
    largest_step_tokens: float | None = None
    peak_in_flight: float | None = None
    peak_in_flight_tokens: float | None = None
    longest_prompt_tokens: float | None = None
    load_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a trial. `at_s` is monotonic, since the attempt began; `wall` is Unix time."""

    attempt: int
    at_s: float
    wall_s: float
    kind: str
    phase: str
    detail: str = ""
    failure_class: str | None = None
    line: str | None = None
    exit_code: int | None = None
    retryable: bool | None = None
    advice: str | None = None
