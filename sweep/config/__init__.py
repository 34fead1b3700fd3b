"""Study files: `load(path)` gives a checked, frozen StudyConfig."""

from __future__ import annotations

from sweep.config.known_flags import count_of
from sweep.config.lines import located
from sweep.config.load import load, loads
from sweep.config.load_section import LoadSection
from sweep.config.models import MOST_TRIALS, Boolean, Choice, FloatRange, IntRange, SearchSpaceConfig, parse_duration_s
from sweep.config.notify_section import NotifySection
from sweep.config.study import ConfirmSection, ObjectiveSection, StudyConfig

__all__ = [
    "MOST_TRIALS",
    "Boolean",
    "Choice",
    "ConfirmSection",
    "FloatRange",
    "IntRange",
    "LoadSection",
    "NotifySection",
    "ObjectiveSection",
    "SearchSpaceConfig",
    "StudyConfig",
    "count_of",
    "load",
    "loads",
    "located",
    "parse_duration_s",
]
