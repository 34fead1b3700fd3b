"""The engine's own view: `/metrics`, `cache_config_info`, and the start-up log where a version has only that.

Names are those of vLLM 0.10.1 to 0.32 (`vllm/v1/metrics/loggers.py`). Values are added up over the engines of a data
parallel server; the share of KV cache in use is that of the fullest one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from sweep.records import EngineConfig, EngineSample, EngineSummary

T = TypeVar("T")

# Field of EngineSample -> names, the preferred one first. 0.10.1 exposes some values under two names at once.
_NAMES = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage_share": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "preemptions": ("vllm:num_preemptions_total",),
    "prefix_hits_tokens": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "prefix_queries_tokens": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "requests_finished": ("vllm:request_success_total",),
    "queue_time_sum_s": ("vllm:request_queue_time_seconds_sum",),
    "queue_time_count": ("vllm:request_queue_time_seconds_count",),
}
_CONFIG = "vllm:cache_config_info"
_STEPS = "vllm:iteration_tokens_total_bucket"

_INTEGER = r"([\d,]+)"
_LOG_PATTERNS = {
    "kv_tokens": re.compile(rf"\b(?:GPU|CPU|XPU|TPU|HPU)(?: \+ host)? KV cache size: {_INTEGER} tokens"),
    "gpu_blocks": re.compile(rf"(?:# (?:GPU|CPU|[a-z]+) blocks:|after num_gpu_blocks is:) {_INTEGER}"),
    "max_num_batched_tokens": re.compile(rf"max_num_batched_tokens(?:=|': ){_INTEGER}"),
    "max_num_seqs": re.compile(rf"max_num_seqs(?:=|': ){_INTEGER}"),
    "block_size": re.compile(rf"[^_]block_size(?:=|': ){_INTEGER}"),
}


def parse_engine_sample(text: str, *, at_s: float, phase: str) -> EngineSample:
    """One reading from the text of `/metrics`. What is missing or cannot be read is None; never raises."""
    wanted = tuple(name for names in _NAMES.values() for name in names)
    found: dict[str, list[float]] = {}
    for sample in _samples(text, wanted):
        found.setdefault(sample.name, []).append(sample.value)
    values: dict[str, float | None] = {}
    for field, names in _NAMES.items():
        rows = next((found[name] for name in names if name in found), None)
        if rows is None:
            values[field] = None
        else:
            values[field] = max(rows) if field == "kv_usage_share" else sum(rows)
    return EngineSample(at_s=at_s, phase=phase, steps=_steps(text), **values)


def _steps(text: str) -> tuple[tuple[float, float], ...]:
    """Steps by the upper edge of their tokens, cumulative, over all engines."""
    counts: dict[float, float] = {}
    for sample in _samples(text, (_STEPS,)):
        edge = _read(sample.labels, "le", float)
        if edge is not None:
            counts[edge] = counts.get(edge, 0.0) + sample.value
    return tuple(sorted(counts.items()))


def parse_engine_config(text: str) -> EngineConfig:
    """The resolved configuration that `/metrics` tells of one engine; fields it does not tell are None.

    vLLM adds up the blocks of all engines of a data parallel server, so they are divided by their number here.
    `kv_tokens` is the engine's own count where it gives one (0.32: right for models with several kinds of cache, too),
    otherwise blocks x block size.
    """
    rows = [sample.labels for sample in _samples(text, (_CONFIG,))]
    if not rows:
        return EngineConfig()
    labels = rows[0]
    engines = len({row.get("engine", "") for row in rows})
    block_size = _read(labels, "block_size", int)
    blocks = _read(labels, "num_gpu_blocks", int)
    if blocks is not None:
        blocks //= engines
    kv_tokens = _read(labels, "kv_cache_size_tokens", int)
    if kv_tokens is None and block_size is not None and blocks is not None:
        kv_tokens = blocks * block_size
    return EngineConfig(
        block_size=block_size,
        gpu_blocks=blocks,
        kv_tokens=kv_tokens,
        gpu_memory_utilization=_read(labels, "gpu_memory_utilization", float),
        enable_prefix_caching=_read(labels, "enable_prefix_caching", _boolean),
        cache_dtype=_read(labels, "cache_dtype", str),
    )


def engine_config_from_log(lines: Iterable[str]) -> EngineConfig:
    """The same from a start-up log, as far as it is written there. The last line that tells a figure wins."""
    found: dict[str, int] = {}
    for line in lines:
        for field, pattern in _LOG_PATTERNS.items():
            if (match := pattern.search(line)) is not None:
                found[field] = int(match[1].replace(",", ""))
    block_size, blocks, kv_tokens = (found.get(name) for name in ("block_size", "gpu_blocks", "kv_tokens"))
    if kv_tokens is None and block_size is not None and blocks is not None:
        kv_tokens = blocks * block_size
    return EngineConfig(
        block_size=block_size,
        gpu_blocks=blocks,
        kv_tokens=kv_tokens,
        max_num_batched_tokens=found.get("max_num_batched_tokens"),
        max_num_seqs=found.get("max_num_seqs"),
    )


def summarize_engine(samples: Sequence[EngineSample]) -> EngineSummary:
    """Peaks over `samples`, and what the counters gained from the first to the last: give those of the measured load.

    A counter that falls (the server was another one) is None.
    """
    queued = _gain(samples, lambda sample: sample.queue_time_count)
    queued_s = _gain(samples, lambda sample: sample.queue_time_sum_s)
    hits = _gain(samples, lambda sample: sample.prefix_hits_tokens)
    queries = _gain(samples, lambda sample: sample.prefix_queries_tokens)
    return EngineSummary(
        preemptions=_gain(samples, lambda sample: sample.preemptions),
        prefix_hit_share=hits / queries if hits is not None and queries else None,
        peak_running=_peak(samples, lambda sample: sample.running),
        peak_waiting=_peak(samples, lambda sample: sample.waiting),
        peak_kv_usage_share=_peak(samples, lambda sample: sample.kv_usage_share),
        mean_queue_time_ms=queued_s / queued * 1000.0 if queued_s is not None and queued else None,
        largest_step_tokens=_largest_step(samples),
    )


def _largest_step(samples: Sequence[EngineSample]) -> float | None:
    """The lowest edge that no step between the first and the last sample was above; None where there was no step."""
    known = [dict(sample.steps) for sample in samples if sample.steps]
    if len(known) < 2 or known[0].keys() != known[-1].keys():
        return None
    gained = {edge: count - known[0][edge] for edge, count in known[-1].items()}
    every = gained[max(gained)]
    if every <= 0 or min(gained.values()) < 0:
        return None
    return min(edge for edge, count in gained.items() if count >= every)


def _gain(samples: Sequence[EngineSample], value: Callable[[EngineSample], float | None]) -> float | None:
    known = [number for sample in samples if (number := value(sample)) is not None]
    if len(known) < 2 or known[-1] < known[0]:
        return None
    return known[-1] - known[0]


def _peak(samples: Sequence[EngineSample], value: Callable[[EngineSample], float | None]) -> float | None:
    return max((number for sample in samples if (number := value(sample)) is not None), default=None)


def _samples(text: str, names: tuple[str, ...]) -> Iterable[Sample]:
    """Samples of exactly these names. Lines are parsed one by one: a broken one costs itself alone."""
    for line in text.splitlines():
        if line.startswith(names) and re.split(r"[{ ]", line, maxsplit=1)[0] in names:
            try:
                for family in text_string_to_metric_families(line + "\n"):
                    yield from (sample for sample in family.samples if sample.value == sample.value)
            except (ValueError, IndexError, KeyError):
                continue


def _read(labels: dict[str, str], name: str, convert: Callable[[str], T]) -> T | None:
    text = labels.get(name)
    if text is None or text in ("None", ""):
        return None
    try:
        return convert(text)
    except ValueError:
        return None


def _boolean(text: str) -> bool:
    if text not in ("True", "False"):
        raise ValueError(text)
    return text == "True"
