"""Flags that made no difference, from a study's record."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from sweep.equivalence import Findings, Rules, findings
from sweep.fingerprint import Fingerprint
from sweep.racing import CPU_NOISE, GPU_NOISE
from sweep.trial import Finished


def equal_flags(folder: Path, known: Mapping[int, Finished]) -> Findings:
    """What the engine's counters prove; nothing where the fingerprint, and so the fixed flags, cannot be read."""
    try:
        fingerprint = Fingerprint.from_json((folder / "fingerprint.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return Findings()
    noise = GPU_NOISE if fingerprint.gpus else CPU_NOISE
    fixed = {name: _value(text) for name, text in fingerprint.fixed_flags or ()}
    rules = Rules(fixed, math.hypot(noise.server_sd, noise.round_sd))
    return findings(known.values(), rules)


def _value(text: str) -> object:
    """A fixed flag as it was given; one that was redacted stays as it is shown."""
    try:
        return json.loads(text)
    except ValueError:
        return text
