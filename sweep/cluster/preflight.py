"""Whether the nodes are fit for a study: each looks at itself, in a task that Ray pins to it, before any trial."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sweep.cluster.nodes import ClusterNode
from sweep.cluster.ray_up import first_line
from sweep.flags import Dialect
from sweep.node import Fault, NodeFacts, Wanted, faults_of, look

# A worker's start, the imports, and vLLM's own help of a version that nobody has asked yet.
TIMEOUT_S = 180.0
_POLL_S = 0.05
_CLOCK_ASKS = 3


@dataclass(frozen=True, slots=True)
class NodeLook:
    """What one node says of itself, and what of it stands in the way. `facts` is None where it did not answer.

    `skew_s` is how far its clock is ahead of the driver's, None for the driver's own node.
    """

    node: ClusterNode
    facts: NodeFacts | None
    faults: tuple[Fault, ...]
    skew_s: float | None = None


class NodeLooks:
    """Looks at nodes, all at the same time. `dialect` is what the driver's vLLM knows, for the driver's own node."""

    def __init__(self, wanted: Wanted, dialect: Dialect | None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._wanted, self._dialect, self._timeout_s = wanted, dialect, timeout_s
        self._asked: dict[Any, tuple[ClusterNode, float]] = {}

    def ask(self, node: ClusterNode) -> NodeLook | None:
        """Begin to look at a node; the driver's own is looked at here, and its answer comes at once."""
        if node.here:
            return self._seen(node, look(self._wanted, self._dialect), None)
        task = _on(node, look).remote(self._wanted)
        self._asked[task] = (node, time.monotonic() + self._timeout_s)
        return None

    def poll(self) -> tuple[NodeLook, ...]:
        """The answers that came since, also of nodes that died or did not answer in time."""
        import ray

        ready, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0) if self._asked else ([], [])
        late = [task for task, (_, until_s) in self._asked.items() if time.monotonic() > until_s and task not in ready]
        answers = []
        for task in (*ready, *late):
            node, _ = self._asked.pop(task)
            answers.append(self._silent(node) if task in late else self._answer(node, task))
        return tuple(answers)

    def all_of(self, nodes: Iterable[ClusterNode]) -> Mapping[str, NodeLook]:
        """The answers of all these nodes by name, within the time limit."""
        found = {node.name: one for node in nodes if (one := self.ask(node)) is not None}
        while self._asked:
            found |= {one.node.name: one for one in self.poll()}
            time.sleep(_POLL_S)
        return found

    def _answer(self, node: ClusterNode, task: Any) -> NodeLook:
        import ray
        from ray.exceptions import RayError

        try:
            facts: NodeFacts = ray.get(task)
            skew_s = _skew_s(node)
        except (RayError, TimeoutError) as error:
            return NodeLook(node, None, (_no_answer(node, error),))
        return self._seen(node, facts, skew_s)

    def _seen(self, node: ClusterNode, facts: NodeFacts, skew_s: float | None) -> NodeLook:
        gpus = node.have.get("GPU", 0.0)
        return NodeLook(node, facts, faults_of(node.name, facts, self._wanted, gpus=gpus, skew_s=skew_s), skew_s)

    def _silent(self, node: ClusterNode) -> NodeLook:
        what = f"no answer within {self._timeout_s:.0f} s"
        return NodeLook(node, None, (Fault(node.name, what, "look at its load, and at Ray's logs there"),))


def _skew_s(node: ClusterNode) -> float:
    """How far a node's clock is ahead of this one, by the fastest of a few answers: wrong by half its time at most.

    The node's worker is up by now. Raises RayError and TimeoutError.
    """
    import ray

    asks = []
    for _ in range(_CLOCK_ASKS):
        asked_s, began_s = time.time(), time.monotonic()
        there_s: float = ray.get(_on(node, _clock).remote(), timeout=10.0)
        took_s = time.monotonic() - began_s
        asks.append((took_s, there_s - (asked_s + took_s / 2)))
    return min(asks)[1]


def _on(node: ClusterNode, function: Any) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    pinned = NodeAffinitySchedulingStrategy(node.id, soft=False)
    return ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=pinned)


def _clock() -> float:
    return time.time()


def _no_answer(node: ClusterNode, error: BaseException) -> Fault:
    text = str(error)
    if "ModuleNotFoundError" in text or "No module named" in text:
        line = next((line.strip() for line in text.splitlines() if "No module named" in line), "a module is missing")
        return Fault(node.name, line.split(": ", 1)[-1], "install sweep, of this version, beside Ray there")
    return Fault(node.name, f"does not answer: {first_line(error)}", "ray status shows whether it is up")
