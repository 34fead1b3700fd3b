"""Advice for a study that runs, from what is stored of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sweep.errors import UserError
from sweep.objective import Objective
from sweep.search_space import SearchSpace, flags_key
from sweep.store import StoredTrial
from sweep.trial import Flags, TrialStatus
from sweep.twinning.advice import Advice, advise
from sweep.twinning.record import Ledger, read_record

# What a launch takes beside its load where none says it.
_STARTUP_S = 60.0


@dataclass(slots=True)
class Adviser:
    """Gives advice for trials by number; `say` hears of each piece of advice once, in one line.

    Advice for a trial depends on the trials of lower number in `ledger`, the points given, the seed, and nothing else.
    """

    ledger: Ledger
    space: SearchSpace
    objective: Objective
    seed: int
    say: Callable[[str], None] = lambda _line: None
    _last: tuple[tuple[int, tuple[int, ...]], Advice] | None = field(default=None)

    def advise(self, number: int, taken: Sequence[Flags] = ()) -> Advice:
        """What trial `number` should measure, `taken` left out.

        Asked again for one trial, because what it came up with was refused, it goes down its list and thinks no
        further.
        """
        stored = [one for one in self.ledger.trials() if one.number < number]
        asked = (number, tuple(one.number for one in stored))
        if self._last is None or self._last[0] != asked:
            self._last = (asked, self._thought(stored, taken))
            self.say(line_of(number, self._last[1]))
        gone = {flags_key(flags) for flags in taken}
        advice = self._last[1]
        return replace(advice, ranked=tuple(flags for flags in advice.ranked if flags_key(flags) not in gone))

    def _thought(self, stored: Sequence[StoredTrial], taken: Sequence[Flags]) -> Advice:
        startups = [one.startup_s for one in stored if one.status is TrialStatus.COMPLETE and one.startup_s is not None]
        try:
            return advise(
                read_record(self.ledger.folder, stored, self.ledger),
                self.space,
                self.objective,
                seed=self.seed,
                taken=taken,
                startup_s=max(startups, default=_STARTUP_S),
            )
        except UserError as error:
            return Advice("unfit", (), str(error))


def line_of(number: int, advice: Advice) -> str:
    """Advice in words."""
    if advice.kind == "unfit":
        return f"trial {number}: the twin cannot tell ({advice.reason}), TPE proposes"
    if advice.kind == "done":
        return f"the twin ends the search, its time goes to the confirmation: {advice.reason}"
    what = "to learn what steps cost" if advice.kind == "separate" else "as the most promising"
    return f"trial {number} was chosen by the twin {what}: {advice.reason} (simulated, not measured)"
