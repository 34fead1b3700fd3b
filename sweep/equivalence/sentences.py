"""What the counters prove, in one line a flag."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sweep.equivalence.evidence import BATCHED, SEQS, UTILIZATION, Evidence
from sweep.trial import Flag


@dataclass(frozen=True, slots=True)
class InertFlag:
    """A searched flag and what is known of it: `inert`, it makes no difference from `above` on (None: in the whole
    range); otherwise that was believed and is withdrawn. `why` is the evidence in words; `trial` whose counters it
    is from, None where repeats speak."""

    name: str
    inert: bool
    above: Flag
    why: str
    trial: int | None

    @property
    def sentence(self) -> str:
        """The same in one line."""
        if not self.inert:
            return f"{self.name} may matter after all: {self.why}"
        where = "" if self.above is None else f" from {self.above} on"
        return f"{self.name} does not matter{where} at this load: {self.why}"


def inert_flag(seen: Evidence, name: str, above: Flag) -> InertFlag:
    """That a flag makes no difference from `above` on (None: in the whole range), and by which counter."""
    return InertFlag(name, True, above, _why(seen, name), seen.number)


def _why(seen: Evidence, name: str) -> str:
    if name == SEQS and seen.running is not None:
        return f"{math.ceil(seen.running)} requests at most ran at once"
    if name == BATCHED and seen.step_tokens is not None:
        return f"no step could be filled with more than {math.ceil(seen.step_tokens):,} tokens"
    if name == UTILIZATION and seen.held_tokens is not None and seen.capacity_tokens:
        share = f" ({seen.held_tokens / seen.capacity_tokens:.0%} of trial {seen.number}'s)"
        return f"{math.ceil(seen.held_tokens):,} tokens of KV cache at most were in use{share}, no preemption"
    return "no limit was reached"
