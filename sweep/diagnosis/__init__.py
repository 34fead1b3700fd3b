"""Why a trial failed: phase, exit code, log and readings -> a class, the line that tells, and what to do about it.

`diagnose(Evidence(...))` is for the program, `python -m sweep.diagnosis LOG` for people. The rules are sentences of
vLLM and of what it stands on, one table per theme (`rules_*.py`).
"""

from sweep.diagnosis.cause import cause_of
from sweep.diagnosis.decide import diagnose
from sweep.diagnosis.farewell import is_farewell
from sweep.diagnosis.named_rule import NamedRule, named_rule
from sweep.diagnosis.reasons import REASONS
from sweep.diagnosis.values import Diagnosis, Evidence, FailureClass, Phase, Policy

__all__ = [
    "REASONS",
    "Diagnosis",
    "Evidence",
    "FailureClass",
    "NamedRule",
    "Phase",
    "Policy",
    "cause_of",
    "diagnose",
    "is_farewell",
    "named_rule",
]
