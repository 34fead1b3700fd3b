"""Recorded landscapes for `bench_search.py`: what there is to find in each, and what a launch gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from sweep.config import StudyConfig
from sweep.metrics import Part, RequestColumns, summarize_parts
from sweep.objective import Objective
from sweep.prepare import Prepared, objective_of
from sweep.replay import Recorded, Recording, Replay, read_recording
from sweep.replayed import prepare_replay
from sweep.search_space import Key, flags_key
from sweep.trial import Flag, Flags

Metrics = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Seen:
    """What one launch showed. `value` is the score against the baseline's own launch, None for a failed one."""

    flags: Flags
    value: float | None
    total_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Landscape:
    """A recording at some of its rates as a search problem.

    `truth` is each point's score from all its launches, against all of the baseline; points that fail are not in it.
    `budget_s` is what a launch of every point takes.
    """

    name: str
    prepared: Prepared
    points: tuple[Flags, ...]
    baseline: Flags
    truth: Mapping[Key, float]
    budget_s: float
    failing: int
    replay: Replay
    _known: dict[int, Metrics] = field(default_factory=dict)

    def metrics(self, one: Recorded) -> Metrics:
        """What the objective needs of a recorded launch of this landscape; computed once."""
        if one.launch.trial.number not in self._known:
            self._known[one.launch.trial.number] = metrics_of(one, self.prepared.setup.objective)
        return self._known[one.launch.trial.number]

    @property
    def best(self) -> float:
        return min(self.truth.values())

    def excess(self, flags: Flags | None) -> float:
        """How much worse than the best a point is, as a share; that of the worst point where there is none."""
        worst = max(self.truth.values())
        value = worst if flags is None else self.truth.get(flags_key(flags), worst)
        return value / self.best - 1.0


def landscapes(folder: Path) -> list[Landscape]:
    """The recording at each of its rates, and at all of them together. Raises HostError."""
    rates = read_recording(folder).rates
    wanted = [(rate,) for rate in rates] + ([rates] if len(rates) > 1 else [])
    return [landscape(folder, one) for one in wanted]


def landscape(folder: Path, rates: Sequence[float | None]) -> Landscape:
    """The recording at these rates, with the balanced objective and `middle` as today's flags."""
    folder = folder.resolve()
    recording = read_recording(folder, rates)
    objective = objective_of(_study(folder, recording, recording.all_flags[0]))
    known = {
        key: [metrics_of(one, objective) for one in launches]
        for key, launches in recording.points.items()
        if not any(one.failed for one in launches)
    }
    baseline = recording.points[middle(known, objective)][0].flags
    prepared = prepare_replay(_study(folder, recording, baseline), folder / "study.yaml", folder / "nowhere")
    replay = prepared.stand_in
    assert isinstance(replay, Replay)
    recording = replay.recording  # read now: what is copied from this replay has it, too
    points = tuple(prepared.space.points())
    truth = scores_of(known, flags_key(baseline), objective)
    spent_s = sum(fmean(one.took_s(len(one.rounds)) for one in recording.at(point)) for point in points)
    name = " and ".join("all at once" if rate is None else f"{rate:g}/s" for rate in rates)
    return Landscape(
        name=f"{folder.name}, {name}",
        prepared=prepared,
        points=points,
        baseline=baseline,
        truth=truth,
        budget_s=spent_s,
        failing=len(points) - len(truth),
        replay=replay,
    )


def with_seed(found: Landscape, seed: int, changes: Mapping[str, Mapping[str, object]] | None = None) -> Prepared:
    """The study with another seed, and other settings of its sections."""
    config = found.prepared.config
    for section, values in {"study": {}, **(changes or {})}.items():
        more = {"seed": seed} if section == "study" else {}
        part = getattr(config, section).model_copy(update={**values, **more})
        config = config.model_copy(update={section: part})
    return dataclasses.replace(found.prepared, config=config, stand_in=dataclasses.replace(found.replay, seed=seed))


def middle(known: Mapping[Key, Sequence[Metrics]], objective: Objective) -> Key:
    """The point with as many better as worse ones, of the metrics of each point's launches: those that were recorded
    first may be the best there are. Scores are against today's flags, and each point is ranked as if it were those.
    """

    def from_middle(key: Key) -> tuple[float, Key]:
        scores = scores_of(known, key, objective)
        if key not in scores:
            return float("inf"), key
        return abs(sum(score < scores[key] for score in scores.values()) - len(scores) // 2), key

    return min(known, key=from_middle)


def scores_of(known: Mapping[Key, Sequence[Metrics]], baseline: Key, objective: Objective) -> dict[Key, float]:
    """The score of each point from all its launches, against all of the baseline; without points that have none."""
    reference = mean_metrics(known[baseline])
    found = {}
    for key, launches in known.items():
        scores = [objective.score(one, reference).value for one in launches]
        if scores and all(score is not None for score in scores):
            found[key] = fmean(score for score in scores if score is not None)
    return found


def metrics_of(one: Recorded, objective: Objective) -> Metrics:
    """What the objective needs of a recorded launch."""
    parts = [
        Part(RequestColumns.of(requests), part.duration_s, part.request_rate_per_s)
        for requests, part in zip(one.requests, one.rounds, strict=True)
    ]
    return summarize_parts(parts, objective.metrics_needed(), slo=objective.limits)


def mean_metrics(found: Sequence[Metrics]) -> Metrics:
    """The mean of each metric; None where one is missing."""
    means: dict[str, float | None] = {}
    for name in found[0]:
        values = [value for one in found if (value := one[name]) is not None]
        means[name] = fmean(values) if len(values) == len(found) else None
    return means


def _study(folder: Path, recording: Recording, baseline: Flags) -> StudyConfig:
    names = list(baseline)
    values: dict[str, list[Flag]] = {
        name: sorted({flags[name] for flags in recording.all_flags}, key=lambda value: (value is None, value or 0))
        for name in names
    }
    return StudyConfig.model_validate(
        {
            "study": {"name": "bench", "engine": "replay", "trials": max(1, len(recording.points))},
            "replay": {"path": str(folder.absolute())},
            "model": {"path": "recorded"},
            "search_space": {"parameters": {name: {"type": "choice", "values": one} for name, one in values.items()}},
            "load": {"request_rate": list(recording.rates)},
            "baseline": dict(baseline),
            "confirm": {"candidates": 0},
        }
    )
