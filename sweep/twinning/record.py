"""A study's record, as far as a prediction needs it: launches with the engines they ran, and how load was sent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweep.errors import UserError
from sweep.fingerprint import Fingerprint, Pairs
from sweep.metrics import Part, RequestColumns, summarize_parts
from sweep.objective import Objective
from sweep.records import RequestRecord, RoundRecord
from sweep.store import StoredTrial, read_requests, read_rounds, read_trials
from sweep.trial import Flag, Flags, TrialKind, TrialStatus
from sweep.twin import Engine
from sweep.twinning.computed import usable
from sweep.twinning.room import Room, room_of

Measured = tuple[tuple[RequestRecord, ...], tuple[RoundRecord, ...]]

# What may be learnt from: a calibration's and a soak's loads are made to be unlike any other.
_TELLING = (TrialKind.BASELINE, TrialKind.SEARCH, TrialKind.DRIFT, TrialKind.CONFIRM)
# Since 0.14 vLLM plans the next step while one computes, unless told otherwise (`SchedulerConfig.async_scheduling`).
_ASYNCHRONOUS_SINCE = (0, 14)


@dataclass(frozen=True, slots=True)
class Launch:
    """A trial, all flags of its server (the fixed ones of the study included) and the engine they made."""

    trial: StoredTrial
    flags: Flags
    engine: Engine

    @property
    def telling(self) -> bool:
        """Whether it is measured, whole and undisturbed."""
        one = self.trial
        return one.status is TrialStatus.COMPLETE and one.kind in _TELLING and not one.disturbances

    @property
    def own_load(self) -> bool:
        """Whether it had the prompts of the search, not those held out to confirm."""
        return self.trial.kind is not TrialKind.CONFIRM


@dataclass(frozen=True, slots=True)
class Record:
    """Every trial of a study whose server started, or may have, and what holds for all of them.

    `asynchronous` is what vLLM does where no flag says it. The load's settings are those of the load client. `room`:
    what the memory model makes of this model on these cards, None where it cannot.
    """

    folder: Path
    baseline: Flags
    fixed: Flags
    launches: tuple[Launch, ...]
    asynchronous: bool
    max_concurrency: int | None
    burstiness: float
    seed: int
    notes: tuple[str, ...]
    requests_of: Callable[[int], Measured]
    room: Room | None = None

    def metrics_of(self, launch: Launch, objective: Objective) -> Mapping[str, float | None]:
        """What an objective needs of a measured launch: as stored, or of its requests where other metrics were."""
        known, names = launch.trial.metrics or {}, objective.metrics_needed()
        if all(name in known for name in names):
            return known
        requests, rounds = self.requests_of(launch.trial.number)
        parts = [
            Part(
                RequestColumns.of([request for request in requests if request.round == one.round]),
                one.duration_s,
                one.request_rate_per_s,
            )
            for one in rounds
        ]
        return summarize_parts(parts, names, slo=objective.limits)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the trials of a study stand: its folder, or wherever `trials` and `measured` (by number) find them.

    `fingerprint` None: the folder's.
    """

    folder: Path
    fingerprint: Fingerprint | None
    trials: Callable[[], Sequence[StoredTrial]]
    measured: Callable[[int], Measured]

    @classmethod
    def stored(cls, folder: Path, fingerprint: Fingerprint | None = None) -> Ledger:
        """What lies in a study's folder."""
        return cls(folder, fingerprint, lambda: read_trials(folder), lambda number: stored_requests(folder, number))


def stored_requests(folder: Path, number: int) -> Measured:
    """Requests and rounds of a trial in a study's folder."""
    return tuple(read_requests(folder, number)), tuple(read_rounds(folder, number))


def read_record(folder: Path, trials: Sequence[StoredTrial], ledger: Ledger | None = None) -> Record:
    """The record of these trials of a study. Raises UserError when the baseline is not among them yet."""
    baseline = next((trial for trial in trials if trial.kind is TrialKind.BASELINE), None)
    if baseline is None:
        raise UserError(f"{folder} holds no baseline yet: nothing to predict from")
    known, notes = _fingerprint(folder)
    if ledger is not None and ledger.fingerprint is not None:
        known, notes = ledger.fingerprint, ()
    fixed: dict[str, Flag] = {
        name: value
        for name, value in _values(known.fixed_flags).items()
        if value is None or isinstance(value, (str, int, float))
    }
    load = _values(known.load)
    asynchronous = known.gpus != () and _version(known.vllm) >= _ASYNCHRONOUS_SINCE
    launches = []
    for trial in trials:
        flags = {**fixed, **trial.flags}
        engine = Engine.of(usable(flags), trial.engine_config, asynchronous=asynchronous)
        launches.append(Launch(trial, flags, engine))
    in_flight = load.get("max_concurrency")
    return Record(
        folder=folder,
        baseline=baseline.flags,
        fixed=fixed,
        launches=tuple(launches),
        asynchronous=asynchronous,
        max_concurrency=in_flight if type(in_flight) is int else None,
        burstiness=float(load.get("burstiness") or 1.0),
        seed=int(load.get("seed") or 0),
        notes=notes,
        room=room_of(known),
        requests_of=ledger.measured if ledger is not None else lambda number: stored_requests(folder, number),
    )


def _fingerprint(folder: Path) -> tuple[Fingerprint, tuple[str, ...]]:
    path = folder / "fingerprint.json"
    try:
        return Fingerprint.from_json(path.read_text(encoding="utf-8")), ()
    except (OSError, ValueError, TypeError):
        note = f"{path.name} is missing or damaged, so flags that are fixed and limits of the load client are not known"
        return Fingerprint.from_json("{}"), (note,)


def _values(pairs: Pairs | None) -> Mapping[str, Any]:
    """What the JSON texts of a fingerprint stand for; one that is none, redacted perhaps, stays text."""
    found: dict[str, Any] = {}
    for name, text in pairs or ():
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def _version(text: str | None) -> tuple[int, ...]:
    """Major and minor; a version that is not known is taken for a new one."""
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return tuple(map(int, match.groups())) if match else _ASYNCHRONOUS_SINCE
