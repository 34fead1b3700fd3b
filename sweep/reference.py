"""What each trial is a ratio to: the baseline, as it was measured last when the machine has drifted.

One launch differs from the next of the same flags by some per cent, so a baseline measured again replaces the first one
only where it differs by more than that. The one before a trial counts, not the nearest: a score that was told to the
search does not change afterwards, and a study that was cut short scores as one that was not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from sweep.trial import Finished, Flags, TrialKind, TrialStatus

# Of the score. Two launches of the same flags differ by 5 % (p95 TTFT, 1,000 requests) to 19 % (a shared CPU).
DRIFT_SHARE = 0.2


class Measured(Protocol):
    """What a trial that ended and one that is read back have in common."""

    @property
    def kind(self) -> TrialKind: ...
    @property
    def flags(self) -> Flags: ...
    @property
    def block(self) -> int | None: ...
    @property
    def number(self) -> int: ...
    @property
    def metrics(self) -> Mapping[str, float | None] | None: ...


def drifted(one: Finished) -> bool:
    """Whether a baseline that was measured again differs from the first by more than launches do."""
    measured = one.kind is TrialKind.DRIFT and one.status is TrialStatus.COMPLETE and not one.disturbed
    return measured and one.score is not None and abs(one.score - 1.0) > DRIFT_SHARE


def reference_number(finished: Mapping[int, Finished], number: int) -> int:
    """The trial whose metrics trial `number` is scored against: 0, or the last drifted baseline before it."""
    return max((n for n, one in finished.items() if n < number and drifted(one)), default=0)


def drift_notes(finished: Mapping[int, Finished]) -> list[str]:
    """A line for each time the baseline was measured again and had moved by more than launches differ."""
    return [
        f"drift: trial {number} measured today's flags again, {abs(one.score - 1):.0%} "
        f"{'worse' if one.score > 1 else 'better'} than trial {reference_number(finished, number)}, which is more than "
        "launches differ by; the trials after it are scored against it"
        for number, one in sorted(finished.items())
        if drifted(one) and one.score is not None
    ]


def reference_metrics(
    finished: Mapping[int, Finished], number: int, node: str | None = None
) -> Mapping[str, float | None] | None:
    """The metrics that trial `number` is scored against; None when the baseline has none.

    On a `node` other than that of trial 0 they are those of the baseline that was measured there before it.
    """
    one = finished.get(reference_trial(finished, number, node))
    return None if one is None else one.metrics


def reference_trial(finished: Mapping[int, Finished], number: int, node: str | None = None) -> int:
    """The trial of which `reference_metrics` are."""
    own = node_baseline(finished, node, before=number)
    return reference_number(finished, number) if own is None else own.number


def node_baseline(finished: Mapping[int, Finished], node: str | None, *, before: int | None = None) -> Finished | None:
    """The last baseline that a node has of its own, of those of lower number than `before`.

    None for the node of trial 0, whose baseline that is, and where there is none.
    """
    first = finished.get(0)
    if node is None or (first is not None and first.node == node):
        return None
    own = [
        number
        for number, one in finished.items()
        if one.kind is TrialKind.NODE
        and one.node == node
        and one.status is TrialStatus.COMPLETE
        and not one.disturbed
        and (before is None or number < before)
    ]
    return finished[max(own)] if own else None


def block_reference(trials: Iterable[Measured], block: int | None) -> Mapping[str, float | None] | None:
    """The metrics of the baseline's launch in a block of the confirmation; None before there is one."""
    every = sorted(trials, key=lambda one: one.number)
    baseline = next((one.flags for one in every if one.number == 0), None)
    same = (one for one in every if one.kind is TrialKind.CONFIRM and one.block == block and one.flags == baseline)
    return next((one.metrics for one in same if one.metrics is not None), None)
