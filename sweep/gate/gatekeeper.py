"""The gate of a study: hears launches in any order, answers by those of lower number, checks itself now and then."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from sweep.gate.knowledge import Knowledge
from sweep.gate.learned import CONFIDENCE, Learned, learn
from sweep.gate.sums import Sums
from sweep.guide import Refusal
from sweep.search_space import flags_key
from sweep.trial import Finished, Flags


class Gatekeeper:
    """A `sweep.guide.Gate`.

    Of what it would refuse it lets the share `audit_share` through, so that its precision can be told from the record.
    Which ones is drawn by `seed` and the flags alone: a candidate that comes up again for a later trial is not drawn
    anew, or most of a small space would be launched in the end.

    An answer is a pure function of these, of `knowledge` and of the launches with a lower number that were heard.
    """

    def __init__(self, knowledge: Knowledge, *, seed: int, audit_share: float, confidence: float = CONFIDENCE) -> None:
        self.knowledge = knowledge
        self._sums = Sums(knowledge)
        self._seed, self._audit_share, self._confidence = seed, audit_share, confidence
        self._heard: dict[int, Finished] = {}
        self._learned: dict[int, Learned] = {}

    def hear(self, finished: Finished) -> None:
        """A launch ended, of whatever kind; each number once, in any order."""
        self._heard[finished.number] = finished
        self._learned = {number: known for number, known in self._learned.items() if number <= finished.number}

    def learned(self, number: int) -> Learned:
        """What is known by the launches before trial `number`."""
        if number not in self._learned:
            self._learned[number] = learn(self._sums, (one for at, one in self._heard.items() if at < number))
        return self._learned[number]

    def refusal(self, number: int, flags: Flags) -> Refusal | None:
        """Why trial `number` should not be launched with these searched flags; None where it may work."""
        found = self.learned(number).refusal(flags, self._confidence)
        if found is None:
            return None
        return replace(found, audit=self._audit_share > _draw(self._seed, flags))


def _draw(seed: int, flags: Flags) -> float:
    """A number from 0 to 1 that depends on these and on nothing else."""
    text = f"{seed}/audit/{flags_key(flags)!r}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48
