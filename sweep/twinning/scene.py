"""All that is simulated for one piece of advice: what was measured and what could be, on the twin as known now."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sweep.objective import Objective
from sweep.search_space import SearchSpace
from sweep.twinning.basis import Learnt, learn, nearest_first
from sweep.twinning.candidates import Candidate, candidates
from sweep.twinning.landscape import Landscape, Played
from sweep.twinning.load import own_rounds
from sweep.twinning.record import Launch, Record
from sweep.twinning.target import target_of

# What a fit and a scan may simulate, in steps: a few seconds each.
_FIT_STEPS, _SCAN_STEPS = 4_000.0, 800_000.0
_MEMBERS = 8
# The twin does not fit where its figures are off by this factor's logarithm at the median.
UNFIT = 0.5


@dataclass(frozen=True, slots=True)
class Scene:
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


def scene_of(record: Record, space: SearchSpace, objective: Objective, seed: int) -> Scene | str:
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
    if off > UNFIT:
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
    return Scene(record, objective, landscape, learnt, base, found, measured)


def _known(launch: Launch, landscape: Landscape, learnt: Learnt) -> Candidate | None:
    engine = learnt.calibration.engine(launch.engine)
    played = landscape.play(engine, learnt.calibration.costs)
    return None if played is None else Candidate(launch.trial.flags, (engine,), played)


def ensemble(scene: Scene, one: Candidate) -> list[tuple[Played, Played]] | None:
    """What each member makes of a setting and of today's flags; KV cache that is an estimate differs among them."""
    rows = []
    for i, (costs, sharing) in enumerate(scene.learnt.calibration.ensemble()):
        played = scene.landscape.play(one.engines[i % len(one.engines)].sharing(sharing), costs)
        base = scene.landscape.play(scene.base.engines[0].sharing(sharing), costs)
        if played is None or base is None:
            return None
        rows.append((played, base))
    return rows


def keeps(scene: Scene, launch: Launch) -> bool:
    metrics = scene.metrics(launch)
    return scene.objective.score(metrics, metrics).feasible
