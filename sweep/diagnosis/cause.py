"""When two failures have one cause."""

from __future__ import annotations

import re

from sweep.diagnosis.values import FailureClass

# Names of no cause: what happened stands in the line alone.
_NAMELESS = frozenset({None, FailureClass.OTHER, FailureClass.UNKNOWN})
# What differs from launch to launch of one failure: addresses, digests, process ids, ports, sizes. Exit codes, numbers
# of system errors and of HTTP's answers have three digits at most, and tell failures apart.
_PASSING = re.compile(r"0x[0-9a-fA-F]+|\b(?=[a-f]*\d)[0-9a-f]{8,}\b|\d+\.\d+|\d{4,}")


def cause_of(failure_class: str | None, line: str | None) -> tuple[str, str]:
    """What is equal for two failures of one cause: the class and, where that says nothing, the line as well.

    The line counts without what passes, such as process ids. No class counts as `unknown`, no line as an empty one.
    """
    told = _PASSING.sub("#", line or "") if failure_class in _NAMELESS else ""
    return failure_class or str(FailureClass.UNKNOWN), told
