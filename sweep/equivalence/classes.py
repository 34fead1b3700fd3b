"""`sweep.guide.Classes` by what the engine's counters prove."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping
from itertools import product

from sweep.equivalence.binding import INERT, changed, inert
from sweep.equivalence.evidence import BATCHED, SEQS, UTILIZATION, Evidence
from sweep.equivalence.sentences import InertFlag, inert_flag
from sweep.equivalence.state import Rules, State
from sweep.guide import Same
from sweep.search_space import Options, Parameter, Range, SearchSpace
from sweep.trial import SEARCHING, Finished, Flag, Flags, TrialStatus

# Repeats that check the proofs: so many at once, and one more with every so many trials.
_CHECKS, _EVERY = 2, 20
# A dimension is dropped once it is inert for so many trials that are within this of the best, and nothing else is.
_PROMISING, _WITHIN = 3, 1.1


class EngineClasses:
    """Which points of `space` share a measurement with a trial.

    Some repeats are launched all the same, to check: their flags are withdrawn from all proofs when they disagree
    beyond noise. An answer for a trial number is a pure function of the launches of lower number.
    """

    def __init__(self, space: SearchSpace, baseline: Flags, rules: Rules) -> None:
        self._space, self._baseline = space, baseline
        self._heard: dict[int, Finished] = {}
        self._chain: list[tuple[int, State]] = [(-1, State(rules))]

    def hear(self, finished: Finished) -> None:
        """A launch ended, of whatever kind; each number once, in any order."""
        self._heard[finished.number] = finished
        # A late result changes what all later ones are compared with.
        del self._chain[bisect.bisect_left(self._chain, finished.number, key=lambda link: link[0]) :]

    def state(self, number: int | None = None) -> State:
        """What the launches below `number` say, all of them by default."""
        last, state = self._chain[-1]
        for later in sorted(one for one in self._heard if one > last):
            state = state.after(self._heard[later])
            self._chain.append((later, state))
        if number is None:
            return self._chain[-1][1]
        return self._chain[bisect.bisect_left(self._chain, number, key=lambda link: link[0]) - 1][1]

    def same_as(self, number: int, flags: Flags) -> Same | None:
        """The trial below `number` whose measurement these flags share; None where they are new."""
        state = self.state(number)
        seen = state.same(number, flags)
        if seen is None:
            return None
        return Same(seen.number, audit=len(state.pairs) < _CHECKS + number // _EVERY)

    def settled(self, number: int) -> Mapping[str, Flag]:
        """The searched flags that made no difference to any promising trial, over their whole range."""
        state = self.state(number)
        promising = _promising(state)
        if len(promising) < _PROMISING:
            return {}
        found: dict[str, Flag] = {}
        for parameter in self._space.parameters:
            values = _ends(parameter)
            if parameter.name in INERT and parameter.name not in state.withdrawn and len(values) > 1:
                points = [{**seen.flags, parameter.name: value} for seen in promising for value in values]
                if all(
                    self._inert(state, number, seen, point)
                    for seen, point in zip((one for one in promising for _ in values), points, strict=True)
                ):
                    found[parameter.name] = self._preferred(parameter, promising[0])
        return found

    def verdict(self, number: int) -> str | None:
        """Why a search that has nothing left to propose could find nothing: no limit in the space is ever reached at
        this load. None where one may be. Flags without a counter that could prove it have been tried by then."""
        state = self.state(number)
        first = next((seen for seen in state.evidence if seen.number == 0), None)
        free = [parameter for parameter in self._space.parameters if parameter.size != 1]
        limits = [parameter for parameter in free if parameter.name in INERT]
        others = [parameter for parameter in free if parameter.name not in INERT]
        if first is None or state.withdrawn or not limits or any(one.size is None for one in others):
            return None
        ends = [_ends(parameter) for parameter in limits]
        for values in product(*ends):
            point = {**first.flags, **dict(zip((one.name for one in limits), values, strict=True))}
            if not self._inert(state, number, first, point):
                return None
        if not all(ends):
            return None
        whys = "; ".join(inert_flag(first, parameter.name, None).sentence for parameter in limits)
        what = "nothing in the search space makes a difference at this load"
        if others:
            what = (
                f"{', '.join(one.name for one in others)} was tried, and no other flag makes a difference at this load"
            )
        return (
            f"{what} ({whys}): raise load.request_rate (load.calibrate: true finds where waiting begins), or search "
            "other flags"
        )

    def preferred(self, flags: Flags) -> Flags:
        """The point to choose of all that are provably the same as the measured `flags`: the baseline's values as far
        as that goes, otherwise less utilization."""
        state = self.state()
        seen = next((one for one in state.evidence if changed(one.flags, flags) == ()), None)
        point = dict(flags)
        for parameter in self._space.parameters if seen is not None else ():
            name = parameter.name
            if name not in INERT or name in state.withdrawn or seen is None:
                continue
            less = sorted(v for v in _candidates(parameter, seen, state) if isinstance(v, (int, float)))
            for value in (self._baseline.get(name), *(less if name == UTILIZATION else ())):
                other = {**point, name: value}
                if self._space.violated(other) is None and self._inert(state, _LAST, seen, other):
                    point = other
                    break
        return point

    def sentences(self) -> Iterator[str]:
        """`flags`, for people."""
        return (one.sentence for one in self.flags())

    def flags(self) -> Iterator[InertFlag]:
        """From where on each searched flag makes no difference, and what was withdrawn."""
        state = self.state()
        promising = _promising(state)
        for parameter in self._space.parameters:
            name = parameter.name
            if name in state.withdrawn:
                yield InertFlag(name, False, None, state.withdrawn[name], None)
            elif name in INERT and promising and (found := self._from_where(state, parameter, promising[0])):
                yield found

    def _from_where(self, state: State, parameter: Parameter, seen: Evidence) -> InertFlag | None:
        """The lowest value of the range that is proved to change nothing for the best trial; None where none is."""
        low = (_ends(parameter) or (None,))[0]
        values = sorted({v for v in _candidates(parameter, seen, state) if isinstance(v, (int, float))})
        kept = [v for v in values if self._inert(state, _LAST, seen, {**seen.flags, parameter.name: v})]
        lowest = next((v for v in values if all(other in kept for other in values if other >= v)), None)
        if lowest is None or len([v for v in values if v >= lowest]) < 2:
            return None
        return inert_flag(seen, parameter.name, None if lowest == low else lowest)

    def _inert(self, state: State, number: int, seen: Evidence, point: Flags) -> bool:
        names = changed(seen.flags, point)
        if names == ():
            return True
        return names is not None and inert(seen, state.limits(number, point), names)

    def _preferred(self, parameter: Parameter, best: Evidence) -> Flag:
        """The baseline's value; where that is none of the space's, the lowest utilization, else the best trial's."""
        usual = self._baseline.get(parameter.name)
        if parameter.contains(usual):
            return parameter.quantise(usual)
        own = parameter.quantise(best.flags.get(parameter.name))
        return _ends(parameter)[0] if parameter.name == UTILIZATION or not parameter.contains(own) else own


_LAST = 10**9


def _promising(state: State) -> list[Evidence]:
    """The trials close to the best, best first; none of them where one of them has no evidence."""
    measured = [
        one
        for one in state.heard
        if one.kind in SEARCHING and one.status is TrialStatus.COMPLETE and one.score is not None
    ]
    if not measured:
        return []
    kept = [one for one in measured if all(excess <= 0 for excess in one.violations.values())] or measured
    best = min(one.score for one in kept if one.score is not None)
    close = {one.number for one in kept if one.score is not None and one.score <= best * _WITHIN}
    found = sorted((seen for seen in state.evidence if seen.number in close), key=lambda seen: seen.score)
    return found if len(found) == len(close) else []


def _candidates(parameter: Parameter, seen: Evidence, state: State) -> Iterator[Flag]:
    """Values from which on a flag may not matter: the options, or the ends, what was tried and what was used."""
    if isinstance(parameter, Options):
        yield from (value for value in parameter.options if not isinstance(value, bool))
        return
    used = {SEQS: seen.running, BATCHED: seen.step_tokens}.get(parameter.name)
    tried = [one.flags.get(parameter.name) for one in state.heard]
    for value in (*_ends(parameter), *tried, None if used is None else math.ceil(used)):
        if value is not None and float(parameter.low) <= float(value) <= float(parameter.high):
            yield value


def _ends(parameter: Parameter) -> tuple[Flag, ...]:
    """The lowest and the highest value; nothing where one is no number: vLLM's own choice is not known here."""
    if isinstance(parameter, Range):
        if parameter.or_null:
            return ()
        if parameter.count is not None:
            return tuple(dict.fromkeys((parameter.at(0), parameter.at(parameter.count - 1))))
        return tuple(
            dict.fromkeys(int(end) if parameter.integer else float(end) for end in (parameter.low, parameter.high))
        )
    numbers = [one for one in parameter.options if isinstance(one, (int, float)) and not isinstance(one, bool)]
    if len(numbers) < len(parameter.options):
        return ()
    return tuple(dict.fromkeys((min(numbers), max(numbers))))
