"""Ray: started here or joined, its nodes, what they have room for, and whether they are fit for a study."""

from __future__ import annotations

from sweep.cluster.nodes import ClusterNode, alive_nodes
from sweep.cluster.preflight import NodeLook, NodeLooks
from sweep.cluster.ray_up import first_line, ray_cluster
from sweep.cluster.room import Needs, none_fits, room_for, room_here

__all__ = [
    "ClusterNode",
    "Needs",
    "NodeLook",
    "NodeLooks",
    "alive_nodes",
    "first_line",
    "none_fits",
    "ray_cluster",
    "room_for",
    "room_here",
]
