"""Which setting to measure next, by the twin: what promises to be better, or else what separates the costs.

1. The setting of greatest expected improvement (`sweep.twinning.improve`), SLOs as the probability of keeping them.
2. Where none promises anything while only today's flags are measured: the setting whose launch tells most of the costs
for its time. 3. Once none promises more than noise, nothing: the time is worth more in the confirmation.

Settings that do the same step by step are one; of them the one nearest to today's flags is named. A pure function of
the study's record, the space, the seed and the number of the trial. What the twin computes is used for choosing alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sweep.errors import UserError
from sweep.objective import Objective
from sweep.search_space import SearchSpace, canonical
from sweep.trial import Flags
from sweep.twinning.basis import Learnt, distance, learn, nearest_first
from sweep.twinning.candidates import Candidate, candidates, classes
from sweep.twinning.computed import COMPUTED
from sweep.twinning.improve import Residuals, below, expected_improvement, information
from sweep.twinning.landscape import Landscape, Played
from sweep.twinning.load import own_rounds
from sweep.twinning.record import Launch, Record
from sweep.twinning.target import target_of

# What a fit and a scan may simulate, in steps: a few seconds each.
_FIT_STEPS, _SCAN_STEPS = 4_000.0, 800_000.0
_MEMBERS = 8
# Settings that are looked at with the whole ensemble.
_SHORT_LIST = 16
# Measured settings, today's flags included, before the twin may say that nothing is left; and what an expected
# improvement must be worth, as a share of the best score: below that launches tell luck from luck.
_LEAST_MEASURED, _PROMISING = 4, 0.005
# The twin does not fit where its figures are off by this factor's logarithm at the median, or where the scores of so
# many settings are off by as much and in another order.
_UNFIT, _ENOUGH_TO_TELL = 0.5, 6
# And it may end a search only where measured scores are off by less than this.
_TRUSTED = 0.2
# A setting this much worse than today's flags is not launched to learn of costs; one launch differs by this at least.
_HOPELESS, _LEAST_NOISE = 3.0, 0.02


@dataclass(frozen=True, slots=True)
class Advice:
    """`ranked` are settings worth a launch, the best first. `kind`: what they are for; `done` and `unfit` have none,
    because nothing is promising any more or because the twin cannot tell. `reason` is one line.
    """

    kind: Literal["separate", "improve", "done", "unfit"]
    ranked: tuple[Flags, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class _Scene:
    """All that is simulated for one piece of advice."""

    record: Record
    objective: Objective
    landscape: Landscape
    learnt: Learnt
    base: Candidate
    found: tuple[Candidate, ...]
    measured: tuple[tuple[Launch, Candidate], ...]

    def metrics(self, launch: Launch) -> Mapping[str, float | None]:
        return self.record.metrics_of(launch, self.objective)

    def score(self, played: Played, base: Played) -> float | None:
        return self.objective.score(played.figures, base.figures).value


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
        scene = _scene(record, space, objective, seed)
    except UserError as error:
        return Advice("unfit", (), str(error))
    if isinstance(scene, str):
        return Advice("unfit", (), scene)
    fresh = _fresh(scene, record, taken)
    residuals, scores = _residuals(scene)
    if (why := _misfit(scores)) is not None:
        return Advice("unfit", (), why)
    rated = _rated(scene, fresh, residuals)
    promise = rated[0][0] if rated else 0.0
    if len({one.schedule for _, one in scene.measured}) < 2 and promise < _PROMISING:
        advice = _separate(scene, fresh, startup_s)
    else:
        advice = _improve(scene, rated)
    if advice.kind == "done" and (off := _off(scores)) > _TRUSTED:
        why = f"it finds nothing promising any more, but measured scores are off by {math.expm1(off):.0%}"
        return Advice("unfit", (), why)
    return advice


def _cannot_tell(space: SearchSpace, objective: Objective) -> str | None:
    if objective.front:
        return "a front of several metrics is looked for"
    foreign = [one.name for one in space.parameters if one.name not in COMPUTED and one.size != 1]
    return f"what {foreign[0]} changes cannot be computed" if foreign else None


def _scene(record: Record, space: SearchSpace, objective: Objective, seed: int) -> _Scene | str:
    """The twin of the study as known now, and all settings it looks at; or why there is none."""
    base_target = target_of({**record.fixed, **record.baseline}, record)
    near = nearest_first(record, base_target)
    base_launch = next((one for one in near if one.trial.number == 0), None)
    if base_launch is None:
        return "today's flags were not measured whole and undisturbed"
    learnt = learn(record, near, steps=_FIT_STEPS, members=_MEMBERS)
    fitted = learnt.calibration.fitted
    assert fitted is not None  # it rests on trials
    off = float(np.median(np.abs(fitted.residuals[fitted.scales > 0])))
    if off > _UNFIT:
        return f"its figures are off by {math.expm1(off):.0%} at the median even where they were measured"
    rounds = own_rounds(*record.requests_of(base_launch.trial.number))
    landscape = Landscape(
        [one.load for one in rounds],
        objective.metrics_needed(),
        objective.limits,
        record.max_concurrency,
        [one.request_rate_per_s for one in rounds],
    )
    costs = learnt.calibration.costs
    known = [one for one in near if one.own_load]
    measured = tuple((one, there) for one in known if (there := _known(one, landscape, learnt)) is not None)
    base = next((there for one, there in measured if one is base_launch), None)
    if base is None or objective.score(base.played.figures, base.played.figures).value is None:
        return "the load leaves a metric of the objective undefined"
    best = sorted(measured, key=lambda pair: pair[0].trial.score or math.inf)[:3]
    found = candidates(
        record,
        space,
        landscape,
        costs,
        learnt.calibration.sharing,
        _SCAN_STEPS,
        seed,
        [dict(one.trial.flags) for one, _ in best],
    )
    return _Scene(record, objective, landscape, learnt, base, found, measured)


def _known(launch: Launch, landscape: Landscape, learnt: Learnt) -> Candidate | None:
    engine = learnt.calibration.engine(launch.engine)
    played = landscape.play(engine, learnt.calibration.costs)
    return None if played is None else Candidate(launch.trial.flags, (engine,), played)


def _fresh(scene: _Scene, record: Record, taken: Sequence[Flags]) -> list[Candidate]:
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


def _separate(scene: _Scene, fresh: Sequence[Candidate], startup_s: float) -> Advice:
    """The settings by what a launch tells of the costs for its time, hopeless ones left out."""
    rated = []
    noise = float(np.mean(scene.learnt.calibration.spread))
    hopeful = [one for one in fresh if (scene.score(one.played, scene.base.played) or math.inf) < _HOPELESS]
    for one in _spread_out(hopeful or list(fresh), _SHORT_LIST):
        rows = _ensemble(scene, one)
        if rows is None:
            continue
        names = list(one.played.figures)
        logs = np.log(np.array([[row.figures[name] or math.nan for name in names] for row, _ in rows]))
        told = information(logs, max(noise, _LEAST_NOISE))
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


def _ensemble(scene: _Scene, one: Candidate) -> list[tuple[Played, Played]] | None:
    """What each member makes of a setting and of today's flags; KV cache that is an estimate differs among them."""
    rows = []
    for i, (costs, sharing) in enumerate(scene.learnt.calibration.ensemble()):
        played = scene.landscape.play(one.engines[i % len(one.engines)].sharing(sharing), costs)
        base = scene.landscape.play(scene.base.engines[0].sharing(sharing), costs)
        if played is None or base is None:
            return None
        rows.append((played, base))
    return rows


def _residuals(scene: _Scene) -> tuple[Residuals, list[tuple[float, float]]]:
    """What measured scores differ from simulated ones by, and the pairs themselves (simulated, measured)."""
    engines, values, pairs, errors = [], [], [], []
    base = next(launch for launch, one in scene.measured if one is scene.base)
    for launch, one in scene.measured:
        own = scene.objective.score(scene.metrics(launch), scene.metrics(base)).value
        simulated = scene.score(one.played, scene.base.played)
        if own and simulated:
            engines.append(one.engines[0])
            values.append(math.log(own / simulated))
            pairs.append((simulated, own))
        scores = [value for value in launch.trial.round_scores if value]
        if len(scores) > 1:
            errors.append(float(np.std(np.log(scores), ddof=1)) / math.sqrt(len(scores)))
    noise = max(float(np.median(errors)) if errors else 0.0, _LEAST_NOISE)
    return Residuals.of(engines, values, noise, distance), pairs


def _misfit(pairs: Sequence[tuple[float, float]]) -> str | None:
    """Why the measured scores speak against the twin; None where they do not."""
    if len(pairs) < _ENOUGH_TO_TELL:
        return None
    simulated, measured = np.log(np.array(pairs)).T
    off = float(np.std(measured - simulated))
    ranks = [np.argsort(np.argsort(values)) for values in (simulated, measured)]
    order = float(np.corrcoef(ranks[0], ranks[1])[0, 1]) if np.ptp(simulated) > 0 and np.ptp(measured) > 0 else 1.0
    if off > _UNFIT or (off > 0.1 and order < 0.3):
        return f"measured scores are off by {math.expm1(off):.0%} and in another order (rank correlation {order:.2f})"
    return None


def _rated(scene: _Scene, fresh: Sequence[Candidate], residuals: Residuals) -> list[tuple[float, Candidate]]:
    """The most promising settings, best first, each with its expected improvement over the best that was measured, as a
    share of that, times the probability that it keeps the SLOs."""
    best = _best(scene, residuals)

    def at_first(one: Candidate) -> float:
        mean, _ = residuals.at(one.engines[0])
        kept = _kept(scene, one, [])
        return math.log(scene.score(one.played, scene.base.played) or math.inf) + mean - math.log(max(kept, 1e-9))

    rated = []
    for one in sorted(fresh, key=at_first)[:_SHORT_LIST]:
        rows = _ensemble(scene, one)
        simulated = scene.score(one.played, scene.base.played)
        if rows is None or not simulated:
            continue
        scores = [score for played, base in rows if (score := scene.score(played, base))]
        mean, variance = residuals.at(one.engines[0])
        spread = float(np.var(np.log(scores))) if len(scores) > 1 else 0.0
        kept = _kept(scene, one, rows)
        gain = 1.0 if best is None else expected_improvement(math.log(simulated) + mean, variance + spread, best) / best
        rated.append((gain * kept, one))
    rated.sort(key=lambda pair: -pair[0])
    return rated


def _off(scores: Sequence[tuple[float, float]]) -> float:
    """What measured scores are off by from simulated ones, as a logarithm: root of the mean square without today's
    flags, whose own is 0."""
    simulated, measured = np.log(np.array(scores)).T
    return float(np.sqrt(np.sum((measured - simulated) ** 2) / max(len(scores) - 1, 1)))


def _improve(scene: _Scene, rated: Sequence[tuple[float, Candidate]]) -> Advice:
    """The settings by what they promise; none once that is no more than luck."""
    promise = rated[0][0] if rated else 0.0
    measured = len({one.schedule for _, one in scene.measured})
    if promise < _PROMISING and (measured >= _LEAST_MEASURED or not rated):
        looked = len({one.schedule for one in scene.found})
        reason = f"none of {looked:,} settings that differ at all promises more than {promise:.1%} over the best one"
        return Advice("done", (), reason)
    kept = any(_keeps(scene, launch) for launch, _ in scene.measured)
    aim = f"{promise:.1%} expected over the best measured" if kept else f"SLOs kept with {promise:.0%}"
    return Advice("improve", tuple(one.flags for _, one in rated), aim)


def _keeps(scene: _Scene, launch: Launch) -> bool:
    metrics = scene.metrics(launch)
    return scene.objective.score(metrics, metrics).feasible


def _best(scene: _Scene, residuals: Residuals) -> float | None:
    """The best score among measured settings that keep the SLOs, noise smoothed away; None where none keeps them."""
    found = []
    for launch, one in scene.measured:
        simulated = scene.score(one.played, scene.base.played)
        if simulated and _keeps(scene, launch):
            found.append(simulated * math.exp(residuals.at(one.engines[0])[0]))
    return min(found, default=None)


def _kept(scene: _Scene, one: Candidate, rows: Sequence[tuple[Played, Played]]) -> float:
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
        off = math.hypot(spread, max(float(np.mean(scene.learnt.calibration.spread)), _LEAST_NOISE))
        share *= below(-math.log1p(max(excess, -0.999)) / off)
    return share
