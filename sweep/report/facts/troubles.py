"""What went wrong: failures by cause, and trials that were measured but do not count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sweep.store import StoredTrial
from sweep.trial import TrialKind


@dataclass(frozen=True, slots=True)
class Trouble:
    """One cause of failure, as the diagnosis matched it, and the trials it ended. `line` is the log's, None without."""

    failure_class: str
    phase: str
    policy: str
    line: str | None
    advice: str
    trials: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Disturbed:
    """A trial that was measured while something held the machine back."""

    number: int
    kind: TrialKind
    reasons: tuple[str, ...]


def troubles_of(trials: Iterable[StoredTrial]) -> tuple[Trouble, ...]:
    """Every cause, the most frequent first. Causes that differ only in the line they matched are one: the first's."""
    found: dict[tuple[str, str, str], list[StoredTrial]] = {}
    for one in trials:
        if one.failure is not None:
            key = (one.failure.failure_class, one.failure.phase, one.failure.advice)
            found.setdefault(key, []).append(one)
    troubles = []
    for (failure_class, phase, advice), of_cause in found.items():
        failures = [one.failure for one in of_cause if one.failure is not None]
        line = next((failure.line for failure in failures if failure.line), None)
        numbers = tuple(one.number for one in of_cause)
        troubles.append(Trouble(failure_class, phase, failures[0].policy, line, advice, numbers))
    return tuple(sorted(troubles, key=lambda one: (-len(one.trials), one.trials)))


def disturbed_of(trials: Iterable[StoredTrial]) -> tuple[Disturbed, ...]:
    """Every disturbed trial by number."""
    return tuple(Disturbed(one.number, one.kind, one.disturbances) for one in trials if one.disturbances)
