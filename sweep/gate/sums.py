"""Sums of memory for flags, each computed once: points that were refused are judged anew at every proposal."""

from __future__ import annotations

from sweep.gate.knowledge import Knowledge
from sweep.memory import Device, Launch, Model, Parts, Unknown, parts_of, read_launch
from sweep.search_space import flags_key
from sweep.trial import Flags

# Points of a night, many times over.
_KEPT = 50_000


class Sums:
    """The launch and the parts of memory of searched flags on top of the fixed ones; Unknown where they have none."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge
        self._known: dict[object, tuple[Launch, Parts] | Unknown] = {}

    def of(self, flags: Flags) -> tuple[Launch, Parts] | Unknown:
        """The sum for these searched flags."""
        key = flags_key(flags)
        if key not in self._known:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[key] = self._sum(flags)
        return self._known[key]

    def _sum(self, flags: Flags) -> tuple[Launch, Parts] | Unknown:
        model, device = self.knowledge.model, self.knowledge.device
        if not isinstance(model, Model):
            return model
        if not isinstance(device, Device):
            return device
        launch = read_launch({**self.knowledge.fixed, **flags}, model, device)
        if isinstance(launch, Unknown):
            return launch
        parts = parts_of(model, launch, device)
        return parts if isinstance(parts, Unknown) else (launch, parts)
