"""Which flags have an effect that the twin can compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from sweep.search_space import Key, flags_key
from sweep.trial import Flag, Flags


def _whole(least: int) -> Callable[[Flag], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: Flag) -> float:
    return math.nan if value is None or isinstance(value, (bool, str)) else float(value)


def _switch(value: Flag) -> bool:
    return isinstance(value, bool)


_COUNT = (_whole(1), "a whole number of at least 1")
_SWITCH = (_switch, "true or false")

# The flags whose effect can be computed: what each may be, and that in words. None is always allowed.
COMPUTED: Mapping[str, tuple[Callable[[Flag], bool], str]] = {
    "max-num-seqs": _COUNT,
    "max-num-batched-tokens": _COUNT,
    "block-size": _COUNT,
    "max-model-len": _COUNT,
    "data-parallel-size": _COUNT,
    "long-prefill-token-threshold": (_whole(0), "a whole number of at least 0"),
    "long-prefill-token-threshold-adaptive": _SWITCH,
    "enable-chunked-prefill": _SWITCH,
    "enable-prefix-caching": _SWITCH,
    "scheduler-reserve-full-isl": _SWITCH,
    "async-scheduling": _SWITCH,
    "scheduling-policy": (lambda value: value in ("fcfs", "priority"), "fcfs or priority"),
    "watermark": (lambda value: 0.0 <= _number(value) < 1.0, "a number from 0 to below 1"),
    "gpu-memory-utilization": (lambda value: 0.0 < _number(value) <= 1.0, "a number above 0, and 1 at most"),
}


def uncomputed(flags: Flags) -> Key:
    """The flags whose effect cannot be computed, as a key: only trials with the same ones tell of a setting."""
    return flags_key({name: value for name, value in flags.items() if name not in COMPUTED and value is not None})


def usable(flags: Flags) -> dict[str, Flag]:
    """`flags` without those values that cannot be computed with, such as a length of `auto`: vLLM's default counts."""
    return {
        name: value
        for name, value in flags.items()
        if name not in COMPUTED or value is None or COMPUTED[name][0](value)
    }
