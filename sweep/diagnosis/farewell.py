"""Lines that a process prints on its way out and that say nothing of why: they would push what matters out of sight."""

from __future__ import annotations

import re

_FAREWELL = re.compile(
    # nanobind, which Triton is built with, and Python's resource tracker count what was not given back.
    r"nanobind: (?:leaked \d+|this is likely caused by)"
    r"|\s+- (?:leaked (?:instance|type|keep_alive|function)\b|\.\.\. skipped)"
    r"|See https://nanobind\.|.*\bresource_tracker: There appear to be \d+ leaked|\s+warnings\.warn\('resource_tracker:"
)


def is_farewell(line: str) -> bool:
    """Whether a line of a log is of that kind."""
    return _FAREWELL.match(line) is not None
