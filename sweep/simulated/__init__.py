"""Servers that are not there: trials by the twin, for trying a study file in seconds. Nothing of it is measured."""

from __future__ import annotations

from sweep.simulated.server import WORD, Simulated

__all__ = ["WORD", "Simulated"]
