"""What the plan of a night asks of those who propose trials and of what follows the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from sweep.trial import Finished, Flags, TrialSpec


class Proposes(Protocol):
    """What the plan asks of the optimiser."""

    def propose(self, number: int, pending: Sequence[Flags]) -> Flags | None:
        """Flags for trial `number`, or None when nothing is left."""

    def hear(self, finished: Finished) -> None:
        """A launch ended, of whatever kind."""


class Follows(Protocol):
    """What the plan asks once the search has ended."""

    def next(self, number: int, finished: Mapping[int, Finished], room: int | None) -> TrialSpec | None:
        """The next launch after the search as trial `number`, None for the end. `room`: launches that fit the time."""

    def least_launches(self) -> int:
        """How many launches are wanted if all goes well."""
