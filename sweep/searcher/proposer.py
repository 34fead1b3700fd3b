"""Which flags to try next: Optuna's tree-structured Parzen estimator (TPE), told only what was measured.

A proposal is a pure function of the study's seed, the trial's number, what was told of trials of lower number
(whatever order it was told in) and the points still running. Nothing else is kept, so a proposer rebuilt from stored
results goes on exactly where the old one stopped, however often that happens. Later trials only say which points are
taken, so a trial whose record was lost gets its old point again while those before it are what they were. That holds
where trials run one at a time; where several do, what was running at the time is not known any more, and the trial may
get another point, which like every point is new.

What TPE sees of a trial:

- complete: its value, and each SLO as a constraint. A miss is told as `1 - limit / measured` (from `measured / limit
  - 1`), which keeps the order of misses and stays below 1, so that one absurd latency does not outweigh the rest.
- censored (stopped early as hopeless): its score so far or the best of the trials of lower number, whichever is worse,
  since the rounds it finished may have flattered it; where it finished none, their worst. SLOs as for a complete one.
- infeasible (these flags cannot work): every constraint missed by 1, which is worse than any measured miss, and the
  worst value among the trials of lower number. TPE ranks what misses constraints by how much, behind all that keep
  them, and never reads its value. A plain failure would teach it nothing: TPE skips failed trials.
- ignored (the machine, not the flags): nothing at all; the point may be proposed again.
- still running: a point TPE counts as bad until it is told, so that parallel trials spread.

Where a study looks for a front of two or three metrics, TPE is told their ratios to the baseline in place of the one
value, and proposes by hypervolume (multi-objective TPE). "Worst" is then the worst of each; a censored trial is told
what it measured if a complete one is better in everything, otherwise the worst of each.

A baseline outside the space (a flag left to vLLM that is always set in the search, say) is known as a point but
cannot be placed in TPE's model, and is left out there.
"""

from __future__ import annotations

import bisect
import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import optuna
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState

from sweep.search_space import SearchSpace
from sweep.searcher.axes import Axes, Params
from sweep.searcher.history import History
from sweep.trial import Finished, Flag, Flags, TrialStatus

# Trials drawn at random before TPE takes over, the baseline not counted. A night has 30 to 100 trials: ten show each
# parameter's coarse direction (TPE calls a tenth of the trials good, so fewer make one trial the whole of "good").
STARTUP_TRIALS = 10
# Proposals of TPE that break a constraint or repeat a point before a random point is taken.
MAX_ASKS = 16
_FEW_DRAWS, _MANY_DRAWS = 1_000, 5_000
_ENUMERABLE = 20_000
_LAUNCH = "launch"
_EPOCH = datetime(2000, 1, 1)  # Optuna wants times on its trials; nothing reads them

Key = tuple[tuple[str, Flag], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended, for the search. `value`: the score, lower is better; `violations`: above 0 misses an SLO.

    `front`: the ratios of a study that looks for a front, lower is better. Raises ValueError unless a complete trial
    has a value and, but for a censored one, only a complete one.
    """

    kind: Literal["complete", "censored", "infeasible", "ignored"]
    value: float | None = None
    violations: Mapping[str, float] = field(default_factory=dict)
    front: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.kind != "censored" and (self.kind == "complete") is not (self.value is not None):
            raise ValueError(f"an outcome {self.kind!r} does not go with the value {self.value}")
        if any(math.isnan(value) for value in (self.value, *(self.front or ())) if value is not None):
            raise ValueError("a score that is not a number")
        if any(math.isnan(excess) for excess in self.violations.values()):
            raise ValueError("a violation that is not a number")


@dataclass(frozen=True, slots=True)
class _Told:
    number: int
    flags: Flags
    outcome: Outcome


class Proposer:
    """Proposes points of `space`. `slo_names`: the SLOs every complete trial reports, always the same.

    `front`: of how many metrics a front is looked for, 0 for the one score.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        seed: int,
        sampler: Literal["tpe", "random"] = "tpe",
        slo_names: tuple[str, ...] = (),
        front: int = 0,
    ) -> None:
        self._front = front
        self._space, self._seed, self._sampler, self._slo_names = space, seed, sampler, slo_names
        self._axes = Axes.of(space)
        self._distributions = self._axes.distributions()
        self._told: list[_Told] = []  # by number
        self._trials: list[FrozenTrial | None] = []  # what TPE sees of each
        self._used: set[Key] = set()
        self._points: list[dict[str, Flag]] | None = None
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # each study announces itself at INFO

    def tell(self, number: int, flags: Flags, outcome: Outcome) -> None:
        """What became of trial `number` with these searched flags; in any order, each number once.

        Raises ValueError for a number told twice and for a complete trial that lacks an SLO or its place on the front.
        """
        if outcome.kind == "ignored":
            return
        place = bisect.bisect_left(self._told, number, key=lambda told: told.number)
        if place < len(self._told) and self._told[place].number == number:
            raise ValueError(f"trial {number} was told before")
        if outcome.kind in ("complete", "censored") and (missing := set(self._slo_names) - set(outcome.violations)):
            raise ValueError(f"trial {number} does not say how it kept {', '.join(sorted(missing))}")
        if outcome.kind == "complete" and self._front and len(outcome.front or ()) != self._front:
            raise ValueError(f"trial {number} does not say where it stands on the front of {self._front} metrics")
        self._told.insert(place, _Told(number, dict(flags), outcome))
        self._used.add(self._space.key(flags))
        # What an infeasible trial is told depends on the trials of lower number, so a late result rewrites the rest.
        self._trials[place:] = [self._trial(index) for index in range(place, len(self._told))]

    def hear(self, finished: Finished) -> None:
        """`tell` for a trial as the plan knows it. One without a verdict on its flags or a score is ignored, and so is
        one that something on the machine disturbed."""
        placed = finished.score is not None and (finished.front is not None or not self._front)
        if finished.status is TrialStatus.COMPLETE and placed and not finished.disturbed:
            outcome = Outcome("complete", finished.score, finished.violations, finished.front)
        elif (
            finished.status is TrialStatus.CENSORED
            and not finished.disturbed
            and set(self._slo_names) <= set(finished.violations)
        ):
            outcome = Outcome("censored", finished.score, finished.violations, finished.front)
        else:
            outcome = Outcome("infeasible" if finished.status is TrialStatus.INFEASIBLE else "ignored")
        self.tell(finished.number, finished.flags, outcome)

    def propose(self, number: int, pending: Sequence[Flags] = ()) -> dict[str, Flag] | None:
        """Flags for trial `number` while `pending` points run; None when every point has been tried.

        The point keeps every constraint and is neither known nor pending. Raises ConfigError when the constraints
        leave no point at all.
        """
        taken = self._used | {self._space.key(flags) for flags in pending}
        if self._sampler == "tpe":
            before = bisect.bisect_left(self._told, number, key=lambda told: told.number)
            history = [trial for trial in self._trials[:before] if trial is not None]
            if len(history) >= STARTUP_TRIALS and any(told.outcome.kind == "complete" for told in self._told[:before]):
                point = self._ask(number, history, pending, taken)
                if point is not None:
                    return point
        return self._unseen(random.Random(_seed(self._seed, number, "random")), taken)

    def seen(self) -> list[FrozenTrial]:
        """What TPE sees, in the order of trial numbers (Optuna's number is ours plus one)."""
        return [trial for trial in self._trials if trial is not None]

    def _trial(self, index: int) -> FrozenTrial | None:
        """What TPE sees of the told trial at `index`; None if it lies outside the space."""
        told = self._told[index]
        params = self._axes.encode(told.flags)
        if params is None:
            return None
        if told.outcome.kind == "infeasible":
            values, misses = self._worst(self._told[:index]), dict.fromkeys((*self._slo_names, _LAUNCH), 1.0)
        else:
            own = self._values(told.outcome) if told.outcome.kind == "complete" else self._censored_values(index)
            assert own is not None
            values = own
            misses = {name: _bounded(told.outcome.violations[name]) for name in self._slo_names} | {_LAUNCH: 0.0}
        trial = self._frozen(told.number, params, TrialState.COMPLETE, values)
        for name, miss in misses.items():
            trial.set_constraint(name, miss)
        return trial

    def _values(self, outcome: Outcome) -> tuple[float, ...] | None:
        """What is minimised: the score, or the ratios of the front."""
        if self._front:
            return outcome.front
        return None if outcome.value is None else (outcome.value,)

    def _worst(self, told: Sequence[_Told]) -> tuple[float, ...]:
        measured = [values for other in told if (values := self._values(other.outcome)) is not None]
        return tuple(map(max, zip(*measured, strict=True))) if measured else (math.inf,) * max(1, self._front)

    def _censored_values(self, index: int) -> tuple[float, ...]:
        before = [other for other in self._told[:index] if other.outcome.kind == "complete"]
        own = self._values(self._told[index].outcome)
        if own is None:
            return self._worst(before)
        complete = [values for other in before if (values := self._values(other.outcome)) is not None]
        if not self._front:
            return max(own, min(complete, default=own))
        beaten = any(all(a <= b for a, b in zip(values, own, strict=True)) for values in complete)
        return own if beaten or not complete else tuple(map(max, own, self._worst(before)))

    def _frozen(self, number: int, params: Params, state: TrialState, values: tuple[float, ...] | None) -> FrozenTrial:
        # Numbers count from 1: 0 is the trial that is asked for. Built directly, since Optuna's `create_trial`
        # refuses a baseline between two points of a grid, which TPE itself can use.
        return FrozenTrial(
            number=number + 1,
            trial_id=number + 1,
            state=state,
            value=None,
            values=values,
            datetime_start=_EPOCH,
            datetime_complete=_EPOCH if state.is_finished() else None,
            params=params,
            distributions={name: self._distributions[name] for name in params},
            user_attrs={},
            system_attrs={},
            intermediate_values={},
        )

    def _ask(
        self, number: int, history: list[FrozenTrial], pending: Sequence[Flags], taken: set[Key]
    ) -> dict[str, Flag] | None:
        """TPE's proposal, or None if all it came up with was taken or broke a constraint."""
        shown = History(history)

        def avoid(flags: Flags) -> None:
            if (params := self._axes.encode(flags)) is not None:
                last = max(number, shown.trials[-1].number)
                shown.trials.append(self._frozen(last, params, TrialState.RUNNING, None))

        for flags in pending:
            avoid(flags)
        seed = _seed(self._seed, number, "tpe")
        study = optuna.create_study(
            storage=shown,
            sampler=TPESampler(seed=seed, n_startup_trials=0, multivariate=True),
            directions=["minimize"] * max(1, self._front),
        )
        for _ in range(MAX_ASKS):
            point = self._axes.decode(study.ask(self._distributions).params)
            if self._space.violated(point) is None and self._space.key(point) not in taken:
                return point
            avoid(point)  # for this proposal only: asked again, TPE looks elsewhere
        return None

    def _unseen(self, rng: random.Random, taken: set[Key]) -> dict[str, Flag] | None:
        """A random valid point that is not taken; None when there is none left."""
        size = self._space.size()
        countable = size is not None and size <= _ENUMERABLE
        for _ in range(_FEW_DRAWS if countable else _MANY_DRAWS):
            point = self._space.draw(rng)
            if self._space.violated(point) is None and self._space.key(point) not in taken:
                return point
        if not countable:
            self._space.sample(rng)  # raises where the constraints, not the number of trials, are the reason
            return None
        if self._points is None:
            self._points = list(self._space.points())
        if not self._points:
            self._space.sample(rng)
        # Put in an order first, so that points taken later do not change which of the others is drawn.
        mixed = rng.sample(self._points, len(self._points))
        return next((dict(point) for point in mixed if self._space.key(point) not in taken), None)


def _bounded(excess: float) -> float:
    """`1 - limit / measured` of a miss given as `measured / limit - 1`; what keeps the limit stays as it is."""
    if excess <= 0:
        return excess
    return 1.0 if math.isinf(excess) else excess / (1 + excess)


def _seed(*parts: object) -> int:
    """32 bits that depend on all parts and on nothing else (Python's own `hash` differs between processes)."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:4], "big")
