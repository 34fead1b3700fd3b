"""The engine that flags would make, from launches that were: what vLLM resolves by itself, and how much KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sweep.records import EngineConfig
from sweep.trial import Flags
from sweep.twin import Engine, kv_tokens_for
from sweep.twinning.computed import uncomputed, usable
from sweep.twinning.record import Launch, Record
from sweep.twinning.room import Room
from sweep.twinning.values import KvTokens

# Flags of which vLLM makes its own when nothing is said, and the field of EngineConfig with what it made.
_RESOLVED = {
    "max-num-seqs": "max_num_seqs",
    "max-num-batched-tokens": "max_num_batched_tokens",
    "block-size": "block_size",
    "enable-prefix-caching": "enable_prefix_caching",
}
_UTILIZATION = "gpu-memory-utilization"
# Of the flags that leave weights as they are these two move the memory of activations, and with it the cache, a little.
_ACTIVATIONS = ("max-num-seqs", "max-num-batched-tokens")
_A_LITTLE = (0.95, 1.02)


@dataclass(frozen=True, slots=True)
class Target:
    """An engine nobody need have launched. `kv_tokens` None: not known, and taken for more than the load needs."""

    flags: Flags
    engine: Engine
    kv_tokens: KvTokens | None
    cautions: tuple[str, ...]

    def with_kv_tokens(self, tokens: int) -> Engine:
        """The same engine with so many KV tokens."""
        blocks = max(tokens // self.engine.block_size - 1, 1)
        return replace(self.engine, kv_blocks=blocks)


def target_of(flags: Flags, record: Record) -> Target:
    """The engine that `flags`, all of a server's, would make."""
    alike = [one for one in record.launches if uncomputed(one.flags) == uncomputed(flags)]
    config, cautions = _resolved(flags, alike)
    kv_tokens = _kv_tokens(flags, alike, record.room)
    if kv_tokens is None:
        cautions.append("no launch says how many tokens the KV cache holds: it is taken for more than the load needs")
    else:
        config = replace(config, kv_tokens=kv_tokens.expected)
    engine = Engine.of(usable(flags), config, asynchronous=record.asynchronous)
    return Target(flags, engine, kv_tokens, tuple(cautions))


def _resolved(flags: Flags, launches: Sequence[Launch]) -> tuple[EngineConfig, list[str]]:
    """What launches with the same value of a flag made of it; a caution where one left to vLLM was never seen."""
    config, cautions = EngineConfig(), []
    for name, attribute in _RESOLVED.items():
        value = flags.get(name)
        same = (getattr(one.trial.engine_config, attribute) for one in launches if one.flags.get(name) == value)
        known = next((found for found in same if found is not None), None)
        if known is not None:
            config = replace(config, **{attribute: known})
        elif value is None and name in flags:
            default = {"enable-prefix-caching": "on"}.get(name, getattr(Engine(), attribute, None))
            cautions.append(f"{name} is left to vLLM, and no launch says what that is: taken for {default}")
    return config, cautions


def _kv_tokens(flags: Flags, launches: Sequence[Launch], room: Room | None) -> KvTokens | None:
    share = _utilization(flags, launches)
    known = [
        (one, own, tokens)
        for one in launches
        if (own := _own_utilization(one)) is not None and (tokens := tokens_of(one.trial.engine_config)) is not None
    ]
    if share is None or not known:
        return None
    close = [entry for entry in known if all(entry[0].flags.get(name) == flags.get(name) for name in _ACTIVATIONS)]
    for entries, factors in ((close, (1.0, 1.0)), (known, _A_LITTLE)):
        same = [tokens for _, own, tokens in entries if abs(own - share) < 1e-6]
        if same:
            low, high = min(same) * factors[0], max(same) * factors[1]
            return KvTokens(int(low), sum(same) // len(same), int(high), launched=entries is close)
    enough = len({own for _, own, _ in close}) > 1
    if not enough and room is not None:
        one, _, tokens = min(close or known, key=lambda entry: abs(entry[1] - share))
        found = room.beside(flags, one.flags, tokens)
        if found is not None:
            return KvTokens(int(found[0]), int(found[1]), int(found[2]), launched=False)
    low, expected, high = kv_tokens_for([(own, tokens) for _, own, tokens in (close if enough else known)], share)
    return KvTokens(int(low), int(expected), int(high), launched=False)


def _utilization(flags: Flags, launches: Sequence[Launch]) -> float | None:
    value = flags.get(_UTILIZATION)
    if value is not None and not isinstance(value, (str, bool)):
        return float(value)
    left = (_own_utilization(one) for one in launches if one.flags.get(_UTILIZATION) is None)
    return next((share for share in left if share is not None), None)


def _own_utilization(launch: Launch) -> float | None:
    value = launch.flags.get(_UTILIZATION)
    if value is not None and not isinstance(value, (str, bool)):
        return float(value)
    return launch.trial.engine_config.gpu_memory_utilization


def tokens_of(config: EngineConfig) -> int | None:
    """Tokens that the blocks of a launched engine hold."""
    if config.gpu_blocks is not None and config.block_size is not None:
        return config.gpu_blocks * config.block_size
    return config.kv_tokens
