"""What the plan of a night asks of those who propose trials and of what follows the search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from sweep.trial import Finished, Flags, TrialKind, TrialSpec, TrialStatus

_RECENT = 5


class NothingLeft(Exception):
    """No further trial is worth its time; the message says why, as a clause."""


class Proposes(Protocol):
    """What the plan asks of the optimiser."""

    def propose(self, number: int, pending: Sequence[Flags]) -> Flags | None:
        """Flags for trial `number`, None when nothing is left. Raises NothingLeft where it has a reason of its own."""

    def ended(self, number: int) -> str:
        """Why nothing was left to propose for trial `number`, in one line."""

    def hear(self, finished: Finished) -> None:
        """A launch ended, of whatever kind."""


def proposed(proposer: Proposes, number: int, pending: Sequence[Flags]) -> tuple[Flags | None, str | None]:
    """Flags for trial `number`, or why there are none; without a reason while what is `pending` may show more."""
    try:
        flags = proposer.propose(number, pending)
    except NothingLeft as reason:
        return None, str(reason)
    return flags, None if flags is not None or pending else proposer.ended(number)


class Follows(Protocol):
    """What the plan asks once the search has ended."""

    def next(self, number: int, finished: Mapping[int, Finished], room: int | None) -> TrialSpec | None:
        """The next launch after the search as trial `number`, None for the end. `room`: launches that fit the time."""

    def least_launches(self) -> int:
        """How many launches are wanted if all goes well."""


def expected_trial_s(ended: Iterable[Finished]) -> float | None:
    """How long a further trial takes at most, by the last few whole ones; None before one has ended."""
    timed = [one for one in ended if one.total_s is not None and one.kind is not TrialKind.CALIBRATION]
    # A start that fails at once says nothing of how long one takes that does not.
    whole = [one for one in timed if one.status is TrialStatus.COMPLETE] or timed
    return max((one.total_s or 0.0 for one in whole[-_RECENT:]), default=None)
