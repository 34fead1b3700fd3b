"""Flags that made no difference, from a study's record."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from sweep.config import SearchSpaceConfig
from sweep.equivalence import EngineClasses, Findings, Rules, findings
from sweep.errors import ConfigError
from sweep.fingerprint import Fingerprint
from sweep.racing import CPU_NOISE, GPU_NOISE
from sweep.recommend import Recommendation, Verdict, nearest_to_today
from sweep.search_space import SearchSpace
from sweep.trial import Finished


def equal_flags(folder: Path, known: Mapping[int, Finished]) -> Findings:
    """What the engine's counters prove; nothing where the fingerprint, and so the fixed flags, cannot be read."""
    rules = _rules(folder)
    return Findings() if rules is None else findings(known.values(), rules)


def nearest(folder: Path, known: Mapping[int, Finished], found: Recommendation) -> Recommendation:
    """An unconfirmed recommendation as the study itself ends with it: of equal winners the one nearest to today's
    flags. As it is where the study's settings cannot be read, or do not ask for it."""
    rules = _rules(folder)
    if rules is None or found.verdict is not Verdict.BETTER or found.confirmed or 0 not in known:
        return found
    try:
        settings = json.loads((folder / "study.json").read_text(encoding="utf-8"))
        if not settings["study"].get("equivalence", True):
            return found
        space = SearchSpace.from_config(SearchSpaceConfig.model_validate(settings["search_space"]), rules.fixed)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ConfigError):
        return found
    classes = EngineClasses(space, known[0].flags, rules)
    for one in known.values():
        classes.hear(one)
    return nearest_to_today(found, known[0].flags, classes.preferred)


def _rules(folder: Path) -> Rules | None:
    try:
        fingerprint = Fingerprint.from_json((folder / "fingerprint.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return None
    noise = GPU_NOISE if fingerprint.gpus else CPU_NOISE
    fixed = {name: _value(text) for name, text in fingerprint.fixed_flags or ()}
    return Rules(fixed, math.hypot(noise.server_sd, noise.round_sd))


def _value(text: str) -> object:
    """A fixed flag as it was given; one that was redacted stays as it is shown."""
    try:
        return json.loads(text)
    except ValueError:
        return text
