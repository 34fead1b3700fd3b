"""Races against the best trial so far: who that is, what the record knows of it, and what is decided.

Everything here depends on the record of trials of lower number and on what the raced trial itself measured. So a study
that was cut short decides as one that was not, and a worker needs nothing but the number of its rival.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from sweep.errors import SweepError
from sweep.objective import Objective
from sweep.racing import (
    CPU_NOISE,
    GPU_NOISE,
    Incumbent,
    LiveTrace,
    Noise,
    Planned,
    RaceDecision,
    Round,
    estimate_noise,
    race,
    split,
)
from sweep.recommend import rank_key
from sweep.reference import reference_number
from sweep.runner import TrialSetup
from sweep.store import read_engine, read_requests, read_rounds
from sweep.trial import SEARCHING, Finished, TrialKind, TrialSpec, TrialStatus
from sweep.wire import Rival

# What a decision can fail of, damaged files and records of another version included. A trial goes on then.
FAULTS = (SweepError, OSError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
_REMEMBERED = 8  # trials whose requests are kept: the baseline's few launches and the last rivals


@dataclass(slots=True)
class Desk:
    """Decides on the trials of the study in `folder`. `prior`: the noise that is believed before anything repeats.

    `read` gives the rounds of a trial where they are at hand; they are read from the folder otherwise.
    """

    folder: Path
    objective: Objective
    planned: Planned
    prior: Noise
    read: Callable[[int], tuple[Round, ...]] | None = None
    _known: dict[int, tuple[Round, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, setup: TrialSetup, *, racing: bool = True) -> Self | None:
        """None where nothing is raced, whether or not the study wants it: a single round has no rest to save, and where
        a front is looked for, what is behind by the weights may still be on it."""
        plan = setup.plan
        if not racing or len(plan.rounds) < 2 or setup.objective.front:
            return None
        planned = Planned.of(plan, full_replies=setup.ignore_eos)
        return cls(setup.folder, setup.objective, planned, GPU_NOISE if setup.uses_gpus else CPU_NOISE)

    def rival(self, spec: TrialSpec, finished: Mapping[int, Finished]) -> Rival | None:
        """Whom trial `spec` is raced against; None for one that always runs to its end.

        Only trials of the search are raced, against the best of those of lower number that are complete and that
        nothing disturbed, the baseline included. Once the baseline was found drifted, only what was measured since then
        says how fast the machine is today.
        """
        if spec.kind is not TrialKind.SEARCH or spec.baseline_metrics is None:
            return None
        before = [
            one
            for number, one in sorted(finished.items())
            if number < spec.number and one.status is TrialStatus.COMPLETE and not one.disturbed and one.metrics
        ]
        since = reference_number(finished, spec.number)
        entered = [one for one in before if one.number >= since and (one.kind in SEARCHING or one.number == since)]
        scored = [found for one in entered if (found := self._scored(one, spec)).score is not None]
        if not scored:
            return None
        best = min(scored, key=lambda one: (rank_key(one), one.number))
        metrics = best.metrics or {}
        return Rival(
            number=best.number,
            metrics={name: metrics.get(name) for name in self.objective.metrics_needed()},
            compared=len(scored),
            launches=tuple(one.number for one in before if one.kind in (TrialKind.BASELINE, TrialKind.DRIFT)),
        )

    def judge(self, spec: TrialSpec, rival: Rival, rounds: Mapping[int, Round]) -> RaceDecision:
        """The verdict on a trial after a round. `rounds`: those so far by number, without the disturbed ones.

        Raises one of FAULTS where the record cannot be read.
        """
        theirs = self._rounds(rival.number)
        both = [number for number in sorted(rounds) if number < len(theirs)]
        if not both:
            return RaceDecision(False, "every round so far was disturbed")
        incumbent = self._incumbent(spec, rival, rounds=tuple(theirs[number] for number in both))
        launches = [self._rounds(number) for number in rival.launches]
        noise = estimate_noise(launches, self.objective, incumbent.baseline_metrics, self.prior)
        mine = [rounds[number] for number in both]
        return race(mine, incumbent, self.objective, planned=self.planned, noise=noise)

    def incumbent(self, spec: TrialSpec, rival: Rival) -> Incumbent:
        """What is compared with in the middle of a round: what the rival's engine showed, nothing of its requests.

        Raises one of FAULTS where the record cannot be read.
        """
        samples = sorted(read_engine(self.folder, rival.number), key=lambda sample: sample.at_s)
        traces: list[LiveTrace | None] = []
        for one in read_rounds(self.folder, rival.number):
            until_s = one.began_at_s + one.duration_s
            seen = [sample for sample in samples if sample.at_s <= until_s]
            trace = LiveTrace.of(seen, started_at_s=one.began_at_s)
            traces.append(trace if len(trace.at_s) else None)
        return self._incumbent(spec, rival, traces=tuple(traces))

    def _incumbent(
        self,
        spec: TrialSpec,
        rival: Rival,
        *,
        rounds: tuple[Round, ...] = (),
        traces: tuple[LiveTrace | None, ...] = (),
    ) -> Incumbent:
        baseline = spec.baseline_metrics or {}
        score = self.objective.score(rival.metrics, baseline)
        if score.value is None:
            raise ValueError(f"trial {rival.number} has no score")
        return Incumbent(
            number=rival.number,
            rounds=rounds,
            metrics=rival.metrics,
            score=score.value,
            violations=score.violations,
            baseline_metrics=baseline,
            compared=rival.compared,
            traces=traces,
        )

    def _scored(self, one: Finished, spec: TrialSpec) -> Finished:
        """`one` against the baseline that `spec` is scored against."""
        score = self.objective.score(one.metrics or {}, spec.baseline_metrics or {})
        return dataclasses.replace(one, score=score.value, violations=score.violations)

    def _rounds(self, number: int) -> tuple[Round, ...]:
        if self.read is not None:
            return self.read(number)
        found = self._known.pop(number, None)
        if found is None:
            found = split(read_requests(self.folder, number), self.planned.rates)
        self._known[number] = found  # the last asked for comes last
        while len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]
        return found
