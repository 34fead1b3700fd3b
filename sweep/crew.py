"""The nodes of a cluster in a running study: where trials may run, where they are, what their ends say of a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sweep.fleet import Fleet, places_for
from sweep.handover import start_intake
from sweep.plan import StudyPlan
from sweep.plan_nodes import NODE_TRIES
from sweep.prepare import Prepared
from sweep.study_folder import StudyFolder
from sweep.trainable import Worker
from sweep.trial import Finished, TrialKind, TrialSpec, TrialStatus
from sweep.wire import PLACES, SPEC, places_to_config


class Crew:
    """Keeps the plan's nodes those of the fleet. `asked`: trials at once, None for what the nodes hold."""

    def __init__(
        self, fleet: Fleet, plan: StudyPlan, worker: Worker, asked: int | None, say: Callable[[str], None]
    ) -> None:
        self._fleet, self._plan, self._worker, self._asked, self._say = fleet, plan, worker, asked, say
        self._actors: dict[int, str] = {}
        self._stranded: set[int] = set()
        self._given: dict[int, str] = {}
        self._one_each = False
        self._causes: dict[int, Finished] = {}
        self._intake: Any = None
        self._adopt()

    def step(self, trials: list[Any]) -> None:
        """Called all the time with Ray's trials. Raises ClusterLost where no node has been left for too long."""
        for one in trials[-self._recent() :]:
            actor = one.temporary_state.ray_actor
            if actor is not None:
                self._actors[one.config[SPEC]["number"]] = actor._actor_id.hex()
        if self._fleet.refresh():
            self._adopt()

    def places(self, spec: TrialSpec) -> dict[str, Any]:
        """The nodes that a trial may run on, for its Ray config."""
        self._actors.pop(spec.number, None)
        self._given.pop(spec.number, None)
        places = places_for(spec, self._fleet, self._plan.finished, self._worker.setup.objective)
        if self._one_each:  # Ray would put two on one node where they fit
            taken = {self._given[number] for number in self._plan.live if number in self._given}
            free = sorted((place.name, key) for key, place in places.items() if place.name not in taken)
            places = {free[0][1]: places[free[0][1]]} if free else places
            self._given[spec.number] = next((place.name for place in places.values()), "")
        if self._intake is None and not all(place.shared for place in places.values()):
            self._intake = start_intake(self._worker.intake, self._worker.setup.folder, self._worker.holder)
        # Without any the trial waits, is found to be stranded and taken back: the plan then knows better.
        return places_to_config(places) or {"none": {}}

    def stranded(self, config: dict[str, Any]) -> bool:
        """Whether no node is left of those that a waiting trial may run on."""
        living = {one.node.id for one in self._fleet.members.values()}
        if living.intersection(config[PLACES]):
            return False
        self._stranded.add(config[SPEC]["number"])
        return True

    def never_started(self, spec: TrialSpec) -> bool:
        """Whether this trial was stranded; asked once for each time it was."""
        if spec.number not in self._stranded:
            return False
        self._stranded.remove(spec.number)
        return True

    def lost(self, spec: TrialSpec) -> None:
        """The worker of a trial is gone, or its node."""
        self._causes.pop(spec.number, None)
        name = self._fleet.name_of(self._node_of(spec.number))
        self._fleet.failed(name, spec.number, f"the worker of trial {spec.number} died")
        self._adopt()

    def failed(self, finished: Finished) -> None:
        """A trial says that its node was in the way."""
        self._causes[finished.number] = finished
        self._fleet.failed(finished.node, finished.number, finished.line_of_cause())
        self._adopt()

    def cause(self, spec: TrialSpec) -> Finished | None:
        """How a trial that runs again ended on its last node; None where its worker died."""
        return self._causes.get(spec.number)

    def ended(self, finished: Finished) -> None:
        """A trial is stored: its node works, unless it could not even measure the baseline."""
        measured = finished.status in (TrialStatus.COMPLETE, TrialStatus.CENSORED)
        if finished.kind is TrialKind.NODE and (not measured or self._tried(finished.node) >= NODE_TRIES):
            if finished.node is not None and (not measured or finished.disturbed):
                cause = finished.line_of_cause() if not measured else "it was disturbed each time"
                self._fleet.leave_out(finished.node, f"its baseline cannot be used: {cause}")
        elif measured:
            self._fleet.worked(finished.node)
        self._adopt()

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Ray pickles a callback's parts into its own experiment state, which is never restored."""
        return {}

    def _tried(self, node: str | None) -> int:
        return sum(one.kind is TrialKind.NODE and one.node == node for one in self._plan.finished.values())

    def _adopt(self) -> None:
        nodes = dict(self._fleet.nodes)
        self._one_each = self._plan.one_a_node or not (self._worker.setup.uses_gpus or self._asked)
        if self._one_each:  # without devices as on one machine
            nodes = dict.fromkeys(nodes, 1)
        self._plan.nodes = nodes
        room = sum(nodes.values())
        self._plan.concurrent = max(1, min(room, self._asked or room))

    def _recent(self) -> int:
        """Ray keeps all trials of a night in order; only the last ones can be alive."""
        return 4 * self._plan.concurrent + 16

    def _node_of(self, number: int) -> str | None:
        """Ray's id of the node that had a trial's worker last, from its table of actors."""
        from ray._private.state import actors

        actor = self._actors.pop(number, None)
        found = {} if actor is None else actors(actor)
        return (found or {}).get("Address", {}).get("NodeID") or None


def join(
    prepared: Prepared, folder: StudyFolder, say: Callable[[str], None], *, group: str | None = None
) -> tuple[Prepared, Fleet]:
    """The nodes of the cluster that take part, and the study with what they are, recorded. `group`: the only nodes that
    may. Raises UserError."""
    fleet = Fleet.gather(prepared, folder.holder(folder.path), say, group=group)
    setup = replace(prepared.setup, dialect=fleet.dialect(prepared.setup.dialect))
    prepared = replace(prepared, setup=setup, fingerprint=fleet.fingerprint(prepared.fingerprint))
    for line in folder.adopt(prepared.fingerprint, prepared.config.model_dump(mode="json"), prepared.redactor):
        say(line)
    return prepared, fleet
