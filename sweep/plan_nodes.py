"""The nodes of a cluster in the plan of a night: each measures the baseline before it takes trials of the search."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from sweep.reference import node_baseline
from sweep.trial import Finished, TrialKind, TrialSpec

# A node whose baseline was lost or disturbed once may try again; more, and it takes no trials.
NODE_TRIES = 2


def home(nodes: Mapping[str, int], finished: Mapping[int, Finished]) -> str | None:
    """Where launches that are compared with each other run: the node of trial 0, or the first that takes trials."""
    first = finished.get(0)
    if first is not None and first.node in nodes:
        return first.node
    return next((name for name in measured(nodes, finished)), min(nodes, default=None))


def home_room(nodes: Mapping[str, int] | None, finished: Mapping[int, Finished], concurrent: int) -> int:
    """How many trials the node of trial 0 holds at once; without a cluster all of them."""
    name = None if nodes is None else home(nodes, finished)
    return concurrent if nodes is None else min(concurrent, nodes[name]) if name is not None else 0


def measured(nodes: Iterable[str], finished: Mapping[int, Finished]) -> tuple[str, ...]:
    """The nodes that have a baseline to score their trials against, in order of name."""
    first = finished.get(0)
    own = None if first is None else first.node
    return tuple(sorted(name for name in nodes if name == own or node_baseline(finished, name) is not None))


def unmeasured(nodes: Iterable[str], finished: Mapping[int, Finished], live: Iterable[TrialSpec]) -> str | None:
    """The first node that has no baseline yet and is to measure it now; None where all have one, or are at it."""
    known, running = set(measured(nodes, finished)), {spec.node for spec in live if spec.kind is TrialKind.NODE}
    tries = [one.node for one in finished.values() if one.kind is TrialKind.NODE]
    waiting = sorted(name for name in nodes if name not in known | running and tries.count(name) < NODE_TRIES)
    return waiting[0] if waiting else None


def nodes_full(
    nodes: Mapping[str, int] | None,
    finished: Mapping[int, Finished],
    live: Collection[TrialSpec],
    again: Iterable[TrialSpec],
) -> bool:
    """Whether a trial must wait for a node: before trial 0 has ended for any, then for one that can score it.

    The baselines that are measured on further nodes, or will be `again`, take nothing from the others.
    """
    first = finished.get(0)
    if nodes is None or first is None or first.metrics is None:
        return nodes is not None and not nodes
    baselines = sum(spec.kind is TrialKind.NODE for spec in [*live, *again])
    return len(live) >= sum(nodes[name] for name in measured(nodes, finished)) + baselines
