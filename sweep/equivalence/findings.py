"""What a finished record says of flags that made no difference, for a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sweep.equivalence.binding import INERT
from sweep.equivalence.classes import EngineClasses
from sweep.equivalence.sentences import InertFlag
from sweep.equivalence.state import Pair, Rules
from sweep.search_space import Options, SearchSpace
from sweep.trial import SEARCHING, Finished


@dataclass(frozen=True, slots=True)
class Findings:
    """`flags`: from where on a flag makes no difference, and what repeats withdrew. `stands_for`: trials that were
    proved to be the same as an earlier one, by the number of that one; `checks` are all that were measured although
    they were proved to be, to see whether they are."""

    flags: tuple[InertFlag, ...] = ()
    stands_for: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    checks: tuple[Pair, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """A line for each of `flags`."""
        return tuple(one.sentence for one in self.flags)


def findings(finished: Iterable[Finished], rules: Rules) -> Findings:
    """Those of a record, by the values that were tried."""
    record = [one for one in finished if one.kind in SEARCHING]
    baseline = next((one.flags for one in record if one.number == 0), None)
    if baseline is None:
        return Findings()
    tried = {name: [one.flags.get(name) for one in record if name in one.flags] for name in INERT}
    numbers = {
        name: tuple(sorted({value for value in values if isinstance(value, (int, float))}))
        for name, values in tried.items()
    }
    space = SearchSpace(tuple(Options(name, values) for name, values in numbers.items() if len(values) > 1), (), {})
    classes = EngineClasses(space, baseline, rules)
    for one in record:
        classes.hear(one)
    stands_for: dict[int, tuple[int, ...]] = {}
    state = classes.state()
    for member, first in sorted(state.members().items()):
        stands_for[first] = (*stands_for.get(first, ()), member)
    return Findings(tuple(classes.flags()), stands_for, state.pairs)
