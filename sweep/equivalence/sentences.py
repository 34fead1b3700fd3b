"""What the counters prove, in one line a flag."""

from __future__ import annotations

import math

from sweep.equivalence.evidence import BATCHED, SEQS, UTILIZATION, Evidence
from sweep.trial import Flag


def sentence(seen: Evidence, name: str, above: Flag) -> str:
    """That a flag makes no difference from `above` on (None: in the whole range), and by which counter."""
    where = "" if above is None else f" from {above} on"
    return f"{name} does not matter{where} at this load: {_why(seen, name)}"


def _why(seen: Evidence, name: str) -> str:
    if name == SEQS and seen.running is not None:
        return f"{math.ceil(seen.running)} requests at most ran at once"
    if name == BATCHED and seen.step_tokens is not None:
        return f"no step could be filled with more than {math.ceil(seen.step_tokens):,} tokens"
    if name == UTILIZATION and seen.held_tokens is not None and seen.capacity_tokens:
        share = f" ({seen.held_tokens / seen.capacity_tokens:.0%} of trial {seen.number}'s)"
        return f"{math.ceil(seen.held_tokens):,} tokens of KV cache at most were in use{share}, no preemption"
    return "no limit was reached"
