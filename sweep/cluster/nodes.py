"""The nodes of the cluster that is joined, by a name that lasts as long as the machine keeps it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

_ID_LETTERS = 6


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A living node. `id` is Ray's, new each time Ray is started there; `name` is its `--node-name`, or its host name.

    `have` is what Ray counts there in all, used or not. `here`: whether it is the driver's own.
    """

    id: str
    name: str
    have: Mapping[str, float] = field(default_factory=dict)
    here: bool = False


def alive_nodes() -> tuple[ClusterNode, ...]:
    """The living nodes by name. Nodes that share a name get a piece of their id with it."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    found = [one for one in ray.nodes() if one["Alive"]]
    names = {one["NodeID"]: _name(one) for one in found}
    times = Counter(names.values())
    nodes = [
        ClusterNode(
            id=one["NodeID"],
            name=name if times[name := names[one["NodeID"]]] == 1 else f"{name}-{one['NodeID'][:_ID_LETTERS]}",
            have=dict(one["Resources"]),
            here=one["NodeID"] == own,
        )
        for one in found
    ]
    return tuple(sorted(nodes, key=lambda node: node.name))


def _name(node: Mapping[str, str]) -> str:
    """Ray fills in the address where nobody named the node; a host name says more."""
    name, address = node.get("NodeName") or "", node.get("NodeManagerAddress") or ""
    return (node.get("NodeManagerHostname") or address) if name in ("", address) else name
