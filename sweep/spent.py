"""What a study has cost, and how its nodes differ: the lines at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sweep.store import StoredTrial
from sweep.trial import Flags, TrialKind, TrialStatus


def gpu_hours(trials: Iterable[StoredTrial], gpus: Callable[[Flags], int]) -> float:
    """Devices times hours of all trials, from the wait for devices to the end. `gpus`: those of a trial's flags.

    Of trials that a worker's death repeated only the last attempt counts: of the others nothing is stored.
    """
    return sum(gpus(one.flags) * one.total_s for one in trials) / 3600.0


def spent_lines(trials: Sequence[StoredTrial], gpus: Callable[[Flags], int]) -> list[str]:
    """The GPU hours of a study that used any, and where it had several nodes, a line for each."""
    hours = gpu_hours(trials, gpus)
    return [*([f"spent: {hours:.2f} GPU hours in {len(trials)} trials"] if hours else []), *node_lines(trials)]


def node_lines(trials: Sequence[StoredTrial]) -> list[str]:
    """Each node with its trials and how its own baseline compares with that of trial 0; none for a single node."""
    names = sorted({one.node for one in trials if one.node is not None})
    if len(names) < 2:
        return []
    home = next((one.node for one in trials if one.number == 0), None)
    return [f"node {name}: {_count(trials, name)} trials{_effect(trials, name, home)}" for name in names]


def _count(trials: Iterable[StoredTrial], name: str) -> int:
    return sum(one.node == name for one in trials)


def _effect(trials: Sequence[StoredTrial], name: str, home: str | None) -> str:
    if name == home:
        return ", where trial 0 ran"
    scores = [
        one.score
        for one in trials
        if one.kind is TrialKind.NODE and one.node == name and one.status is TrialStatus.COMPLETE
    ]
    if not scores or scores[-1] is None:
        return ", no baseline of its own"
    return f", its baseline scores {scores[-1]:.3f} of that of {home}: its trials are ratios to its own"
