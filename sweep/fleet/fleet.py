"""The nodes of a joined cluster while a study runs: looked at when they come, left out and named when they fail."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Self

from sweep.cluster import ClusterNode, Needs, NodeLook, NodeLooks, alive_nodes, none_fits
from sweep.errors import ClusterLost, HostError
from sweep.fingerprint import Fingerprint
from sweep.flags import Dialect
from sweep.fleet.ask import needs_of, wanted_of
from sweep.fleet.choose import choose, has_accelerator
from sweep.node import NodeFacts
from sweep.prepare import Prepared

# So many trials in a row whose worker or node failed under them, and a node takes no more.
FAILURES = 2
_REFRESH_EVERY_S = 2.0
_WAIT_EVERY_S = 1.0
# A node that restarts, or a flaw of the network: so long a study without any node waits for one at least.
_LEAST_WAIT_S = 60.0


class Fleet:
    """Made by `gather`. `say` hears what a person should know of the nodes. `group`: the only one that takes part."""

    def __init__(
        self,
        looks: NodeLooks,
        needs: Needs,
        accelerator: str | None,
        say: Callable[[str], None],
        wait_s: float,
        group: str | None = None,
    ) -> None:
        self._looks, self._needs, self._accelerator, self._say = looks, needs, accelerator, say
        self._group = group
        self._wait_s = max(wait_s, _LEAST_WAIT_S)
        self._members: dict[str, NodeLook] = {}
        self._known: set[str] = set()
        self._failures: Counter[str] = Counter()
        self._lost_on: dict[int, set[str]] = {}
        self._next_s = 0.0
        self._empty_since_s: float | None = None
        self.left_out: dict[str, str] = {}

    @classmethod
    def gather(cls, prepared: Prepared, holder: str, say: Callable[[str], None], *, group: str | None = None) -> Self:
        """The fit nodes of one fingerprint of the cluster that is joined, all looked at before this returns.

        Raises HostError where none can take a trial, after `resources.wait_for_nodes`.
        """
        resources = prepared.config.resources
        wait_s = resources.wait_for_nodes or 0.0
        looks = NodeLooks(wanted_of(prepared, holder), prepared.setup.dialect)
        fleet = cls(looks, needs_of(prepared.config), resources.accelerator, say, wait_s, group)
        until_s = time.monotonic() + wait_s
        seen: dict[str, NodeLook] = {}
        while True:
            nodes = alive_nodes()
            fleet._known |= {node.id for node in nodes}
            new = [node for node in nodes if node.id not in seen and fleet._needs.fits(node.have)]
            seen |= {one.node.id: one for one in looks.all_of(new).values()}
            living = [seen[node.id] for node in nodes if node.id in seen]
            if new and fleet.take(tuple(living)):
                fleet._name_idle(nodes)
                return fleet
            if time.monotonic() >= until_s:
                raise HostError(fleet._why_none(nodes))
            time.sleep(_WAIT_EVERY_S)

    @property
    def nodes(self) -> Mapping[str, int]:
        """The nodes that take trials, and how many each holds at once."""
        return {name: self._room_of(one.node) for name, one in self._members.items()}

    @property
    def members(self) -> Mapping[str, NodeLook]:
        """What the nodes that take trials say of themselves."""
        return self._members

    def lost_on(self, number: int) -> frozenset[str]:
        """The nodes on which a trial failed of the node."""
        return frozenset(self._lost_on.get(number, ()))

    def fingerprint(self, known: Fingerprint) -> Fingerprint:
        """The study's with the devices and versions of the nodes; hosts only where it is one."""
        every = [one.facts for one in self._members.values() if one.facts is not None]
        first = every[0]
        gpus = min((one.gpus for one in every), key=len)
        alone = len(every) == 1
        return dataclasses.replace(
            known,
            vllm=first.vllm if known.vllm is None else known.vllm,
            gpus=gpus,
            driver=first.driver,
            cuda=first.cuda,
            torch=first.torch,
            python=first.python,
            cpu_model=first.cpu_model,
            cpu_cores=first.cpu_cores,
            ram_gib=first.ram_gib if alone else None,
            kernel=first.kernel if alone else None,
            hostname=first.hostname if alone else None,
        )

    def dialect(self, known: Dialect) -> Dialect:
        """What the vLLM of the nodes accepts: `known`, unless theirs is another version and told."""
        own = next((one.facts.dialect for one in self._members.values() if one.facts is not None), None)
        return known if own is None or own.version == known.version else own

    def refresh(self) -> bool:
        """Look for nodes that died or joined; to be called often. True when the nodes that take trials changed.

        Raises ClusterLost when there has been none for too long.
        """
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + _REFRESH_EVERY_S
        before = set(self._members)
        nodes = alive_nodes()
        living = {node.id for node in nodes}
        for name, one in list(self._members.items()):
            if one.node.id not in living:
                del self._members[name]
                self._say(f"node {name} is gone; what it ran goes on elsewhere")
        for node in nodes:
            if node.id not in self._known and self._needs.fits(node.have):
                self._known.add(node.id)
                own = self._looks.ask(node)
                if own is not None:
                    self._join(own)
        for answer in self._looks.poll():
            self._join(answer)
        self._wait_for_any(now_s)
        return set(self._members) != before

    def failed(self, name: str | None, number: int, why: str) -> None:
        """A trial failed of the node it ran on, as far as that is known: it goes elsewhere, and so may all others."""
        if name is None:
            return
        self._lost_on.setdefault(number, set()).add(name)
        self._failures[name] += 1
        if self._failures[name] >= FAILURES and len(self._members) > 1:
            self.leave_out(name, f"{FAILURES} trials in a row failed there, the last one: {why}")

    def worked(self, name: str | None) -> None:
        """A trial ran to its end there."""
        if name is not None:
            self._failures.pop(name, None)

    def leave_out(self, name: str, why: str) -> None:
        """This node takes no further trials."""
        if self._members.pop(name, None) is not None:
            self.left_out[name] = why
            self._say(f"node {name} is left out: {why}")

    def name_of(self, node_id: str | None) -> str | None:
        """The name of a node that takes trials, or took them."""
        if node_id is None:
            return None
        return next((one.node.name for one in self._members.values() if one.node.id == node_id), None)

    def _room_of(self, node: ClusterNode) -> int:
        fits = self._needs.fits(node.have)
        return fits if self._needs.gpus else min(fits, 10**3)

    def take(self, looks: tuple[NodeLook, ...], like: NodeFacts | None = None) -> bool:
        """Let those that are fit and alike take part, name the others; whether any takes part. `like`: see `choose`."""
        choice = choose(looks, self._needs, self._accelerator, like, self._group)
        taking = list(choice.taking_part)
        # The machine where the command is typed was checked by all that came before: what is scarce there is said.
        if not taking and not self._members and len(looks) == 1 and self._only_scarce(looks[0]):
            taking = [looks[0]]
            for fault in looks[0].faults:
                self._say(f"warning: {fault.line()}")
        names = {one.node.name for one in taking}
        self._members |= {one.node.name: one for one in taking}
        for name, why in choice.left_out.items():
            if name not in names and self.left_out.get(name) != why:
                self.left_out[name] = why
                self._say(f"node {name} is left out: {why}")
        return bool(taking)

    def _only_scarce(self, one: NodeLook) -> bool:
        alike = self._accelerator is None or has_accelerator(one, self._accelerator)
        return one.node.here and one.facts is not None and bool(one.faults) and alike

    def _join(self, one: NodeLook) -> None:
        like = next((other.facts for other in self._members.values()), None)
        if self.take((one,), like):
            self._say(f"node {one.node.name} joins: the baseline runs there first")

    def _name_idle(self, nodes: tuple[ClusterNode, ...]) -> None:
        for node in nodes:
            if not self._needs.fits(node.have):
                self._say(f"node {node.name} takes no trials: it has no room for one ({self._needs.words()})")

    def _why_none(self, nodes: tuple[ClusterNode, ...]) -> str:
        if not self.left_out:
            return none_fits(self._needs, nodes)
        name, why = next(iter(self.left_out.items()))
        more = f" ({len(self.left_out) - 1} more nodes are not fit)" if len(self.left_out) > 1 else ""
        return f"no node of the cluster is fit for this study: {name}: {why}{more}; python -m sweep.doctor shows all"

    def _wait_for_any(self, now_s: float) -> None:
        if self._members:
            self._empty_since_s = None
            return
        if self._empty_since_s is None:
            self._empty_since_s = now_s
            self._say(f"no node is left that takes trials; waiting {self._wait_s:.0f} s for one")
        if now_s - self._empty_since_s > self._wait_s:
            raise ClusterLost(f"no node that takes trials has come for {self._wait_s:.0f} s")
