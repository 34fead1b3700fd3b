"""Advice for a study that runs, from what is stored of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweep.errors import UserError
from sweep.objective import Objective
from sweep.search_space import Key, SearchSpace, flags_key
from sweep.store import read_trials
from sweep.trial import Flags, TrialStatus
from sweep.twinning.advice import Advice, advise
from sweep.twinning.record import read_record

# What a launch takes beside its load where none says it.
_STARTUP_S = 60.0


@dataclass(slots=True)
class Adviser:
    """Gives advice for trials by number; `say` hears of each piece of advice once, in one line.

    Advice for a trial depends on the stored trials of lower number, the points given, the seed, and nothing else.
    """

    folder: Path
    space: SearchSpace
    objective: Objective
    seed: int
    say: Callable[[str], None] = lambda _line: None
    _last: tuple[tuple[int, tuple[int, ...], tuple[Key, ...]], Advice] | None = field(default=None)

    def advise(self, number: int, taken: Sequence[Flags] = ()) -> Advice:
        """What trial `number` should measure, `taken` left out."""
        stored = [one for one in read_trials(self.folder) if one.number < number]
        asked = (number, tuple(one.number for one in stored), tuple(flags_key(flags) for flags in taken))
        if self._last is not None and self._last[0] == asked:
            return self._last[1]
        startups = [one.startup_s for one in stored if one.status is TrialStatus.COMPLETE and one.startup_s is not None]
        try:
            record = read_record(self.folder, stored)
            advice = advise(
                record,
                self.space,
                self.objective,
                seed=self.seed,
                taken=taken,
                startup_s=max(startups, default=_STARTUP_S),
            )
        except UserError as error:
            advice = Advice("unfit", (), str(error))
        # Asked again for one trial, with more points to leave out, it has nothing new to say.
        again = self._last is not None and self._last[0][:2] == asked[:2]
        self._last = (asked, advice)
        if not again:
            self.say(line_of(number, advice))
        return advice


def line_of(number: int, advice: Advice) -> str:
    """Advice in words."""
    if advice.kind == "unfit":
        return f"trial {number}: the twin cannot tell ({advice.reason}), TPE proposes"
    if advice.kind == "done":
        return f"the twin ends the search: {advice.reason}; the time goes to the confirmation"
    what = "to learn what steps cost" if advice.kind == "separate" else "as the most promising"
    return f"trial {number} was chosen by the twin {what}: {advice.reason} (simulated, not measured)"
