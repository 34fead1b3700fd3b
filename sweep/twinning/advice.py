"""Which setting to measure next, by the twin: what promises to be better, or else what separates the costs.

1. The setting of greatest expected improvement (`sweep.twinning.improve`), SLOs as the probability of keeping them.
2. Where none promises anything while only today's flags are measured: the setting whose launch tells most of the costs
for its time. 3. Once none promises more than noise, nothing: the time is worth more in the confirmation.

Settings that do the same step by step are one; of them the one nearest to today's flags is named. A pure function of
the study's record, the space, the seed and the number of the trial. What the twin computes is used for choosing alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sweep.errors import UserError
from sweep.objective import Objective
from sweep.search_space import SearchSpace, canonical
from sweep.trial import Flags
from sweep.twin import Engine
from sweep.twinning.basis import distance
from sweep.twinning.candidates import Candidate, classes
from sweep.twinning.computed import COMPUTED
from sweep.twinning.improve import Residuals, below, expected_improvement, information
from sweep.twinning.landscape import Played
from sweep.twinning.record import Record
from sweep.twinning.scene import Scene, ensemble, keeps, scene_of
from sweep.twinning.told import LEAST_NOISE, misfit, off_by, residuals_of

# Settings that are looked at with the whole ensemble.
_SHORT_LIST = 16
# Measured settings, today's flags included, before the twin may say that nothing is left; and what an expected
# improvement must be worth, as a share of the best score: below that launches tell luck from luck.
_LEAST_MEASURED, _PROMISING = 4, 0.005
# It may not as long as one setting has such a chance to be better by this share: the lower end of a 90 % interval.
_CHANCE, _WORTH = 0.05, 0.02
# It may end a search only where measured scores are off by less than this.
_TRUSTED = 0.2
# A setting this much worse than today's flags is not launched to learn of costs.
_HOPELESS = 3.0


@dataclass(frozen=True, slots=True)
class Advice:
    """`ranked` are settings worth a launch, the best first. `kind`: what they are for; `done` and `unfit` have none,
    because nothing is promising any more or because the twin cannot tell. `reason` is one line.
    """

    kind: Literal["separate", "improve", "done", "unfit"]
    ranked: tuple[Flags, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class _Rated:
    """A setting with its expected improvement over the best that was measured, as a share of that, and the probability
    that it is better by `_WORTH`; both times the probability that it keeps the SLOs."""

    gain: float
    chance: float
    candidate: Candidate


def advise(
    record: Record,
    space: SearchSpace,
    objective: Objective,
    *,
    seed: int,
    taken: Sequence[Flags] = (),
    startup_s: float = 60.0,
) -> Advice:
    """Advice from the trials in `record`, which are those of lower number. `taken` are points that run, or that are
    known not to be wanted; `startup_s` is what a launch takes beside its load. Takes seconds.
    """
    if (why := _cannot_tell(space, objective)) is not None:
        return Advice("unfit", (), why)
    try:
        scene = scene_of(record, space, objective, seed)
    except UserError as error:
        return Advice("unfit", (), str(error))
    if isinstance(scene, str):
        return Advice("unfit", (), scene)
    fresh = _fresh(scene, record, taken)
    residuals, scores = residuals_of(scene)
    if (why := misfit(scores, residuals)) is not None:
        return Advice("unfit", (), why)
    rated = _rated(scene, fresh, residuals)
    promise = rated[0].gain if rated else 0.0
    if len({one.schedule for _, one in scene.measured}) < 2 and promise < _PROMISING:
        advice = _separate(scene, fresh, startup_s)
    else:
        advice = _improve(scene, rated)
    if advice.kind == "done" and (off := off_by(scores, residuals)) > _TRUSTED:
        why = f"it finds nothing promising any more, but measured scores are off by {math.expm1(off):.0%}"
        return Advice("unfit", (), why)
    return advice


def _cannot_tell(space: SearchSpace, objective: Objective) -> str | None:
    if objective.front:
        return "a front of several metrics is looked for"
    foreign = [one.name for one in space.parameters if one.name not in COMPUTED and one.size != 1]
    return f"what {foreign[0]} changes cannot be computed" if foreign else None


def _fresh(scene: Scene, record: Record, taken: Sequence[Flags]) -> list[Candidate]:
    """One setting of each class that nobody measures or has measured: the nearest to today's flags."""
    gone = {one.schedule for _, one in scene.measured}
    refused = {_key(flags) for flags in taken}
    gone |= {one.schedule for one in scene.found if _key(one.flags) in refused}
    refused |= {_key(launch.trial.flags) for launch in record.launches}
    return [
        one
        for one in classes(scene.found, record.baseline)
        if one.schedule not in gone and _key(one.flags) not in refused
    ]


def _key(flags: Flags) -> tuple[object, ...]:
    return tuple(sorted((name, canonical(value)) for name, value in flags.items()))


def _separate(scene: Scene, fresh: Sequence[Candidate], startup_s: float) -> Advice:
    """The settings by what a launch tells of the costs for its time, hopeless ones left out."""
    rated = []
    noise = float(np.mean(scene.learnt.calibration.spread))
    hopeful = [one for one in fresh if (scene.score(one.played, scene.base.played) or math.inf) < _HOPELESS]
    for one in _spread_out(hopeful or list(fresh), _SHORT_LIST):
        rows = ensemble(scene, one)
        if rows is None:
            continue
        names = list(one.played.figures)
        logs = np.log(np.array([[row.figures[name] or math.nan for name in names] for row, _ in rows]))
        told = information(logs, max(noise, LEAST_NOISE))
        rated.append((told / (one.played.load_s + startup_s), one))
    rated.sort(key=lambda pair: -pair[0])
    if not rated:
        return Advice("done", (), "every setting does the same as today's flags under this load, step by step")
    return Advice("separate", tuple(one.flags for _, one in rated), "its launch tells most of what steps cost")


def _spread_out(found: Sequence[Candidate], count: int) -> list[Candidate]:
    """Some of the settings, far from one another."""
    chosen = list(found[:1])
    rest = list(found[1:])
    away = [distance(one.engines[0], chosen[0].engines[0]) for one in rest] if chosen else []
    while rest and len(chosen) < count:
        place = int(np.argmax(away))
        chosen.append(rest.pop(place))
        away.pop(place)
        away = [min(d, distance(one.engines[0], chosen[-1].engines[0])) for d, one in zip(away, rest, strict=True)]
    return chosen


def _rated(scene: Scene, fresh: Sequence[Candidate], residuals: Residuals) -> list[_Rated]:
    """The most promising settings, best first."""
    best, where = _best(scene, residuals)

    def at_first(one: Candidate) -> float:
        mean, _ = residuals.at(one.engines[0])
        kept = _kept(scene, one, [])
        return math.log(scene.score(one.played, scene.base.played) or math.inf) + mean - math.log(max(kept, 1e-9))

    rated = []
    for one in sorted(fresh, key=at_first)[:_SHORT_LIST]:
        rows = ensemble(scene, one)
        simulated = scene.score(one.played, scene.base.played)
        if rows is None or not simulated:
            continue
        scores = [score for played, base in rows if (score := scene.score(played, base))]
        mean, variance = residuals.at(one.engines[0])
        if where is not None:
            variance = residuals.between(one.engines[0], where)
        spread = float(np.var(np.log(scores))) if len(scores) > 1 else 0.0
        kept = _kept(scene, one, rows)
        gain = chance = 1.0
        if best is not None:
            expected, variance = math.log(simulated) + mean, variance + spread
            gain = expected_improvement(expected, variance, best) / best
            ahead = math.log(best * (1.0 - _WORTH)) - expected
            chance = below(ahead / math.sqrt(variance)) if variance > 0 else float(ahead > 0)
        rated.append(_Rated(gain * kept, chance * kept, one))
    rated.sort(key=lambda one: -one.gain)
    return rated


def _improve(scene: Scene, rated: Sequence[_Rated]) -> Advice:
    """The settings by what they promise; none once that is no more than luck, and none has a chance worth a launch."""
    promise = rated[0].gain if rated else 0.0
    chance = max((one.chance for one in rated), default=0.0)
    measured = len({one.schedule for _, one in scene.measured})
    if promise < _PROMISING and chance < _CHANCE and (measured >= _LEAST_MEASURED or not rated):
        looked = len({one.schedule for one in scene.found})
        reason = (
            f"none of {looked:,} settings that differ at all promises more than {promise:.1%} over the best one, "
            f"or is better by {_WORTH:.0%} with more than {chance:.0%}"
        )
        return Advice("done", (), reason)
    kept = any(keeps(scene, launch) for launch, _ in scene.measured)
    aim = f"{promise:.1%} expected over the best measured" if kept else f"SLOs kept with {promise:.0%}"
    return Advice("improve", tuple(one.candidate.flags for one in rated), aim)


def _best(scene: Scene, residuals: Residuals) -> tuple[float | None, Engine | None]:
    """The best score among measured settings that keep the SLOs, noise smoothed away, and whose it is; None where none
    keeps them."""
    found: list[tuple[float, Engine]] = []
    for launch, one in scene.measured:
        simulated = scene.score(one.played, scene.base.played)
        if simulated and keeps(scene, launch):
            found.append((simulated * math.exp(residuals.at(one.engines[0])[0]), one.engines[0]))
    return min(found, key=lambda pair: pair[0], default=(None, None))


def _kept(scene: Scene, one: Candidate, rows: Sequence[tuple[Played, Played]]) -> float:
    """How probable it is that a setting keeps every SLO, each figure corrected as today's flags need it."""
    share = 1.0
    base = next(launch for launch, found in scene.measured if found is scene.base)
    corrected = scene.metrics(base)
    for name in scene.objective.limits:
        figure, ours, theirs = one.played.figures[name], scene.base.played.figures[name], corrected.get(name)
        if not figure or not ours or not theirs:
            return 0.0
        expected = figure * theirs / ours
        figures = {**one.played.figures, name: expected}
        excess = scene.objective.score(figures, scene.base.played.figures).violations[name]
        own = [value for played, _ in rows if (value := played.figures[name])]
        spread = float(np.std(np.log(own))) if len(own) > 1 else 0.0
        off = math.hypot(spread, max(float(np.mean(scene.learnt.calibration.spread)), LEAST_NOISE))
        share *= below(-math.log1p(max(excess, -0.999)) / off)
    return share
