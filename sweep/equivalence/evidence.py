"""What a measured trial proves of its own flags: how much of each limit the load ever used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sweep.trial import SEARCHING, Finished, Flags, TrialStatus

SEQS, BATCHED, UTILIZATION = "max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization"
# A gauge read once a second misses peaks: what it saw is taken for this much less than what there was.
MARGIN = 1.25
# A request holds whole blocks of KV cache; the largest that vLLM chooses by itself.
_BLOCK_TOKENS = 128
# Below it the prefix cache has no say in how long anything takes.
_NO_HITS = 0.005
# Flags with which a step, or what a request holds, is not what the counters say.
_OPAQUE = frozenset(
    {
        *("speculative-config", "speculative-model", "long-prefill-token-threshold", "max-num-partial-prefills"),
        *("max-long-partial-prefills", "scheduling-policy", "scheduler-cls", "kv-transfer-config", "cpu-offload-gb"),
        *("kv-offloading-size", "num-gpu-blocks-override", "kv-cache-memory-bytes", "enable-dbo"),
    }
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The most that trial `number` used, with the safety margin in it; None where the counters do not prove any bound.

    `running` requests at once, `step_tokens` of one scheduler step, `held_tokens` of KV cache. `seqs`, `batched` and
    `capacity_tokens` are the limits it had. `score` is the objective, lower is better. `cached`: whether the prefix
    cache had hits, so that what it forgets may matter; `load_tokens` is what went through it.
    """

    number: int
    flags: Flags
    score: float
    feasible: bool
    seqs: float | None
    batched: float | None
    capacity_tokens: float | None
    running: float | None
    step_tokens: float | None
    held_tokens: float | None
    cached: bool
    load_tokens: float | None


def evidence_of(finished: Finished, fixed: Mapping[str, object]) -> Evidence | None:
    """That of a trial of the search, measured to its end and undisturbed; None for any other, and where a request was
    preempted, an engine tells nothing, or one of the `fixed` flags makes its counters say something else.
    """
    engine, config = finished.engine, finished.engine_config
    if (
        finished.kind not in SEARCHING
        or finished.status is not TrialStatus.COMPLETE
        or finished.disturbed
        or finished.score is None
        or finished.score <= 0
        or engine is None
        or config is None
        or engine.preemptions != 0
        or any(fixed.get(name) is not None or finished.flags.get(name) is not None for name in _OPAQUE)
    ):
        return None
    return Evidence(
        number=finished.number,
        flags=finished.flags,
        score=finished.score,
        feasible=all(excess <= 0 for excess in finished.violations.values()),
        seqs=_limit(finished.flags, fixed, SEQS, config.max_num_seqs),
        batched=_limit(finished.flags, fixed, BATCHED, config.max_num_batched_tokens),
        capacity_tokens=config.kv_tokens,
        running=_running(engine.peak_running, engine.peak_in_flight),
        step_tokens=_step(engine.largest_step_tokens, engine.longest_prompt_tokens),
        held_tokens=_held(
            engine.peak_kv_usage_share,
            config.kv_tokens,
            engine.peak_in_flight,
            engine.peak_in_flight_tokens,
            config.block_size or _BLOCK_TOKENS,
        ),
        cached=engine.prefix_hit_share is not None and engine.prefix_hit_share > _NO_HITS,
        load_tokens=engine.load_tokens,
    )


def _limit(flags: Flags, fixed: Mapping[str, object], name: str, resolved: int | None) -> float | None:
    """The limit in force: the flag's own value, else what the engine made of its absence."""
    value = flags.get(name)
    found = number(fixed.get(name) if value is None else value)
    return resolved if found is None else found


def number(value: object) -> float | None:
    """A flag's value as a number; None for any other."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _running(sampled: float | None, in_flight: float | None) -> float | None:
    """No more can have run than were in flight, which is exact; the gauge with its margin may be the closer bound."""
    bounds = [] if sampled is None else [math.ceil(sampled * MARGIN) + 1.0]
    return min([*bounds, *([] if in_flight is None else [in_flight])], default=None)


def _step(largest: float | None, longest_prompt: float | None) -> float | None:
    """A step filled to its limit ends all its prompts but the last, which is at most the longest: what is counted there
    is then the limit less the longest prompt, or more. So a limit above the largest count and the longest prompt
    together was never reached."""
    if largest is None or longest_prompt is None or math.isinf(largest):
        return None
    return largest + longest_prompt


def _held(
    share: float | None, capacity: float | None, in_flight: float | None, tokens: float | None, block_tokens: int
) -> float | None:
    bounds = [] if share is None or capacity is None else [share * capacity * MARGIN]
    if in_flight is not None and tokens is not None:
        bounds.append(tokens + in_flight * block_tokens)
    return min(bounds, default=None)
