"""Flags as they are asked for: read, checked, and merged into the baseline's."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Mapping, Sequence

from sweep.errors import UserError
from sweep.flags import canonical
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


def parse_changes(texts: Sequence[str]) -> dict[str, Flag]:
    """`FLAG=VALUE` words as flags: numbers, true, false, `null` for vLLM's own default, anything else as text.

    Raises UserError for a word of another form and a flag given twice.
    """
    changes: dict[str, Flag] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        flag = canonical(name)
        if not equals or not flag:
            raise UserError(f"--set: {text!r} is not FLAG=VALUE, such as max-num-seqs=64")
        if flag in changes:
            raise UserError(f"--set: {flag} stands twice")
        changes[flag] = _value(value.strip())
    return changes


def _value(text: str) -> Flag:
    plain = text.lower()
    if plain in ("true", "false"):
        return plain == "true"
    if plain in ("", "null", "none"):
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def merged(baseline: Flags, fixed: Flags, changes: Flags) -> dict[str, Flag]:
    """All flags of the setting in question: the baseline's and the study's fixed ones, with `changes` on top.

    Raises UserError for a flag that neither is computed nor stands in the study, and for a value it cannot have.
    """
    known = {**fixed, **baseline}
    for name, value in changes.items():
        if name in COMPUTED:
            allowed, words = COMPUTED[name]
            if value is not None and not allowed(value):
                raise UserError(f"--set: {name} needs {words}, not {value!r}")
        elif name not in known:
            raise UserError(f"--set: {name!r} is {_unknown(name, {*COMPUTED, *known})}")
    return {**known, **changes}


def _unknown(name: str, known: Collection[str]) -> str:
    nearest = difflib.get_close_matches(name, sorted(known), n=1)
    reason = "neither a flag of this study nor one whose effect can be computed"
    return (
        f"{reason}; did you mean {nearest[0]!r}?" if nearest else f"{reason}; those are {', '.join(sorted(COMPUTED))}"
    )


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
