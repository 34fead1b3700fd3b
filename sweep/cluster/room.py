"""What a trial asks of Ray, and how many of them a node or a cluster holds at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sweep.cluster.nodes import ClusterNode, alive_nodes
from sweep.errors import HostError

_NAMED_NODES = 6


@dataclass(frozen=True, slots=True)
class Needs:
    """The resources of one trial, all of one node: a server of several devices talks between them all the time.

    `custom` are further resources by Ray's names.
    """

    gpus: int
    cpus: float
    memory_gib: float | None = None
    custom: Mapping[str, float] = field(default_factory=dict)

    def bundle(self) -> dict[str, float]:
        """The same by Ray's names, what is zero left out."""
        memory = (self.memory_gib or 0.0) * 2**30
        every = {"CPU": self.cpus, "GPU": float(self.gpus), "memory": memory, **self.custom}
        return {name: amount for name, amount in every.items() if amount}

    def fits(self, have: Mapping[str, float]) -> int:
        """How many trials a node that has these resources holds at once; 10**6 where nothing limits them."""
        return min((int(have.get(name, 0.0) / amount + 1e-9) for name, amount in self.bundle().items()), default=10**6)

    def words(self) -> str:
        """The same for a person: `4 GPUs, 1 CPU and 64 GiB of memory`."""
        return self._counted(self.gpus, self.cpus, f"{self.memory_gib or 0:g}", self.custom)

    def words_had(self, have: Mapping[str, float]) -> str:
        """What a node has of each of them, with the units."""
        custom = {name: have.get(name, 0.0) for name in self.custom}
        memory_gib = have.get("memory", 0.0) / 2**30
        return self._counted(have.get("GPU", 0.0), have.get("CPU", 0.0), f"{memory_gib:.0f}", custom)

    def _counted(self, gpus: float, cpus: float, memory_gib: str, custom: Mapping[str, float]) -> str:
        parts = [f"{gpus:g} GPU{'' if gpus == 1 else 's'}", f"{cpus:g} CPU{'' if cpus == 1 else 's'}"]
        parts += [] if self.memory_gib is None else [f"{memory_gib} GiB of memory"]
        parts += [f"{amount:g} {name}" for name, amount in custom.items()]
        return f"{', '.join(parts[:-1])} and {parts[-1]}"

    def words_of(self, have: Mapping[str, float]) -> str:
        """What a node has of each of them."""
        parts = [f"{have.get('GPU', 0.0):g}", f"{have.get('CPU', 0.0):g}"]
        parts += [] if self.memory_gib is None else [f"{have.get('memory', 0.0) / 2**30:.0f} GiB"]
        parts += [f"{have.get(name, 0.0):g}" for name in self.custom]
        return f"{', '.join(parts[:-1])} and {parts[-1]}"


def room_for(needs: Needs, asked: int | None, nodes: Sequence[ClusterNode] | None = None) -> int:
    """How many trials run at once on these nodes, by default all that live. Raises HostError when none can take one."""
    every = alive_nodes() if nodes is None else nodes
    each = [needs.fits(node.have) for node in every]
    if not any(each):
        raise HostError(none_fits(needs, every))
    # Without devices a node would take as many servers as it has CPUs, which says nothing of what they can bear.
    room = sum(each) if needs.gpus or asked else sum(map(bool, each))
    return max(1, min(room, asked or room))


def none_fits(needs: Needs, nodes: Sequence[ClusterNode]) -> str:
    """The line of a trial that no node of these could ever take."""
    mend = "see resources in the study file"
    if len(nodes) == 1:
        return f"a trial needs {needs.words()}, but {nodes[0].name} has {needs.words_had(nodes[0].have)}; {mend}"
    best = sorted(nodes, key=lambda node: (-node.have.get("GPU", 0.0), -node.have.get("CPU", 0.0), node.name))
    named = [f"{node.name} {needs.words_of(node.have)}" for node in best[:_NAMED_NODES]]
    more = f" and {len(best) - _NAMED_NODES} nodes with less" if len(best) > _NAMED_NODES else ""
    return f"a trial needs {needs.words()} of one node, but of these the nodes have: {'; '.join(named)}{more}; {mend}"


def room_here(needs: Needs, asked: int | None) -> int:
    """What `room_for` would say of a Ray started here, without starting one: by Ray's own count of this machine."""
    from ray._private.resource_and_label_spec import ResourceAndLabelSpec
    from ray._private.utils import get_num_cpus, get_system_memory

    _, gpus = ResourceAndLabelSpec._get_current_node_accelerator(None, {})
    # Ray keeps a share of the memory for its objects and itself; a study's Ray asks for a small store.
    have = {"CPU": float(get_num_cpus()), "GPU": float(gpus), "memory": float(get_system_memory())}
    return room_for(needs, asked, [ClusterNode("", "this machine", have, here=True)])
