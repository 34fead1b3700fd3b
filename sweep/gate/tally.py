"""How the gate did, from the record: what it refused by reason, and how often a refusal was right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sweep.gate.learned import failed_by_its_flags
from sweep.guide import PassedOver
from sweep.trial import Finished, TrialStatus


@dataclass(frozen=True, slots=True)
class Refused:
    """Candidates refused for one rule: how many, and the words of the first."""

    rule: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of the refusals of a study.

    `refused` are different candidates that were not launched, most frequent rule first. Of those that would have been
    refused `audited` were launched all the same and told something, and `audited_failed` of these failed as foreseen.
    """

    refused: tuple[Refused, ...]
    audited: int
    audited_failed: int

    @property
    def count(self) -> int:
        """Candidates that cost no launch."""
        return sum(one.count for one in self.refused)

    @property
    def precision(self) -> float | None:
        """Failed audits over audits; None without one."""
        return self.audited_failed / self.audited if self.audited else None

    def as_json(self) -> dict[str, Any]:
        """The same as plain values; `precision` is null without an audit."""
        return {
            "refused": {one.rule: one.count for one in self.refused},
            "audited": self.audited,
            "audited_failed": self.audited_failed,
            "precision": self.precision,
        }

    def lines(self) -> list[str]:
        """The same for people; none where the gate had nothing to do."""
        if not self.count and not self.audited:
            return []
        lines = [f"{one.count} not launched, {one.rule}: {one.example}" for one in self.refused]
        if self.precision is None:
            checked = "none of its refusals was checked by a launch"
        else:
            checked = f"{self.audited_failed} of {self.audited} refusals that were launched all the same failed as said"
        return [*lines, f"gate: {self.count} candidates refused without a launch; {checked}"]


def tally(passed: Iterable[PassedOver], finished: Mapping[int, Finished]) -> Tally:
    """The gate's account of a study. An audit counts once its launch has a verdict on its flags: measured, or not
    workable."""
    found: dict[object, PassedOver] = {}
    audits: dict[int, bool] = {}
    for one in passed:
        if one.refusal is None:
            continue
        if one.audited:
            ended = finished.get(one.number)
            if ended is not None and ended.status is not TrialStatus.FAILED:
                audits[one.number] = failed_by_its_flags(ended)
        else:
            found.setdefault(tuple(sorted(one.flags.items(), key=str)), one)
    rules = Counter(one.refusal.rule for one in found.values() if one.refusal is not None)
    examples: dict[str, str] = {}
    for one in found.values():
        if one.refusal is not None:
            examples.setdefault(one.refusal.rule, one.refusal.reason)
    refused = tuple(Refused(rule, count, examples[rule]) for rule, count in rules.most_common())
    return Tally(refused, len(audits), sum(audits.values()))
