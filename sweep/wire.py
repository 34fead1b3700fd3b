"""Trials and results as the plain values that Ray carries between driver and workers, and what it does not carry."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sweep.records import EngineConfig, EngineSummary
from sweep.trial import Finished, TrialKind, TrialSpec, TrialStatus

# The keys of a Ray config and of a Ray result that are ours; the last three are those of a result after a round.
SPEC, RESULT, PLACES, BUNDLE = "spec", "sweep_result", "places", "bundle"
ATTEMPT, ROUND, COLUMNS = "sweep_attempt", "sweep_round", "sweep_columns"

# Ray tells a function nothing, it lets it go on or ends it in mid-step: verdicts lie in the trial's log folder.
VERDICTS = "race.jsonl"


@dataclass(frozen=True, slots=True)
class Rival:
    """The best trial so far, as it stood when another one began to run against it.

    `metrics` are those the objective needs; `compared` says of how many complete trials it is the best, `launches`
    which trials launched the baseline before.
    """

    number: int
    metrics: Mapping[str, float | None]
    compared: int
    launches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A node of a cluster, as a trial that runs there must know it.

    `shared`: whether it sees the study's folder. `baseline`: the metrics of the node's own baseline, None where that of
    the study counts. `raced`: whether trials there may be raced against those of other nodes. `others`: whether a trial
    that fails of the node could run on another. `resting`: memory of its devices at rest, as (index, GiB, MIG index).
    """

    name: str
    shared: bool
    baseline: Mapping[str, float | None] | None
    raced: bool
    others: bool
    resting: tuple[tuple[int, float | None, int | None], ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided on a trial after round `round` of an attempt. `rule` is None where it goes on."""

    attempt: int
    round: int
    stop: bool
    rule: str | None
    reason: str


def spec_to_config(spec: TrialSpec, first_attempt: int, rival: Rival | None = None) -> dict[str, Any]:
    """A trial as plain values. `rival`: whom it is raced against, None for a trial that is not."""
    return {
        "number": spec.number,
        "kind": spec.kind.value,
        "flags": dict(spec.flags),
        "baseline_metrics": None if spec.baseline_metrics is None else dict(spec.baseline_metrics),
        "block": spec.block,
        "node": spec.node,
        "first_attempt": first_attempt,
        "rival": None if rival is None else asdict(rival),
    }


def spec_from_config(config: dict[str, Any]) -> tuple[TrialSpec, int]:
    """The inverse of `spec_to_config`, but for the rival."""
    spec = TrialSpec(
        config["number"],
        TrialKind(config["kind"]),
        config["flags"],
        config["baseline_metrics"],
        config["block"],
        config["node"],
    )
    return spec, config["first_attempt"]


def rival_from_config(config: dict[str, Any]) -> Rival | None:
    """The rest of that inverse."""
    found = config["rival"]
    return None if found is None else Rival(**found | {"launches": tuple(found["launches"])})


def places_to_config(places: Mapping[str, Place]) -> dict[str, Any]:
    """The nodes that may take a trial, by Ray's id of each, as plain values."""
    return {key: asdict(place) for key, place in places.items()}


def place_from_config(config: Mapping[str, Any], node_id: str) -> Place | None:
    """What there is to know of one of them; None for a node that is not among them."""
    found = config.get(PLACES, {}).get(node_id)
    return None if found is None else Place(**found | {"resting": tuple(map(tuple, found["resting"]))})


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
        "engine_config": None if found["engine_config"] is None else EngineConfig(**found["engine_config"]),
        "engine": None if found["engine"] is None else EngineSummary(**found["engine"]),
        "round_scores": tuple(found["round_scores"]),
    }
    return Finished(**found | typed)


def write_verdict(folder: Path, verdict: Verdict) -> None:
    """Add a verdict to those in the trial's log folder. Raises OSError."""
    with (folder / VERDICTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(verdict)) + "\n")


def read_verdict(folder: Path, attempt: int, number: int) -> Verdict | None:
    """The verdict on round `number` of an attempt; None where there is none that can be read."""
    try:
        lines = (folder / VERDICTS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        with contextlib.suppress(ValueError, TypeError):  # a line cut short
            verdict = Verdict(**json.loads(line))
            if (verdict.attempt, verdict.round) == (attempt, number):
                return verdict
    return None
