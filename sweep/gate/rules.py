"""Rules that vLLM enforces when it starts: those it always has, and those that a refusal of this study named.

A rule says of flags that they break it, that they keep it, or, where it has nothing to say, None. One that a server
which started has broken is no rule, whoever named it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sweep.diagnosis import NamedRule
from sweep.diagnosis.named_rule import (
    BlockSizes,
    DevicesAtMost,
    Divides,
    Excluded,
    KvShortage,
    Limit,
    NotBelow,
    OneOf,
)
from sweep.trial import chunks_prefill

Values = Mapping[str, object]

# Flags by which more of it leaves less memory for the KV cache; more of the others leaves more, or they do not matter.
_COSTLY = ("max-num-seqs", "max-num-batched-tokens")
_UTILIZATION, _LENGTH = "gpu-memory-utilization", "max-model-len"
# Sizes whose value alone decides nothing about memory.
_FREE = (_LENGTH, "block-size")
# A cold start has up to 5 % less KV cache than a later one (vllm issue 54383), so a request may be a little longer yet.
_COLD = 1.06
# So much is missing that no other start of these flags finds it.
_NOTHING_GIB = -0.1


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as it stands in a study. `word` is for those who count. `taught`: the flags of the launch that was
    refused by it; None for a rule that vLLM always has.
    """

    word: str
    named: NamedRule
    taught: Values | None = None
    trial: int | None = None

    def broken_by(self, flags: Values) -> bool | None:
        """Whether a launch with these flags is refused by it; None where it says nothing of them.

        What was learned from one launch is taken for another only where all flags that are no numbers agree: another
        attention backend or cache type has rules of its own.
        """
        if self.taught is not None and not _same_words(self.taught, flags):
            return None
        return _broken(self.named, flags, self.taught or {})

    def __str__(self) -> str:
        source = "" if self.trial is None else f" (named by the refusal of trial {self.trial})"
        return f"{self.named}{source}"


BATCHED_AT_LEAST_SEQS = Rule("batched_tokens", NotBelow("max-num-batched-tokens", "max-num-seqs"))
# Only where chunked prefill is off is a prompt read in one step (`SchedulerConfig.verify_max_model_len`).
BATCHED_AT_LEAST_LENGTH = Rule("batched_tokens", NotBelow("max-num-batched-tokens", _LENGTH))


def enforced(flags: Values, heads: int | None) -> tuple[Rule, ...]:
    """The rules that every vLLM since 0.6 has for a server with these flags. `heads`: attention heads of the model."""
    rules = [BATCHED_AT_LEAST_SEQS]
    if not chunks_prefill(flags):
        rules.append(BATCHED_AT_LEAST_LENGTH)
    if heads is not None:
        rules.append(Rule("tensor_parallel", Divides("tensor-parallel-size", heads, "attention heads")))
    return tuple(rules)


def taught_by(named: NamedRule, flags: Values, trial: int) -> Rule | None:
    """The rule that a refused launch teaches; None where it does not explain the refusal of that very launch, so that
    the line was about something else.
    """
    if isinstance(named, Limit) and named.flag is None:
        fitting = [
            name for name, value in flags.items() if named.refused is not None and number(value) == named.refused
        ]
        if len(fitting) != 1:
            return None
        named = Limit(fitting[0], named.at_least, named.at_most, named.above, named.below)
    if isinstance(named, Excluded) and named.value is None:
        if (own := flags.get(named.flag)) is None:
            return None
        named = Excluded(named.flag, str(own))
    rule = Rule(_word(named), named, dict(flags), trial)
    return None if rule.broken_by(flags) is False else rule


def number(value: object) -> float | None:
    """A flag's value as a number, None where it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    try:
        return float(str(value))
    except ValueError:
        return None


def _word(named: NamedRule) -> str:
    if isinstance(named, KvShortage):
        return "kv_cache"
    if isinstance(named, (BlockSizes, DevicesAtMost)):
        return "block_size" if isinstance(named, BlockSizes) else "devices"
    names = {"max-num-batched-tokens": "batched_tokens", "tensor-parallel-size": "tensor_parallel"}
    flag = named.flag or ""
    return names.get(flag, flag.replace("-", "_"))


def _broken(named: NamedRule, flags: Values, taught: Values) -> bool | None:
    match named:
        case BlockSizes():
            size = number(flags.get("block-size"))
            return None if size is None else not named.allows(int(size))
        case OneOf():
            value = flags.get(named.flag)
            return None if value is None else not any(_alike(value, one) for one in named.values)
        case Excluded():
            value = flags.get(named.flag)
            return None if value is None or named.value is None else _alike(value, named.value)
        case Limit():
            return _beyond(named, flags, taught)
        case NotBelow():
            one, other = number(flags.get(named.flag)), number(flags.get(named.other))
            return None if one is None or other is None else one < other
        case Divides():
            size = number(flags.get(named.flag))
            return None if size is None or size < 1 else named.number % int(size) != 0
        case DevicesAtMost():
            sizes = [number(flags.get(name)) or 1.0 for name in ("tensor-parallel-size", "pipeline-parallel-size")]
            return sizes[0] * sizes[1] > named.devices
        case KvShortage():
            return _too_long(named, flags, taught)


def _beyond(named: Limit, flags: Values, taught: Values) -> bool | None:
    value = None if named.flag is None else number(flags.get(named.flag))
    if value is None or (named.memory and not _no_more_memory(flags, taught, named.flag)):
        return None
    return not named.allows(value)


def _too_long(named: KvShortage, flags: Values, taught: Values) -> bool | None:
    """With no more memory than a launch that could not hold one request, one as long cannot be held either."""
    longest, asked = number(flags.get(_LENGTH)), named.max_model_len
    if not _no_more_memory(flags, taught):
        return None
    if asked is None:
        return True if named.available_gib is not None and named.available_gib < _NOTHING_GIB else None
    if longest is None:  # the length is vLLM's own choice, as it was then
        return True if taught.get(_LENGTH) is None else None
    if named.longest_tokens is None:
        return True if longest >= asked else None
    return True if longest > _COLD * named.longest_tokens else None


def _no_more_memory(flags: Values, taught: Values, itself: str | None = None) -> bool:
    """Whether a launch has at most the KV cache that another one had: no flag but `itself` says otherwise, none is
    unclear."""
    for name in {*flags, *taught}:
        one, other = flags.get(name), taught.get(name)
        if name in (*_FREE, itself) or one == other:
            continue
        now, then = number(one), number(other)
        if now is None or then is None:
            return False
        if name in _COSTLY and now >= then:
            continue
        if name == _UTILIZATION and now <= then:
            continue
        return False
    return True


def _same_words(taught: Values, flags: Values) -> bool:
    names = {name for one in (taught, flags) for name, value in one.items() if number(value) is None}
    return all(
        taught.get(name) == flags.get(name)
        for name in names
        if number(taught.get(name)) is None and number(flags.get(name)) is None
    )


def _alike(value: object, text: str) -> bool:
    """Whether a value is what a line spells: 16 is 16.0, and words are as they stand."""
    one, other = number(value), number(text)
    return one == other if one is not None and other is not None else str(value) == text
