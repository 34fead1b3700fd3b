"""Which flags to try next, told only what was measured.

A proposal is a pure function of the study's seed, the trial's number, what was told of trials of lower number
(whatever order it was told in), what earlier proposals passed over, and the points still running. Nothing else is kept,
so a proposer rebuilt from stored results goes on exactly where the old one stopped, however often that happens. Later
trials only say which points are taken, so a trial whose record was lost gets its old point again while those before it
are what they were. That holds where trials run one at a time; where several do, what was running at the time is not
known any more, and the trial may get another point, which like every point is new.

Before a point is given out it passes the study's guide. One that it refuses is shown to the sampler as one that cannot
work; one whose measurement is known counts as tried. Both cost no launch.

A baseline outside the space (a flag left to vLLM that is always set in the search, say) is known as a point but
cannot be placed in a sampler's model, and is left out there.
"""

from __future__ import annotations

import bisect
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import optuna
from optuna.trial import FrozenTrial

from sweep.guide import Guide, Guides, PassedOver
from sweep.search_space import SearchSpace
from sweep.searcher.axes import Axes
from sweep.searcher.few import few
from sweep.searcher.history import History, whole
from sweep.searcher.outcome import Outcome, Told
from sweep.searcher.samplers import MODELS, STARTUP_TRIALS, Asked, CannotTell, Recipe
from sweep.searcher.shown import Shown
from sweep.searcher.steps import Steps
from sweep.trial import SEARCHING, Finished, Flag, Flags

__all__ = ["STARTUP_TRIALS", "Outcome", "Proposer"]

_FEW_DRAWS, _MANY_DRAWS = 1_000, 5_000
_ENUMERABLE = 20_000
# Points passed over that are kept: of one proposal, and of all that a sampler is shown, the latest.
_KEPT, _SHOWN = 8, 200
# Once a model proposes, every so many trials are a step from the best flags instead.
_STEP_EVERY = 3

Key = tuple[tuple[str, Flag], ...]


class Proposer:
    """Proposes points of `space`. `slo_names`: the SLOs every complete trial reports, always the same.

    `sampler`: a name of `models`, `random`, or `grid`: every point in the order of the study file, the last parameter
    changing fastest. `front`: of how many metrics a front is looked for, 0 for the one score. `first`: points that come
    before all others, in their order. `on_passed_over` hears of each point once that the guide kept from being
    launched, or had launched to be checked.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        seed: int,
        sampler: str = "tpe",
        slo_names: tuple[str, ...] = (),
        front: int = 0,
        first: Sequence[Flags] = (),
        guide: Guide | None = None,
        on_passed_over: Callable[[PassedOver], None] = lambda _passed: None,
        models: Mapping[str, Recipe] = MODELS,
    ) -> None:
        self._front = front
        self._space, self._seed, self._sampler, self._slo_names = space, seed, sampler, slo_names
        self._first, self._recipe = tuple(first), models.get(sampler)
        self._guide: Guide = Guides() if guide is None else guide
        self._on_passed_over = on_passed_over
        self._axes = Axes.of(space)
        self._distributions = self._axes.distributions()
        self._steps = Steps(space)
        self._shown = Shown(self._axes, self._distributions, slo_names, front)
        self._told: list[Told] = []  # by number
        self._trials: list[FrozenTrial | None] = []  # what a sampler sees of each
        self._used: set[Key] = set()
        self._passed: dict[int, dict[Key, PassedOver]] = {}
        self._points: list[dict[str, Flag]] | None = None
        self._heard = 0
        self._empty: tuple[int, int, set[Key]] | None = None  # what the last question was that had no answer
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # each study announces itself at INFO

    def tell(self, number: int, flags: Flags, outcome: Outcome) -> None:
        """What became of trial `number` with these searched flags; in any order, each number once.

        Raises ValueError for a number told twice and for a complete trial that lacks an SLO or its place on the front.
        """
        self._heard += 1
        if outcome.kind == "ignored":
            return
        place = bisect.bisect_left(self._told, number, key=lambda told: told.number)
        if place < len(self._told) and self._told[place].number == number:
            raise ValueError(f"trial {number} was told before")
        if outcome.kind in ("complete", "censored") and (missing := set(self._slo_names) - set(outcome.violations)):
            raise ValueError(f"trial {number} does not say how it kept {', '.join(sorted(missing))}")
        if outcome.kind == "complete" and self._front and len(outcome.front or ()) != self._front:
            raise ValueError(f"trial {number} does not say where it stands on the front of {self._front} metrics")
        self._told.insert(place, Told(number, dict(flags), outcome))
        self._used.add(self._space.key(flags))
        # What an infeasible trial is told depends on the trials of lower number, so a late result rewrites the rest.
        self._trials[place:] = [
            self._shown.trial(told, self._told[: place + later]) for later, told in enumerate(self._told[place:])
        ]

    def hear(self, finished: Finished) -> None:
        """A launch as the plan knows it. The guide hears all; the search is told of its own trials, and ignores one
        without a verdict on its flags or a score, and one that something on the machine disturbed."""
        self._guide.hear(finished)
        self._steps.hear(finished)
        self._heard += 1
        if finished.kind in SEARCHING:
            outcome = Outcome.of(finished, self._slo_names, front=self._front > 0)
            self.tell(finished.number, finished.flags, outcome)

    def recall(self, passed: PassedOver) -> None:
        """A point that an earlier run of the study passed over; in any order."""
        self._passed.setdefault(passed.number, {}).setdefault(self._space.key(passed.flags), passed)

    def propose(self, number: int, pending: Sequence[Flags] = ()) -> dict[str, Flag] | None:
        """Flags for trial `number` while `pending` points run; None when every point has been tried or cannot be.

        The point keeps every constraint and is neither known nor pending. Raises ConfigError when the constraints
        leave no point at all.
        """
        taken = self._used | {self._space.key(flags) for flags in pending}
        if self._empty == (number, self._heard, taken):  # asked again and again while others run
            return None
        point = self._propose(number, pending, taken)
        self._empty = (number, self._heard, taken) if point is None else None
        return point

    def _propose(self, number: int, pending: Sequence[Flags], taken: set[Key]) -> dict[str, Flag] | None:
        for flags in self._first:
            point = self._space.quantise(flags)
            if self._free(point, taken) and self._passes(number, point):
                return point
        if self._sampler == "grid":
            return self._next_of_grid(number, taken)
        if self._recipe is not None:
            asked = self._by_model(self._recipe, number, pending, taken)
            if asked is not None:
                return asked
        return self._unseen(number, random.Random(_seed(self._seed, number, "random")), taken)

    def _by_model(
        self, recipe: Recipe, number: int, pending: Sequence[Flags], taken: set[Key]
    ) -> dict[str, Flag] | None:
        """The sampler's point once it has enough to go by, and now and then a step from the best; None where neither
        has any, and for every second one to begin with: a point at random."""
        before = bisect.bisect_left(self._told, number, key=lambda told: told.number)
        shown = sum(trial is not None for trial in self._trials[:before])
        ready = shown >= recipe.startup and any(told.outcome.kind == "complete" for told in self._told[:before])
        stepped = recipe.steps and not self._front
        if stepped and (number % _STEP_EVERY == 0 if ready else number % 2 == 1):
            settled = self._guide.settled(number)
            for step in self._steps.points(self._told[:before], sure=ready):
                point = {**step, **settled}
                if self._free(point, taken) and self._passes(number, point):
                    return point
        if not ready:
            return None
        try:
            return self._ask(recipe, number, pending, taken)
        except CannotTell:
            assert recipe.otherwise is not None  # only a recipe that has one raises it
            return self._by_model(recipe.otherwise, number, pending, taken)

    def ended(self, number: int) -> str:
        """Why nothing was proposed for trial `number`, and what became of the combinations that were not launched."""
        if (verdict := self._guide.verdict(number)) is not None:
            return verdict
        if not (self._countable() or self._sampler == "grid"):
            return f"no new combination that may be launched was found in {_MANY_DRAWS:,} random draws"
        left = [dict(point) for point in self._space.points() if self._free(point, self._used)]
        refused = sum(self._guide.refusal(number, point) is not None for point in left)
        shared = len(left) - refused
        others = (
            (refused, " or refused as unable to work", "refused"),
            (shared, " or shares another's measurement", "shared"),
        )
        words = "".join(word for count, word, _ in others if count)
        counts = ", ".join(f"{count} {what}" for count, _, what in others if count)
        return f"every combination of the search space is known{words}{f' ({counts})' if counts else ''}"

    def _countable(self) -> bool:
        size = self._space.size()
        return size is not None and size <= _ENUMERABLE

    def seen(self) -> list[FrozenTrial]:
        """What a sampler sees of what was told, in the order of trial numbers (Optuna's number is ours plus one)."""
        return [trial for trial in self._trials if trial is not None]

    def _free(self, point: Flags, taken: set[Key]) -> bool:
        return self._space.violated(point) is None and self._space.key(point) not in taken

    def _passes(self, number: int, point: Flags) -> bool:
        """Whether the guide lets `point` be launched as trial `number`."""
        if (refusal := self._guide.refusal(number, point)) is not None:
            passed = PassedOver(number, dict(point), refusal=refusal)
        elif (same := self._guide.same_as(number, point)) is not None:
            passed = PassedOver(number, dict(point), same=same)
        else:
            return True
        known, key = self._passed.setdefault(number, {}), self._space.key(point)
        if key not in known and (len(known) < _KEPT or passed.audited):
            known[key] = passed
            self._on_passed_over(passed)
        return passed.audited

    def _lessons(self, number: int, recipe: Recipe) -> Iterator[FrozenTrial]:
        """What a sampler is shown for trial `number`: told trials of lower number, each after what was passed over on
        the way to it. That is judged anew, since the guide may have learned better."""
        points = [point for one in sorted(self._passed) if one < number for point in self._passed[one].values()]
        points = [point for point in points if not point.audited][-_SHOWN:]
        before = self._told[: bisect.bisect_left(self._told, number, key=lambda told: told.number)]
        told = [(before[place].number, 1, self._trials[place]) for place in few(before)]
        passed = [(point.number, 0, self._lesson(number, point.flags, recipe)) for point in points]
        for _, _, trial in sorted((one for one in (*told, *passed) if one[0] < number), key=lambda one: one[:2]):
            if trial is not None:
                yield trial

    def _lesson(self, number: int, flags: Flags, recipe: Recipe) -> FrozenTrial | None:
        """A point that the guide keeps from being launched as trial `number`, as a sampler is shown it."""
        before = [told for told in self._told if told.number < number]
        if self._guide.refusal(number, flags) is not None:
            return self._shown.trial(Told(number, flags, Outcome("infeasible")), before)
        same = self._guide.same_as(number, flags) if recipe.credits else None
        told = next((told for told in before if same is not None and told.number == same.trial), None)
        return None if told is None else self._shown.trial(Told(number, flags, told.outcome), before)

    def _ask(self, recipe: Recipe, number: int, pending: Sequence[Flags], taken: set[Key]) -> dict[str, Flag] | None:
        """The sampler's proposal, or None if all it came up with was taken, refused or broke a constraint."""
        shown = History()
        worst = self._shown.worst([told for told in self._told if told.number < number])

        def show(trial: FrozenTrial | None) -> None:
            if trial is not None:
                shown.show(whole(trial, self._distributions, worst) if recipe.whole else trial)

        for trial in self._lessons(number, recipe):
            show(trial)
        for flags in pending:
            show(self._shown.running(number, flags))
        seed = _seed(self._seed, number, self._sampler)
        study = optuna.create_study(
            storage=shown,
            sampler=recipe.make(Asked(number, seed, self._axes, self._front)),
            directions=["minimize"] * max(1, self._front),
        )
        settled = self._guide.settled(number)
        for _ in range(recipe.asks):
            point = {**self._axes.decode(study.ask(self._distributions).params), **settled}
            free = self._free(point, taken)
            if free and self._passes(number, point):
                return point
            lesson = self._lesson(number, point, recipe) if free else None
            # Not launched, so for this proposal one to keep away from: asked again, the sampler looks elsewhere.
            show(self._shown.running(number, point) if lesson is None else lesson)
        return None

    def _next_of_grid(self, number: int, taken: set[Key]) -> dict[str, Flag] | None:
        points = (dict(point) for point in self._space.points())
        return next((point for point in points if self._free(point, taken) and self._passes(number, point)), None)

    def _unseen(self, number: int, rng: random.Random, taken: set[Key]) -> dict[str, Flag] | None:
        """A random valid point that is not taken; None when there is none left."""
        countable = self._countable()
        settled = self._guide.settled(number)
        tried: set[Key] = set(taken)
        for _ in range(_FEW_DRAWS if countable else _MANY_DRAWS):
            point = {**self._space.draw(rng), **settled}
            if self._free(point, tried):
                if self._passes(number, point):
                    return point
                tried.add(self._space.key(point))
        if not countable:
            self._space.sample(rng)  # raises where the constraints, not the number of trials, are the reason
            return None
        if self._points is None:
            self._points = list(self._space.points())
        if not self._points:
            self._space.sample(rng)
        # Put in an order first, so that points taken later do not change which of the others is drawn.
        mixed = (dict(point) for point in rng.sample(self._points, len(self._points)))
        return next((point for point in mixed if self._free(point, tried) and self._passes(number, point)), None)


def _seed(*parts: object) -> int:
    """32 bits that depend on all parts and on nothing else (Python's own `hash` differs between processes)."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:4], "big")
