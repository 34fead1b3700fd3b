"""Which nodes of a joined cluster take part in a study, and what it asks of each."""

from __future__ import annotations

from sweep.fleet.ask import holds_for, needs_of, wanted_of, without_devices
from sweep.fleet.choose import Choice, Group, check_accelerator, choose, groups_of, has_accelerator
from sweep.fleet.fleet import Fleet
from sweep.fleet.places import places_for

__all__ = [
    "Choice",
    "Fleet",
    "Group",
    "check_accelerator",
    "choose",
    "groups_of",
    "has_accelerator",
    "holds_for",
    "needs_of",
    "places_for",
    "wanted_of",
    "without_devices",
]
