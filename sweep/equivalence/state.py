"""What the launches up to some number say: evidence, repeats that check it, and what they withdrew."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sweep.equivalence.binding import Limits, changed, inert, limits_of
from sweep.equivalence.evidence import Evidence, evidence_of
from sweep.search_space import flags_key
from sweep.trial import SEARCHING, Finished, Flags, TrialKind, TrialStatus

# A repeat that differs by so many standard deviations of a difference says that two points are not the same.
_DISAGREES = 2.5
# Degrees of freedom that the assumed noise counts for beside what repeats show.
_PRIOR_DF = 10.0

Capacity = Callable[[int, Flags], float | None]


@dataclass(frozen=True, slots=True)
class Pair:
    """A trial whose flags were proved to be the same as those of `first`, in all but the `names`, and was measured all
    the same. `log_ratio` of their scores; None where it did not even start."""

    number: int
    first: int
    names: tuple[str, ...]
    log_ratio: float | None


@dataclass(frozen=True, slots=True)
class Rules:
    """What stays the same in a study. `launch_sd`: standard deviation of the log score between launches of equal flags,
    as assumed before any was launched twice. `capacity`: KV tokens that flags have at least, by the memory model as it
    stood before a trial number; None where it does not know."""

    fixed: Mapping[str, object]
    launch_sd: float
    capacity: Capacity | None = None


@dataclass(frozen=True, slots=True)
class State:
    """After the launches `heard`, in order of number."""

    rules: Rules
    heard: tuple[Finished, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    pairs: tuple[Pair, ...] = ()
    repeats: tuple[float, ...] = ()  # log ratios of launches with the very same flags
    withdrawn: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def sd(self) -> float:
        """Standard deviation of the log score between launches: the assumed one, moved by the repeats."""
        found = sum(one * one / 2 for one in self.repeats)
        return math.sqrt((_PRIOR_DF * self.rules.launch_sd**2 + found) / (_PRIOR_DF + len(self.repeats)))

    def same(self, number: int, flags: Flags) -> Evidence | None:
        """The first measured trial that `flags` provably do not differ from, other than in the flags themselves."""
        limits: Limits | None = None
        for seen in self.evidence:
            names = changed(seen.flags, flags)
            if not names or any(name in self.withdrawn for name in names):
                continue
            limits = self.limits(number, flags) if limits is None else limits
            if inert(seen, limits, names):
                return seen
        return None

    def limits(self, number: int, flags: Flags) -> Limits:
        """Those of flags that trial `number` might be launched with."""
        capacity = self.rules.capacity
        known = None if capacity is None else (lambda flags: capacity(number, flags))
        return limits_of(flags, self.rules.fixed, self.heard, known)

    def after(self, finished: Finished) -> State:
        """With one more launch, whose number is above all that were heard."""
        if finished.kind not in (*SEARCHING, TrialKind.DRIFT) or finished.disturbed:
            return self
        heard, evidence, pairs, repeats = (*self.heard, finished), self.evidence, self.pairs, self.repeats
        if (own := evidence_of(finished, self.rules.fixed)) is not None:
            evidence = (*evidence, own)
        measured = finished.status is TrialStatus.COMPLETE and finished.score is not None and finished.score > 0
        if finished.kind in SEARCHING and (measured or finished.status is TrialStatus.INFEASIBLE):
            # With the KV cache that it was found to have.
            first = dataclasses.replace(self, heard=heard).same(finished.number, finished.flags)
            if first is not None:
                names = changed(first.flags, finished.flags) or ()
                ratio = math.log(finished.score / first.score) if measured and finished.score else None
                pairs = (*pairs, Pair(finished.number, first.number, names, ratio))
        if measured and finished.score:
            key = flags_key(finished.flags)
            earlier = next((e for e in self.evidence if flags_key(e.flags) == key), None)
            if earlier is not None:
                repeats = (*repeats, math.log(finished.score / earlier.score))
        grown = dataclasses.replace(self, heard=heard, evidence=evidence, pairs=pairs, repeats=repeats)
        return dataclasses.replace(grown, withdrawn={**self.withdrawn, **grown._disagreements()})

    def _disagreements(self) -> dict[str, str]:
        """The flags whose repeats differ beyond noise, one by one or on average, each with what was seen."""
        found: dict[str, str] = {}
        for pair in self.pairs:
            if pair.log_ratio is None:
                text = f"trial {pair.number} did not start, where trial {pair.first} did"
            elif abs(pair.log_ratio) <= _DISAGREES * self.sd * math.sqrt(2):
                continue
            else:
                text = f"trials {pair.first} and {pair.number} differ by {math.expm1(abs(pair.log_ratio)):.0%}"
            found |= {name: text for name in pair.names if name not in self.withdrawn}
        for name in {name for pair in self.pairs for name in pair.names}:
            ratios = [p.log_ratio for p in self.pairs if name in p.names and p.log_ratio is not None]
            mean = sum(ratios) / len(ratios) if ratios else 0.0
            if len(ratios) > 1 and abs(mean) > _DISAGREES * self.sd * math.sqrt(2 / len(ratios)):
                found.setdefault(name, f"{len(ratios)} repeats differ by {math.expm1(abs(mean)):.0%} on average")
        return found

    def members(self) -> Mapping[int, int]:
        """For each trial that was proved to be the same as an earlier one, the first of its class."""
        first: dict[int, int] = {}
        for pair in self.pairs:
            if not any(name in self.withdrawn for name in pair.names):
                first[pair.number] = first.get(pair.first, pair.first)
        return first
