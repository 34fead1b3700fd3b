"""Which nodes of a joined cluster take part in a study, and what it asks of each."""

from __future__ import annotations

from sweep.fleet.ask import needs_of, wanted_of
from sweep.fleet.choose import Choice, choose, has_accelerator

__all__ = ["Choice", "choose", "has_accelerator", "needs_of", "wanted_of"]
