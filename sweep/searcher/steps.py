"""The next small step: one flag changed of the best flags so far, what its own counters suggest first.

Most of a search space is plateau around a few limits, and a search of thirty launches cannot afford ten at random to
see that. So before a model has an opinion, and now and then after, the best measured flags are left in one flag. Which
one first, and which way, the engine's counters of that very launch say:

- requests waited while all seats were taken: more seats, towards the geometric mean of seats and requests at once;
- requests were preempted, or the KV cache was full: more memory, then fewer seats; else memory comes last;
- the tokens of a step trade one latency for another at any load, and smaller steps are tried before larger ones;
- of other flags nothing is known: the values next to today's; page sizes hardly ever matter.

A direction in which a value was worse is postponed, and not followed further before all else was tried. Where neither
seats nor steps alone are better, both at once may be: more seats with smaller steps, which is where latencies trade.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sweep.records import EngineSummary
from sweep.search_space import Options, Parameter, SearchSpace, canonical
from sweep.searcher.outcome import Told
from sweep.trial import Finished, Flag, Flags

_SEQS, _BATCHED = "max-num-seqs", "max-num-batched-tokens"
_UTILIZATION, _BLOCK = "gpu-memory-utilization", "block-size"
# From this share of its blocks held on a KV cache was full.
_FULL = 0.95
# A smaller step of the scheduler: to begin with a quarter of it.
_SMALLER = 0.25
# Values of one flag that are looked at; a finer grid is the model's to refine.
_MOST = 24
# Orders of axes: what binds, what trades, two of those at once, what is not known, what hardly matters, what cannot
# help. A direction that got worse waits until two at once were tried.
_BINDS, _TRADES, _BOTH, _UNKNOWN, _HARDLY, _NEVER = range(6)
_NUMBER = (int, float)


@dataclass(frozen=True, slots=True)
class _Move:
    """A value for one flag. Lower `order` comes first, then what is nearer to where its axis aims (`away`, octaves)."""

    name: str
    value: Flag
    order: int
    away: float


class Steps:
    """Steps in `space` from the best trial that was told, by the engine's counters of all that were heard."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._engines: dict[int, EngineSummary] = {}

    def hear(self, finished: Finished) -> None:
        """A launch ended."""
        if finished.engine is not None:
            self._engines[finished.number] = finished.engine

    def points(self, before: Sequence[Told], *, sure: bool = False) -> Iterator[dict[str, Flag]]:
        """Points to try next, the best first, by the trials told `before`; none before one was measured. `sure`: of
        flags alone whose effect is known."""
        best = _best(before)
        if best is None:
            return
        engine = self._engines.get(best.number)
        moves = [move for parameter in self._space.parameters for move in _moves(parameter, best.flags, engine)]
        worse = _worse(best, before)
        base = {
            parameter.name: _inside(parameter, best.flags.get(parameter.name)) for parameter in self._space.parameters
        }

        def order(move: _Move) -> tuple[bool, int, float]:
            beyond, failed = _passed(move, best.flags, worse)
            return beyond, max(move.order, _BOTH) if failed else move.order, move.away

        ranked = [(order(move), {move.name: move.value}) for move in moves]
        ranked += [((False, _BOTH, 10.0 + away), changes) for away, changes in _both(moves, best.flags)]
        for (beyond, place, _), changes in sorted(ranked, key=lambda one: one[0]):
            if sure and (beyond or place > _BOTH):
                return
            point = self._space.quantise({**base, **changes})
            if self._space.contains(point) and self._space.violated(point) is None:
                yield point


def _both(moves: Sequence[_Move], flags: Flags) -> Iterator[tuple[float, dict[str, Flag]]]:
    """Seats and steps changed at once, each to its next value; more seats with smaller steps first."""
    nearest: dict[tuple[str, bool], tuple[float, Flag]] = {}
    for move in moves:
        own = flags.get(move.name)
        if move.name not in (_SEQS, _BATCHED) or not isinstance(own, _NUMBER) or not isinstance(move.value, _NUMBER):
            continue
        side = (move.name, move.value > own)
        far = _octaves(float(move.value), float(own))
        if side not in nearest or far < nearest[side][0]:
            nearest[side] = far, move.value
    for place, (more, larger) in enumerate(((True, False), (False, True), (True, True), (False, False))):
        seats, steps = nearest.get((_SEQS, more)), nearest.get((_BATCHED, larger))
        if seats is not None and steps is not None:
            yield float(place), {_SEQS: seats[1], _BATCHED: steps[1]}


def _best(before: Sequence[Told]) -> Told | None:
    """The best measured trial: SLOs first, then the score, then the earlier."""
    complete = [told for told in before if told.outcome.kind == "complete"]

    def rank(told: Told) -> tuple[float, float, int]:
        missed = sum(max(0.0, excess) for excess in told.outcome.violations.values())
        return missed, told.outcome.value if told.outcome.value is not None else math.inf, told.number

    return min(complete, key=rank, default=None)


def _moves(parameter: Parameter, flags: Flags, engine: EngineSummary | None) -> Iterator[_Move]:
    own = flags.get(parameter.name)
    values = [value for value in _values(parameter, own) if canonical(value) != canonical(own)]
    if not isinstance(own, _NUMBER) or isinstance(own, bool):
        for place, value in enumerate(values):
            yield _Move(parameter.name, value, _UNKNOWN, float(place))
        return
    for value in values:
        if not isinstance(value, _NUMBER) or isinstance(value, bool):
            yield _Move(parameter.name, value, _UNKNOWN, 1.0)
            continue
        order, aim = _aim(parameter.name, float(own), value > own, engine)
        yield _Move(parameter.name, value, order, _octaves(float(value), aim))


def _aim(name: str, own: float, more: bool, engine: EngineSummary | None) -> tuple[int, float]:
    """How soon values of a flag on this side come, and which of them is aimed at."""
    pressed = engine is not None and ((engine.preemptions or 0) > 0 or (engine.peak_kv_usage_share or 0) >= _FULL)
    if name == _SEQS:
        if engine is None:
            return _TRADES, own * 2 if more else own / 2
        waited = (engine.peak_waiting or 0) > 0
        at_once = max((engine.peak_running or 0) + (engine.peak_waiting or 0), own)
        if more:
            return (_BINDS if waited and not pressed else _UNKNOWN), math.sqrt(own * at_once)
        return (_BINDS if pressed else _TRADES), min(own, at_once) / 2
    if name == _BATCHED:
        return _TRADES, own * (1 / _SMALLER if more else _SMALLER) + (1e-9 if more else 0.0)
    if name == _UTILIZATION:
        if pressed:
            return (_BINDS, own * 2) if more else (_NEVER, own)
        return (_UNKNOWN if engine is None and more else _NEVER), own
    return (_HARDLY if name == _BLOCK else _UNKNOWN), own


def _inside(parameter: Parameter, value: Flag) -> Flag:
    """`value`, or where it is none of the space's - today's flags may lie outside - one from the middle of it."""
    if parameter.contains(value):
        return value
    values = _values(parameter, None)
    return values[len(values) // 2]


def _octaves(value: float, aim: float) -> float:
    if value > 0 and aim > 0:
        return abs(math.log2(value / aim))
    return abs(value - aim)


def _values(parameter: Parameter, own: Flag) -> list[Flag]:
    """Values of a flag, all of them where they are few, else some around `own` and the ends."""
    size = parameter.size
    if size is not None and size <= _MOST:
        return list(parameter.options if isinstance(parameter, Options) else parameter.values())
    if isinstance(parameter, Options):
        return list(parameter.options)[:: math.ceil(parameter.size / _MOST)]
    low, high = float(parameter.low), float(parameter.high)
    found: list[Flag] = [*parameter.ends(), *([None] if parameter.or_null else [])]
    if isinstance(own, _NUMBER) and not isinstance(own, bool):
        quarter = (high - low) / 4
        wanted = [own * factor for factor in (0.25, 0.5, 2, 4)] if low > 0 else []
        wanted += [own - quarter, own + quarter, own - quarter / 4, own + quarter / 4]
        found += [_onto(parameter, one) for one in wanted if low <= one <= high]
    unique: Mapping[object, Flag] = {canonical(value): value for value in found}
    return list(unique.values())


def _onto(parameter: Parameter, value: float) -> Flag:
    """The value of a range that is nearest."""
    if isinstance(parameter, Options):  # pragma: no cover - ranges alone are asked for
        return value
    if parameter.count is not None:
        step = round((value - float(parameter.low)) / float(parameter.step or 1))
        return parameter.at(min(max(step, 0), parameter.count - 1))
    return round(value) if parameter.integer else parameter.quantise(value)


def _worse(best: Told, before: Sequence[Told]) -> list[tuple[str, float]]:
    """Steps from the best flags that were tried and did not help: the flag and its value."""
    found = []
    for told in before:
        names = {*told.flags, *best.flags}
        changed = [name for name in names if canonical(told.flags.get(name)) != canonical(best.flags.get(name))]
        value = told.flags.get(changed[0]) if len(changed) == 1 else None
        if isinstance(value, _NUMBER) and not isinstance(value, bool):
            found.append((changed[0], float(value)))
    return found


def _passed(move: _Move, flags: Flags, worse: Sequence[tuple[str, float]]) -> tuple[bool, bool]:
    """Whether the way from the best flags to `move` passes a step that did not help, and whether one lies that way."""
    own, value = flags.get(move.name), move.value
    if not isinstance(own, _NUMBER) or not isinstance(value, _NUMBER) or isinstance(own, bool):
        return False, False
    side = [one for name, one in worse if name == move.name and (one > own) is (value > own)]
    low, high = sorted((float(own), float(value)))
    return any(low < one < high for one in side), bool(side)
