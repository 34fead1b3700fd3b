"""What stands between a proposed point and its launch: a gate (it cannot work) and classes (it is measured already).

The searcher asks both before it gives a point out. Every answer is a pure function of the trial's number and of the
trials of lower number that were heard, in whatever order they were: a study that goes on proposes the same again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from sweep.trial import Finished, Flag, Flags


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a point is not launched.

    `reason` is one line for people, `rule` a stable word for those who count, `confidence` the probability that a
    launch would fail. `audit`: it is launched all the same, to see whether the gate is right.
    """

    reason: str
    rule: str
    confidence: float
    audit: bool = False


@dataclass(frozen=True, slots=True)
class Same:
    """A point whose measurement is known: that of `trial`. `audit`: it is measured all the same, to check that."""

    trial: int
    audit: bool = False


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A point that a proposal for trial `number` came to. Not launched, unless the refusal or the sameness is to be
    checked (`audit`). One of `refusal` and `same` is given."""

    number: int
    flags: Flags
    refusal: Refusal | None = None
    same: Same | None = None

    @property
    def audited(self) -> bool:
        """Whether it was launched all the same."""
        found = self.refusal or self.same
        return found is not None and found.audit


class Gate(Protocol):
    """Knows what cannot work."""

    def hear(self, finished: Finished) -> None:
        """A launch ended, of whatever kind; each number once, in any order."""

    def refusal(self, number: int, flags: Flags) -> Refusal | None:
        """Why trial `number` should not be launched with these searched flags; None where it may work."""


class Classes(Protocol):
    """Knows which points share a measurement."""

    def hear(self, finished: Finished) -> None:
        """A launch ended, of whatever kind; each number once, in any order."""

    def same_as(self, number: int, flags: Flags) -> Same | None:
        """The trial below `number` whose measurement these flags share; None where they are new."""

    def settled(self, number: int) -> Mapping[str, Flag]:
        """Flags that need no search any more, each with the value that every further proposal takes."""

    def verdict(self, number: int) -> str | None:
        """Why a search with nothing left could find nothing, in one line: no limit in the space is ever reached. None
        where one may be."""


class Guide(Gate, Classes, Protocol):
    """Both."""


@dataclass(frozen=True, slots=True)
class Guides:
    """A gate and classes as one guide. Without a gate nothing is refused, without classes every point is new."""

    gate: Gate | None = None
    classes: Classes | None = None

    def hear(self, finished: Finished) -> None:
        """Both hear it."""
        for part in (self.gate, self.classes):
            if part is not None:
                part.hear(finished)

    def refusal(self, number: int, flags: Flags) -> Refusal | None:
        """The gate's."""
        return None if self.gate is None else self.gate.refusal(number, flags)

    def same_as(self, number: int, flags: Flags) -> Same | None:
        """The classes'."""
        return None if self.classes is None else self.classes.same_as(number, flags)

    def settled(self, number: int) -> Mapping[str, Flag]:
        """The classes'."""
        return {} if self.classes is None else self.classes.settled(number)

    def verdict(self, number: int) -> str | None:
        """The classes'."""
        return None if self.classes is None else self.classes.verdict(number)
