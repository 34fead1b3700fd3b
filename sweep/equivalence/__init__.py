"""Which flags provably made no difference: two points that differ in nothing that was ever reached share a measurement.

The engine's counters of a finished trial, and the load client's record of it, bound what it used: requests at once,
tokens of a step, KV cache. Where a limit lies above that for both, it is the same engine doing the same work. Pure: no
files, no Ray, no Optuna.
"""

from sweep.equivalence.classes import EngineClasses
from sweep.equivalence.evidence import Evidence, evidence_of
from sweep.equivalence.findings import Findings, findings
from sweep.equivalence.sentences import InertFlag
from sweep.equivalence.state import Capacity, Pair, Rules, State

__all__ = [
    "Capacity",
    "EngineClasses",
    "Evidence",
    "Findings",
    "InertFlag",
    "Pair",
    "Rules",
    "State",
    "evidence_of",
    "findings",
]
