"""The nodes that one trial may run on, with what it must know there."""

from __future__ import annotations

from collections.abc import Mapping

from sweep.fleet.fleet import Fleet
from sweep.objective import Objective
from sweep.plan_nodes import measured
from sweep.reference import node_baseline
from sweep.trial import SEARCHING, Finished, TrialKind, TrialSpec
from sweep.wire import Place

# A race compares requests across nodes: where their baselines differ by more, the node would be stopped, not the flags.
_RACED_WITHIN = 0.05


def places_for(
    spec: TrialSpec, fleet: Fleet, finished: Mapping[int, Finished], objective: Objective
) -> dict[str, Place]:
    """By Ray's id of each node: those that have measured the baseline, none of those that this trial was lost on.

    Where that leaves none, also those: better there than never. A trial that is pinned gets its node alone.
    """
    members = fleet.members
    if spec.node is not None:
        names = [spec.node] if spec.node in members else []
    elif spec.kind is TrialKind.SEARCH:
        names = list(measured(members, finished))
    else:
        names = sorted(members)
    names = [name for name in names if name not in fleet.lost_on(spec.number)] or names
    places = {}
    for name in names:
        own = node_baseline(finished, name, before=spec.number) if spec.kind in SEARCHING else None
        facts = members[name].facts
        assert facts is not None  # only a node that answered takes part
        places[members[name].node.id] = Place(
            name=name,
            shared=facts.shared or members[name].node.here,
            baseline=None if own is None else own.metrics,
            raced=own is None or _near(own, finished, objective),
            others=spec.node is None and len(members) > 1,
            resting=tuple((one.index, one.used_gib, one.mig_index) for one in facts.resting),
        )
    return places


def _near(own: Finished, finished: Mapping[int, Finished], objective: Objective) -> bool:
    first = finished.get(0)
    if first is None or first.metrics is None or own.metrics is None:
        return False
    value = objective.score(own.metrics, first.metrics).value
    return value is not None and abs(value - 1.0) <= _RACED_WITHIN
