"""What a simulation is given: requests, an engine's settings, and what its steps cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from sweep.errors import UserError
from sweep.records import EngineConfig, RequestRecord
from sweep.trial import Flags, chunks_prefill

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# What vLLM 0.32 takes on a device of 48 GB where nothing says otherwise (`EngineArgs`).
_DEFAULT_SEQS, _DEFAULT_TOKENS, _DEFAULT_BLOCK = 256, 2048, 16


class TwinError(UserError):
    """What cannot be simulated, and why."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in order of arrival, one entry each; lengths in tokens, times in seconds.

    `prefix_group` and `prefix_tokens`: requests of one group begin with the same tokens, as far as both have
    `prefix_tokens`; group -1 shares with nobody. `priority`: lower is served earlier, with policy `priority`.
    Raises ValueError for lengths below 1, arrivals out of order or columns of different length.
    """

    arrival_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    priority: Ints
    prefix_group: Ints
    prefix_tokens: Ints

    def __post_init__(self) -> None:
        n = len(self.arrival_s)
        if any(len(getattr(self, column.name)) != n for column in fields(self)):
            raise ValueError("columns of different length")
        if n and (self.input_tokens.min() < 1 or self.output_tokens.min() < 1):
            raise ValueError("a request needs at least one input and one output token")
        if np.any(np.diff(self.arrival_s) < 0):
            raise ValueError("arrivals must not go back in time")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @classmethod
    def of(
        cls,
        arrival_s: npt.ArrayLike,
        input_tokens: npt.ArrayLike,
        output_tokens: npt.ArrayLike,
        *,
        priority: npt.ArrayLike = 0,
        prefix_group: npt.ArrayLike = -1,
        prefix_tokens: npt.ArrayLike = 0,
    ) -> Load:
        """From sequences; single numbers hold for all requests. Raises ValueError as `Load`."""
        arrivals = np.asarray(arrival_s, np.float64)

        def column(values: npt.ArrayLike) -> Ints:
            whole = np.asarray(values, np.int64)
            return np.full(len(arrivals), whole) if whole.ndim == 0 else whole

        return cls(
            arrivals,
            column(input_tokens),
            column(output_tokens),
            column(priority),
            column(prefix_group),
            column(prefix_tokens),
        )

    @classmethod
    def measured(cls, requests: Sequence[RequestRecord]) -> tuple[Load, tuple[RequestRecord, ...]]:
        """The load of one round as it was really sent, and the records in the order of the load.

        Left out are requests that failed or whose send or length is not known.
        """
        usable = [
            request
            for request in requests
            if request.error is None
            and request.ttft_ms is not None
            and request.e2el_ms is not None
            and request.start_s is not None
            and request.input_tokens
            and request.output_tokens
        ]
        usable.sort(key=lambda request: request.start_s or 0.0)
        load = cls.of(
            [request.start_s or 0.0 for request in usable],
            np.array([request.input_tokens for request in usable], np.int64),
            np.array([request.output_tokens for request in usable], np.int64),
        )
        return load, tuple(usable)

    def first(self, count: int) -> Load:
        """The first `count` requests."""
        return Load(*(getattr(self, column.name)[:count] for column in fields(self)))


@dataclass(frozen=True, slots=True)
class Engine:
    """A server's settings, as vLLM resolved them.

    `kv_blocks` is what requests can hold: vLLM's own number less the block it keeps for itself; None: more than they
    need. `whole_prompt` is `scheduler-reserve-full-isl`, `watermark_share` `watermark`; `asynchronous` is
    `async-scheduling`: the next step is planned while one computes. `replicas`: data parallel engines of
    `kv_blocks` each.
    """

    max_num_seqs: int = _DEFAULT_SEQS
    max_num_batched_tokens: int = _DEFAULT_TOKENS
    kv_blocks: int | None = None
    block_size: int = _DEFAULT_BLOCK
    chunked_prefill: bool = True
    long_prefill_tokens: int = 0
    long_prefill_adaptive: bool = False
    by_priority: bool = False
    prefix_caching: bool = True
    whole_prompt: bool = True
    watermark_share: float = 0.0
    asynchronous: bool = True
    max_model_len: int | None = None
    replicas: int = 1

    def __post_init__(self) -> None:
        least = (self.max_num_seqs, self.max_num_batched_tokens, self.block_size, self.replicas)
        if min(least) < 1 or (self.kv_blocks is not None and self.kv_blocks < 1):
            raise ValueError("seats, budget, blocks, block size and replicas are at least 1")

    def sharing(self, share: float) -> Engine:
        """This engine as it looks to requests that share blocks of it which their lengths do not tell: with so much
        more KV cache. The same where nothing can be shared."""
        if self.kv_blocks is None or not self.prefix_caching or share == 0.0:
            return self
        return replace(self, kv_blocks=round(self.kv_blocks * (1.0 + share)))

    @classmethod
    def of(cls, flags: Flags, config: EngineConfig, *, asynchronous: bool) -> Engine:
        """From all flags of a launch, and what the engine made of them: the engine's own word wins."""

        def whole(name: str, known: int | None, default: int) -> int:
            value = known if known is not None else flags.get(name)
            return default if value is None or isinstance(value, bool) else int(value)

        caching = config.enable_prefix_caching
        if caching is None:
            caching = bool(flags.get("enable-prefix-caching", True))
        block_size = whole("block-size", config.block_size, _DEFAULT_BLOCK)
        blocks = config.gpu_blocks
        if blocks is None and config.kv_tokens is not None:
            blocks = config.kv_tokens // block_size
        max_len = flags.get("max-model-len")
        chosen = flags.get("async-scheduling")
        return cls(
            max_num_seqs=whole("max-num-seqs", config.max_num_seqs, _DEFAULT_SEQS),
            max_num_batched_tokens=whole("max-num-batched-tokens", config.max_num_batched_tokens, _DEFAULT_TOKENS),
            kv_blocks=None if blocks is None else max(blocks - 1, 1),
            block_size=block_size,
            chunked_prefill=chunks_prefill(flags),
            long_prefill_tokens=whole("long-prefill-token-threshold", None, 0),
            long_prefill_adaptive=flags.get("long-prefill-token-threshold-adaptive") is True,
            by_priority=flags.get("scheduling-policy") == "priority",
            prefix_caching=caching,
            whole_prompt=flags.get("scheduler-reserve-full-isl") is not False,
            watermark_share=float(flags.get("watermark") or 0.0),
            asynchronous=asynchronous if chosen is None else chosen is True,
            max_model_len=max_len if type(max_len) is int else None,
            replicas=whole("data-parallel-size", None, 1),
        )


@dataclass(frozen=True, slots=True)
class Costs:
    """What a step takes, and what a request takes before it reaches the engine. Seconds, none below zero.

    step = step_s + prefill_token_s x prefill tokens + decode_request_s x decoding requests
         + context_token_s x tokens those attend to + attention_s x sum(chunk x (tokens before + chunk / 2))
    """

    step_s: float
    prefill_token_s: float
    decode_request_s: float
    context_token_s: float
    attention_s: float
    offset_s: float

    def __post_init__(self) -> None:
        if not all(np.isfinite(value) and value >= 0.0 for value in self.array()) or self.step_s <= 0.0:
            raise ValueError("costs are finite and not below zero, and a step takes time")

    def array(self) -> Floats:
        """In the order of the fields, `offset_s` last."""
        return np.array([getattr(self, item.name) for item in fields(self)])

    @classmethod
    def of(cls, values: Floats) -> Costs:
        """The reverse of `array`."""
        return cls(*(float(value) for value in values))

    def times(self, factor: float) -> Costs:
        """Costs of a device slower by `factor`; the way to the engine takes as long as before."""
        return replace(Costs.of(self.array() * factor), offset_s=self.offset_s)
