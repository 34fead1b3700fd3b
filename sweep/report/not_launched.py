"""Candidates that cost no launch: refused as unable to work, or the same to the engine as a measured trial."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sweep.gate import failed_by_its_flags
from sweep.guide import PassedOver
from sweep.search_space import flags_key
from sweep.trial import Finished, Flags, TrialStatus


@dataclass(frozen=True, slots=True)
class RefusedCandidate:
    """Flags that were not launched. `before`: the trial that was proposed instead; `confidence`: the probability, as
    known then, that a launch would have failed."""

    before: int
    flags: Flags
    rule: str
    reason: str
    confidence: float


@dataclass(frozen=True, slots=True)
class CheckedRefusal:
    """A refusal that was launched all the same, as trial `number`. `failed`: whether it failed as foreseen; None where
    the launch told nothing, or has not ended."""

    number: int
    rule: str
    reason: str
    failed: bool | None


@dataclass(frozen=True, slots=True)
class SameCandidate:
    """Flags that were not launched, since their measurement is that of `trial`. `before` as in `RefusedCandidate`."""

    before: int
    flags: Flags
    trial: int


@dataclass(frozen=True, slots=True)
class NotLaunched:
    """In the order they came up, each candidate once."""

    refused: tuple[RefusedCandidate, ...] = ()
    checked: tuple[CheckedRefusal, ...] = ()
    same: tuple[SameCandidate, ...] = ()


def not_launched(passed: Iterable[PassedOver], finished: Mapping[int, Finished]) -> NotLaunched:
    """What a study passed over; `finished` are its trials by number."""
    refused: dict[object, RefusedCandidate] = {}
    checked: dict[int, CheckedRefusal] = {}
    same: dict[object, SameCandidate] = {}
    for one in passed:
        key, refusal = flags_key(one.flags), one.refusal
        if refusal is not None and refusal.audit:
            checked[one.number] = CheckedRefusal(
                one.number, refusal.rule, refusal.reason, _came_true(finished.get(one.number))
            )
        elif refusal is not None:
            found = RefusedCandidate(one.number, one.flags, refusal.rule, refusal.reason, refusal.confidence)
            refused.setdefault(key, found)
        elif one.same is not None and not one.same.audit:
            same.setdefault(key, SameCandidate(one.number, one.flags, one.same.trial))
    return NotLaunched(tuple(refused.values()), tuple(checked.values()), tuple(same.values()))


def _came_true(ended: Finished | None) -> bool | None:
    if ended is None or ended.status is TrialStatus.FAILED:
        return None
    return failed_by_its_flags(ended)
