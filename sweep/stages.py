"""What follows the search: confirmation of its best, then a soak of the winner. Decisions only.

A night's best of many noisy trials is mostly luck. So the best few and the baseline are launched again, on fresh
servers with prompts the search never saw, block by block: every configuration once a block, the order turned round in
each second one, so that a machine that slowly warms or slows hits all alike. Everything is derived from the trials that
ended: a study that was cut short goes on with the launch that is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from sweep.config import ConfirmSection
from sweep.looks import ranked
from sweep.recommend import rank_key
from sweep.search_space import flags_key
from sweep.trial import Finished, Flags, TrialKind, TrialStatus

UTILIZATION = "gpu-memory-utilization"
# A trial so far behind the baseline may still be better: two launches of the same flags differ by 5 to 19 %.
_WORTH_SHARE = 0.1
# A launch that failed of the machine, or was disturbed, is made up for once.
_TRIES = 2
# Where a configuration leaves the utilization to vLLM there is nothing to step down from.
_SOAK_STEPS = 3


@dataclass(frozen=True, slots=True)
class ConfirmRules:
    """How much is confirmed: the best `candidates`, each launched `launches` to `max_launches` times."""

    candidates: int = 3
    launches: int = 3
    max_launches: int = 8
    soak: bool = True
    utilization_step: float = 0.02

    @classmethod
    def of(cls, settings: ConfirmSection) -> Self:
        """Those of a study file."""
        return cls(settings.candidates, settings.launches, settings.max_launches, soak=settings.soak)

    def least_launches(self) -> int:
        """Launches of a confirmation that goes as planned."""
        return (self.candidates + 1) * self.launches + self.soak if self.candidates else 0


@dataclass(frozen=True, slots=True)
class Standing:
    """What the confirmation says so far.

    `enough`: no further launch would change the decision or is worth its time. `contending`: configurations that may
    still win. `winner`: the flags to recommend when they are better than the baseline.
    """

    enough: bool
    contending: tuple[Flags, ...] = ()
    winner: Flags | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of the confirmation. `block` chooses prompts and arrivals; None for the soak."""

    kind: Literal[TrialKind.CONFIRM, TrialKind.SOAK]
    flags: Flags
    block: int | None


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Which launch comes next. `judge` looks at the confirmation launches that count. `prefer` gives the flags to
    launch in place of a measured configuration: those that are the same to the engine and nearer to today's.
    """

    rules: ConfirmRules
    baseline: Flags
    judge: Callable[[Sequence[Finished]], Standing]
    prefer: Callable[[Flags], Flags] = lambda flags: flags

    def next(self, finished: Mapping[int, Finished], *, room: int | None = None) -> Launch | None:
        """The next launch, None when nothing is left to confirm. `room`: launches that fit the time left."""
        if room is not None and room < 1:
            return None
        record = _Record(finished)
        best = contenders(finished, self.rules.candidates, self.prefer)
        chosen = [flags for flags in best if not record.ruled_out(flags)]
        if record.ruled_out(self.baseline):
            return None
        chosen = self._affordable(chosen, record, room)
        if not chosen:
            return None
        for block in range(self.rules.launches):
            if launch := _missing(block, [self.baseline, *chosen], record):
                return launch
        standing = self.judge(record.counting())
        if not standing.enough and record.blocks(self.baseline) < self.rules.max_launches:
            still = [flags for flags in chosen if _among(flags, standing.contending)]
            for block in range(self.rules.launches, self.rules.max_launches):
                if still and (launch := _missing(block, [self.baseline, *still], record)):
                    return launch
        return self._soak(standing.winner, record) if self.rules.soak and standing.winner is not None else None

    def _affordable(self, chosen: list[Flags], record: _Record, room: int | None) -> list[Flags]:
        """As many of the best as can be launched often enough in the room there is."""
        while room is not None and chosen:
            every = [self.baseline, *chosen]
            missing = sum(not record.settled(flags, block) for block in range(self.rules.launches) for flags in every)
            if missing <= room:
                break
            chosen = chosen[:-1]
        return chosen

    def _soak(self, winner: Flags, record: _Record) -> Launch | None:
        """The winner under the worst burst; where it fails, one step less memory, soaked and then measured."""
        for flags in soak_ladder(winner, self.rules.utilization_step):
            if record.soaked(flags) is None:
                return Launch(TrialKind.SOAK, flags, None) if record.soaks(flags) < _TRIES else None
            if not record.soaked(flags):
                continue
            for block in range(self.rules.launches):
                if launch := _missing(block, [flags], record):
                    return launch
            return None
        return None


def counting(finished: Mapping[int, Finished]) -> list[Finished]:
    """The launches of a confirmation that may be judged: measured to their end and undisturbed."""
    return _Record(finished).counting()


def soak_ladder(winner: Flags, step: float) -> list[Flags]:
    """The winner, then the same with one, two, ... steps less `gpu-memory-utilization` where it sets one."""
    ladder: list[Flags] = [winner]
    share = winner.get(UTILIZATION)
    if isinstance(share, (int, float)) and not isinstance(share, bool):
        lower = [round(float(share) - step * count, 6) for count in range(1, _SOAK_STEPS + 1)]
        ladder += [{**winner, UTILIZATION: value} for value in lower if value > 0]
    return ladder


def survivor(finished: Mapping[int, Finished], winner: Flags, step: float) -> Flags | None:
    """The first of the ladder that a soak did not fail; None when all did. An unsoaked one counts as surviving."""
    record = _Record(finished)
    return next((flags for flags in soak_ladder(winner, step) if record.soaked(flags) is not False), None)


def contenders(
    finished: Mapping[int, Finished], count: int, prefer: Callable[[Flags], Flags] = lambda flags: flags
) -> list[Flags]:
    """The best `count` configurations of the search as `prefer` has them, best first, each once.

    None that looks clearly worse than the baseline; one launch is too little to tell those that look about as good.
    """
    found = {flags_key(flags): flags for one in contending(finished) for flags in (prefer(one.flags),)}
    if 0 in finished:
        found.pop(flags_key(finished[0].flags), None)
    return list(found.values())[:count]


def contending(finished: Mapping[int, Finished]) -> list[Finished]:
    """The configurations of the search that are worth a confirmation, best first, each as its pooled looks."""
    baseline = finished.get(0)
    if baseline is None or baseline.score is None:
        return []
    return [one for one in ranked(finished.values()) if rank_key(one) < rank_key(baseline) or _near(one, baseline)]


def _near(trial: Finished, baseline: Finished) -> bool:
    assert trial.score is not None  # both have one, see `contenders`
    assert baseline.score is not None
    kept = rank_key(trial)[:2] <= rank_key(baseline)[:2]
    return kept and trial.score <= baseline.score * (1 + _WORTH_SHARE)


class _Record:
    """The launches of the confirmation so far."""

    def __init__(self, finished: Mapping[int, Finished]) -> None:
        self._confirm = [one for _, one in sorted(finished.items()) if one.kind is TrialKind.CONFIRM]
        self._soaks = [one for _, one in sorted(finished.items()) if one.kind is TrialKind.SOAK]
        self._tries = Counter((flags_key(one.flags), one.block) for one in self._confirm)
        self._counting = {(flags_key(one.flags), one.block): one for one in self._confirm if _counts(one)}

    def counting(self) -> list[Finished]:
        """The launches that may be judged, one for each configuration and block."""
        return list(self._counting.values())

    def ruled_out(self, flags: Flags) -> bool:
        """Whether a launch showed that these flags cannot work."""
        key = flags_key(flags)
        return any(flags_key(one.flags) == key and one.status is TrialStatus.INFEASIBLE for one in self._confirm)

    def settled(self, flags: Flags, block: int) -> bool:
        """Whether this launch was measured, or was tried often enough."""
        pair = (flags_key(flags), block)
        return pair in self._counting or self._tries[pair] >= _TRIES

    def blocks(self, flags: Flags) -> int:
        """In how many blocks these flags are settled."""
        return len({block for key, block in self._tries if key == flags_key(flags) and block is not None})

    def soaks(self, flags: Flags) -> int:
        """How often these flags were soaked."""
        return sum(flags_key(one.flags) == flags_key(flags) for one in self._soaks)

    def soaked(self, flags: Flags) -> bool | None:
        """Whether these flags survived a soak; None before one, or where the machine decided it."""
        status = {one.status for one in self._soaks if flags_key(one.flags) == flags_key(flags)}
        if TrialStatus.INFEASIBLE in status:
            return False
        return True if TrialStatus.COMPLETE in status else None


def _counts(one: Finished) -> bool:
    return one.status is TrialStatus.COMPLETE and one.metrics is not None and not one.disturbed


def _missing(block: int, every: list[Flags], record: _Record) -> Launch | None:
    order = every if block % 2 == 0 else every[::-1]
    for flags in order:
        if not record.settled(flags, block):
            return Launch(TrialKind.CONFIRM, flags, block)
    return None


def _among(flags: Flags, every: Sequence[Flags]) -> bool:
    return any(flags_key(flags) == flags_key(one) for one in every)
