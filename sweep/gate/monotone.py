"""What one failed start says of others by order alone: less memory than too little, more than too much.

Where a server found no room for its KV cache, one that leaves as little finds none either: no higher utilization, no
fewer sequences, no smaller steps, nothing else different. Where a device ran out of memory, filling it as far with as
much work runs out again. It needs no model of memory, so it holds where the model or the device cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sweep.diagnosis import FailureClass
from sweep.search_space import canonical
from sweep.trial import Finished, Flag, Flags, TrialStatus

_UTILIZATION, _LENGTH = "gpu-memory-utilization", "max-model-len"
# For each flag that moves memory: which way it makes the failure of that kind more certain.
_WORSE: Mapping[str, Mapping[str, int]] = {
    "little": {_UTILIZATION: -1, "max-num-seqs": 1, "max-num-batched-tokens": 1, _LENGTH: 1},
    "much": {_UTILIZATION: 1, "max-num-seqs": 1, "max-num-batched-tokens": 1},
}
# The page size moves no memory worth the name.
_FREE = "block-size"


@dataclass(frozen=True, slots=True)
class Edge:
    """A launch that failed of memory: `little` for its KV cache, or too `much` on the device. `trial`: its number."""

    kind: Literal["little", "much"]
    flags: Flags
    trial: int

    def beyond(self, flags: Flags) -> bool:
        """Whether a launch with `flags` fails at least as surely."""
        worse = _WORSE[self.kind]
        return all(
            name == _FREE or _as_bad(flags.get(name), self.flags.get(name), worse.get(name, 0))
            for name in {*flags, *self.flags}
        )

    def refuted_by(self, flags: Flags, *, survived: bool) -> bool:
        """Whether a server that got ready with `flags`, and `survived` its load, shows that this had another cause."""
        return (survived or self.kind == "little") and self.beyond(flags)

    @property
    def rule(self) -> str:
        """The word of those who count."""
        return "kv_cache" if self.kind == "little" else "device_memory"

    def __str__(self) -> str:
        if self.kind == "little":
            return f"trial {self.trial} had no room for its KV cache, and this leaves no more"
        return f"trial {self.trial} ran out of memory, and this fills as much"


@dataclass(frozen=True, slots=True)
class Order:
    """What is known by order after some launches: failures that no other launch speaks against.

    `ready`: the flags of servers that got ready, and whether they survived their load.
    """

    edges: tuple[Edge, ...] = ()
    ready: tuple[tuple[Flags, bool], ...] = ()

    def after(self, ended: Finished, *, ready: bool) -> Order:
        """With one more launch; `ready`: whether its server got so far. One that died under load did."""
        own, known, edges = edge_of(ended), self.ready, self.edges
        if ready:
            known = (*known, (ended.flags, own is None))
            edges = tuple(one for one in edges if not one.refuted_by(ended.flags, survived=own is None))
        if own is not None and not any(own.refuted_by(flags, survived=survived) for flags, survived in known):
            edges = (*edges, own)
        return Order(edges, known)

    def beyond(self, flags: Flags) -> Edge | None:
        """The first failure that says that a launch with `flags` fails, too."""
        return next((edge for edge in self.edges if edge.beyond(flags)), None)


def edge_of(ended: Finished) -> Edge | None:
    """What a launch that ended says; None where it says nothing by order."""
    if ended.status is not TrialStatus.INFEASIBLE:
        return None
    if ended.failure_class == FailureClass.KV_CACHE_TOO_SMALL:
        return Edge("little", ended.flags, ended.number)
    if ended.failure_class in (FailureClass.STARTUP_OOM, FailureClass.LOAD_OOM):
        return Edge("much", ended.flags, ended.number)
    return None


def _as_bad(value: Flag, then: Flag, way: int) -> bool:
    """Whether `value` is no better than `then`, for a flag that makes things worse in the direction `way`."""
    if canonical(value) == canonical(then):
        return True
    numbers = [one for one in (value, then) if isinstance(one, (int, float)) and not isinstance(one, bool)]
    if not way or len(numbers) < 2:
        return False
    return way * (numbers[0] - numbers[1]) >= 0
