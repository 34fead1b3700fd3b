"""Whether a limit could have made a difference between a measured trial and flags that were not measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sweep.equivalence.evidence import BATCHED, SEQS, UTILIZATION, Evidence, number
from sweep.search_space import Key, canonical, flags_key
from sweep.trial import Finished, Flags

INERT = (SEQS, BATCHED, UTILIZATION)
# A first start without a compile cache has up to 5 % less KV cache than later ones (vllm issue 54383).
_COLD = 0.95

Capacity = Callable[[Flags], float | None]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of flags that were not measured. None where they are not known."""

    flags: Flags
    seqs: float | None
    batched: float | None
    capacity_tokens: float | None


def changed(one: Flags, other: Flags) -> tuple[str, ...] | None:
    """The flags of `INERT` in which two points differ; None where they differ in any other."""
    names = [name for name in {**one, **other} if canonical(one.get(name)) != canonical(other.get(name))]
    return tuple(sorted(names)) if set(names) <= set(INERT) else None


def rest_of(flags: Flags) -> Key:
    """What must be equal: all but `INERT`."""
    return flags_key({name: value for name, value in flags.items() if name not in INERT and value is not None})


def inert(seen: Evidence, limits: Limits, differing: Sequence[str]) -> bool:
    """Whether the counters of `seen` prove that none of the `differing` limits was ever reached, and that none would
    be under `limits`: then both points are one to the engine."""
    if SEQS in differing and not _above((seen.seqs, limits.seqs), seen.running):
        return False
    if BATCHED in differing and not _above((seen.batched, limits.batched), seen.step_tokens):
        return False
    # Each of the three moves the size of the KV cache, so that must suffice for both.
    capacities = (seen.capacity_tokens, limits.capacity_tokens)
    if not _above(capacities, seen.held_tokens):
        return False
    # What the prefix cache has to forget is not proved by peaks; nothing, where all of the load fits.
    return not seen.cached or _above(capacities, seen.load_tokens)


def _above(limits: Iterable[float | None], used: float | None) -> bool:
    return used is not None and all(limit is not None and limit >= used for limit in limits)


def limits_of(
    flags: Flags, fixed: Mapping[str, object], heard: Sequence[Finished], capacity: Capacity | None
) -> Limits:
    """The limits that `flags` would have, as far as what was `heard` or the memory model knows."""
    known = capacity(flags) if capacity is not None else None
    floors = [floor for one in heard if (floor := _floor(one, flags)) is not None]
    return Limits(
        flags,
        _limit(flags, fixed, SEQS),
        _limit(flags, fixed, BATCHED),
        max([*floors, *([] if known is None else [known])], default=None),
    )


def _limit(flags: Flags, fixed: Mapping[str, object], name: str) -> float | None:
    found = number(flags.get(name))
    return number(fixed.get(name)) if found is None else found


def _floor(seen: Finished, flags: Flags) -> float | None:
    """The KV cache that a server had is one that `flags` have at least, if they leave no less memory for it: as high a
    utilization, as few sequences and batched tokens, all else equal."""
    if seen.engine_config is None or seen.engine_config.kv_tokens is None or rest_of(seen.flags) != rest_of(flags):
        return None
    for name, sign in ((UTILIZATION, 1), (SEQS, -1), (BATCHED, -1)):
        had, has = number(seen.flags.get(name)), number(flags.get(name))
        if (had is None) is not (has is None) or (had is not None and has is not None and sign * (has - had) < 0):
            return None
    same = changed(seen.flags, flags) == ()
    return seen.engine_config.kv_tokens * (1.0 if same else _COLD)
