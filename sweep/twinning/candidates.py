"""Settings of a search space as the twin sees them: engines, what they make of the load, and which are alike."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from sweep.search_space import SearchSpace, canonical
from sweep.trial import Flag, Flags
from sweep.twin import Costs, Engine
from sweep.twinning.landscape import Landscape, Played
from sweep.twinning.record import Record
from sweep.twinning.target import Target, target_of

# Of a larger space, and of one without a grid, so many points are looked at.
_ENUMERABLE, _DRAWN = 4_000, 1_500
_UTILIZATION = "gpu-memory-utilization"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting. `engines`: the one expected, then those it may turn out to be where its KV cache is an estimate."""

    flags: Flags
    engines: tuple[Engine, ...]
    played: Played

    @property
    def schedule(self) -> tuple[int, ...]:
        """Equal for settings that do the same step by step."""
        return self.played.schedule


def candidates(
    record: Record,
    space: SearchSpace,
    landscape: Landscape,
    costs: Costs,
    sharing: float,
    steps: float,
    seed: int,
    near: Sequence[Flags],
) -> tuple[Candidate, ...]:
    """Points of the space, those around `near` first, until about `steps` were simulated; the same for a seed."""
    found: list[Candidate] = []
    end = landscape.work + steps
    for flags in _points(space, random.Random(seed), near):
        if landscape.work > end:
            break
        target = target_of({**record.fixed, **flags}, record)
        played = landscape.play(target.engine.sharing(sharing), costs)
        if played is not None:
            found.append(Candidate(flags, _engines(target), played))
    return tuple(found)


def _engines(target: Target) -> tuple[Engine, ...]:
    tokens = target.kv_tokens
    if tokens is None or tokens.low == tokens.high:
        return (target.engine,)
    return (target.engine, target.with_kv_tokens(tokens.low), target.with_kv_tokens(tokens.high))


def _points(space: SearchSpace, rng: random.Random, near: Sequence[Flags]) -> Iterable[dict[str, Flag]]:
    """Points that keep the constraints, each once: those that differ from a `near` one in one flag, then the others."""
    given: set[object] = set()
    for point in (*_neighbours(space, near), *_others(space, rng)):
        key = space.key(point)
        if key not in given and space.violated(point) is None:
            given.add(key)
            yield point


def _neighbours(space: SearchSpace, near: Sequence[Flags]) -> Iterable[dict[str, Flag]]:
    for flags in near:
        for parameter in space.parameters:
            if parameter.size is None:
                continue
            for value in islice(parameter.values(), 64):
                yield space.quantise({**flags, parameter.name: value})


def _others(space: SearchSpace, rng: random.Random) -> Iterable[dict[str, Flag]]:
    size = space.size()
    if size is not None and size <= _ENUMERABLE:
        points = list(space.points())
        return rng.sample(points, len(points))
    return [space.draw(rng) for _ in range(_DRAWN)]


def classes(found: Sequence[Candidate], baseline: Flags) -> list[Candidate]:
    """One setting of each schedule: the one that changes fewest flags of `baseline`, then the lower utilization."""

    def order(one: Candidate) -> tuple[int, float, str]:
        changed = sum(canonical(value) != canonical(baseline.get(name)) for name, value in one.flags.items())
        share = one.flags.get(_UTILIZATION)
        number = float(share) if isinstance(share, (int, float)) and not isinstance(share, bool) else 1.0
        return changed, number, str(sorted(one.flags.items(), key=lambda item: item[0]))

    chosen: dict[tuple[int, ...], Candidate] = {}
    for one in found:
        known = chosen.get(one.schedule)
        if known is None or order(one) < order(known):
            chosen[one.schedule] = one
    return list(chosen.values())
