"""Trials and results as the plain values that Ray carries between driver and workers."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from sweep.trial import Finished, TrialKind, TrialSpec, TrialStatus

# The keys of a Ray config and of a Ray result that are ours.
SPEC, RESULT = "spec", "sweep_result"


def spec_to_config(spec: TrialSpec, first_attempt: int) -> dict[str, Any]:
    """A trial as plain values."""
    return {
        "number": spec.number,
        "kind": spec.kind.value,
        "flags": dict(spec.flags),
        "baseline_metrics": None if spec.baseline_metrics is None else dict(spec.baseline_metrics),
        "block": spec.block,
        "first_attempt": first_attempt,
    }


def spec_from_config(config: dict[str, Any]) -> tuple[TrialSpec, int]:
    """The inverse of `spec_to_config`."""
    spec = TrialSpec(
        config["number"], TrialKind(config["kind"]), config["flags"], config["baseline_metrics"], config["block"]
    )
    return spec, config["first_attempt"]


def finished_to_result(finished: Finished) -> str:
    """What a worker reports: JSON, since Ray takes nested values apart before a searcher sees them."""
    return json.dumps(asdict(finished))


def finished_from_result(payload: str) -> Finished:
    """The inverse of `finished_to_result`."""
    found = json.loads(payload)
    typed = {
        "kind": TrialKind(found["kind"]),
        "status": TrialStatus(found["status"]),
        "dirty_devices": tuple(found["dirty_devices"]),
        "front": None if found["front"] is None else tuple(found["front"]),
    }
    return Finished(**found | typed)
