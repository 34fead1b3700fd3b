"""What an Optuna sampler is shown of trials: values and constraints, and never a trial that runs for ever.

- complete: its value, and each SLO as a constraint. A miss is told as `1 - limit / measured` (from `measured / limit
  - 1`), which keeps the order of misses and stays below 1, so that one absurd latency does not outweigh the rest.
- censored (stopped early as hopeless): its score so far or the best of the trials of lower number, whichever is worse,
  since the rounds it finished may have flattered it; where it finished none, their worst. SLOs as for a complete one.
- infeasible (these flags cannot work): every constraint missed by 1, which is worse than any measured miss, and the
  worst value among the trials of lower number. TPE ranks what misses constraints by how much, behind all that keep
  them, and never reads its value. A plain failure would teach nothing: TPE and GP skip failed trials.
- ignored (the machine, not the flags): nothing at all.
- still running: a point that counts as bad until it is told, so that parallel trials spread.

Every trial has the same constraints in the same order (a Gaussian process takes them by place). Where a study looks for
a front of two or three metrics, their ratios to the baseline take the place of the one value. "Worst" is then the worst
of each; a censored trial is told what it measured if a complete one is better in everything, otherwise the worst of
each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from sweep.searcher.axes import Axes, Params
from sweep.searcher.outcome import Outcome, Told
from sweep.trial import Flags

_LAUNCH = "launch"
_EPOCH = datetime(2000, 1, 1)  # Optuna wants times on its trials; nothing reads them


@dataclass(frozen=True, slots=True)
class Shown:
    """Makes Optuna's trials. `front`: of how many metrics a front is looked for, 0 for the one score."""

    axes: Axes
    distributions: dict[str, BaseDistribution]
    slo_names: tuple[str, ...]
    front: int

    def trial(self, told: Told, before: Sequence[Told]) -> FrozenTrial | None:
        """A finished trial, `before` being those of lower number; None if it lies outside the space."""
        params = self.axes.encode(told.flags)
        if params is None:
            return None
        if told.outcome.kind == "infeasible":
            values, misses = self.worst(before), dict.fromkeys((*self.slo_names, _LAUNCH), 1.0)
        else:
            own = self._values(told.outcome) if told.outcome.kind == "complete" else self._censored(told, before)
            assert own is not None
            values = own
            misses = {name: bounded(told.outcome.violations[name]) for name in self.slo_names} | {_LAUNCH: -1.0}
        trial = self._frozen(told.number, params, TrialState.COMPLETE, values)
        for name, miss in misses.items():
            trial.set_constraint(name, miss)
        return trial

    def running(self, number: int, flags: Flags) -> FrozenTrial | None:
        """A point that counts as bad until it is told; None if it lies outside the space."""
        params = self.axes.encode(flags)
        return None if params is None else self._frozen(number, params, TrialState.RUNNING, None)

    def _values(self, outcome: Outcome) -> tuple[float, ...] | None:
        """What is minimised: the score, or the ratios of the front."""
        if self.front:
            return outcome.front
        return None if outcome.value is None else (outcome.value,)

    def worst(self, told: Sequence[Told]) -> tuple[float, ...]:
        """The worst that was measured, of each value by itself; infinite where nothing was."""
        measured = [values for other in told if (values := self._values(other.outcome)) is not None]
        return tuple(map(max, zip(*measured, strict=True))) if measured else (math.inf,) * max(1, self.front)

    def _censored(self, told: Told, before: Sequence[Told]) -> tuple[float, ...]:
        complete = [other for other in before if other.outcome.kind == "complete"]
        own = self._values(told.outcome)
        if own is None:
            return self.worst(complete)
        known = [values for other in complete if (values := self._values(other.outcome)) is not None]
        if not self.front:
            return max(own, min(known, default=own))
        beaten = any(all(a <= b for a, b in zip(values, own, strict=True)) for values in known)
        return own if beaten or not known else tuple(map(max, own, self.worst(complete)))

    def _frozen(self, number: int, params: Params, state: TrialState, values: tuple[float, ...] | None) -> FrozenTrial:
        # Numbers count from 1: 0 is the trial that is asked for. Built directly, since Optuna's `create_trial`
        # refuses a baseline between two points of a grid, which the samplers can use.
        return FrozenTrial(
            number=number + 1,
            trial_id=number + 1,
            state=state,
            value=None,
            values=values,
            datetime_start=_EPOCH,
            datetime_complete=_EPOCH if state.is_finished() else None,
            params=params,
            distributions={name: self.distributions[name] for name in params},
            user_attrs={},
            system_attrs={},
            intermediate_values={},
        )


def bounded(excess: float) -> float:
    """`1 - limit / measured` of a miss given as `measured / limit - 1`; what keeps the limit stays as it is."""
    if excess <= 0:
        return excess
    return 1.0 if math.isinf(excess) else excess / (1 + excess)
