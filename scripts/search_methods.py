"""The ways to search that `bench_search.py` compares. Each is asked for the next flags, and told what came of them.

All begin with today's flags, the middle ones of those that run: what is better is the question. None but ours may know
anything of vLLM.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import Trial, TrialState
from search_world import Landscape, Seen, with_seed

from sweep.alone import Alone
from sweep.config.models import StudySection
from sweep.search_space import Key, flags_key
from sweep.trial import Flag, Flags, TrialStatus

# A sampler that hears nothing of failures may launch what fails in seconds again and again.
MOST_LAUNCHES = 2
# Proposals of a plain sampler that were not recorded, one after the other, before it gets one at random, as ours does.
_MOST_ASKS = 16
Proposals = Iterator[Flags]


@dataclass(frozen=True, slots=True)
class Step:
    """A launch of a search. `spent_s`: virtual time since its beginning; `believed`: what it would recommend by now."""

    spent_s: float
    failed: bool
    believed: Flags | None


def ours(found: Landscape, seed: int, changes: Mapping[str, Mapping[str, object]]) -> list[Step]:
    """A whole study of `sweep` in this process, with `changes` to its settings."""
    study = Alone(with_seed(found, seed, changes), found.budget_s)
    study.run()
    steps, seen, spent_s = [], [], 0.0
    for outcome in study.outcomes.values():
        one = outcome.finished()
        spent_s += outcome.result.total_s
        value = one.score if one.status is TrialStatus.COMPLETE and not one.disturbed else None
        seen.append(Seen(one.flags, value, outcome.result.total_s))
        failed = one.status in (TrialStatus.INFEASIBLE, TrialStatus.FAILED)
        steps.append(Step(spent_s, failed, believed(seen)))
    return steps


def other(found: Landscape, seed: int, search: Callable[[Landscape, int, list[Seen]], Proposals]) -> list[Step]:
    """A search that proposes flags one after the other, the baseline first, until the budget or its ideas end."""
    replay = dataclasses.replace(found.replay, seed=seed)
    objective = found.prepared.setup.objective
    seen: list[Seen] = []
    steps: list[Step] = []
    times: dict[Key, int] = {}
    reference = None
    spent_s = 0.0
    for flags in _baseline_first(found, search(found, seed, seen)):
        key = flags_key(flags)
        drawn, _ = replay.drawn(flags, times.get(key, 0))
        times[key] = times.get(key, 0) + 1
        took_s = drawn.took_s(len(drawn.rounds))
        spent_s += took_s
        if spent_s > found.budget_s or len(steps) >= MOST_LAUNCHES * len(found.points):
            break
        value = None
        if not drawn.failed:
            metrics = found.metrics(drawn)
            reference = reference or metrics
            value = objective.score(metrics, reference).value
        seen.append(Seen(flags, value, took_s))
        steps.append(Step(spent_s, drawn.failed, believed(seen)))
    return steps


def _baseline_first(found: Landscape, proposals: Proposals) -> Proposals:
    yield found.baseline
    yield from proposals


def believed(seen: Sequence[Seen]) -> Flags | None:
    """The point whose launches scored best on average; None while none was measured."""
    scores: dict[Key, list[float]] = {}
    flags: dict[Key, Flags] = {}
    for one in seen:
        if one.value is not None:
            scores.setdefault(flags_key(one.flags), []).append(one.value)
            flags[flags_key(one.flags)] = one.flags
    return flags[min(scores, key=lambda key: fmean(scores[key]))] if scores else None


def at_random(found: Landscape, seed: int, seen: list[Seen]) -> Proposals:
    """Every point once, in a random order."""
    del seen
    points = [point for point in found.points if flags_key(point) != flags_key(found.baseline)]
    random.Random(seed).shuffle(points)
    yield from points


def grid(found: Landscape, seed: int, seen: list[Seen]) -> Proposals:
    """As `vllm bench sweep serve` goes through its file of parameters: one server for each entry, from the first to the
    last. Written by hand such a file is a nest of loops, the last flag changing fastest, values from low to high. (Its
    default of three runs for each server is taken as one.)"""
    del seed, seen
    yield from (point for point in found.points if flags_key(point) != flags_key(found.baseline))


def auto_tune(found: Landscape, seed: int, seen: list[Seen]) -> Proposals:
    """vLLM's auto_tune script: with the largest step and most seats, go down from the highest memory utilization until
    a server starts; keep that, and go through seats, and for each through step sizes, from low to high. Flags it does
    not know stay as they are today. (It ranks by throughput under a latency limit; here by the same score as all. Its
    first servers are started alone; here each is a whole launch, and what it measured counts.)"""
    del seed
    memory, seats, step = "gpu-memory-utilization", "max-num-seqs", "max-num-batched-tokens"
    known = {name: _values(found, name) for name in (memory, seats, step) if name in found.baseline}
    recorded = {flags_key(point) for point in found.points}
    most = {name: values[-1] for name, values in known.items() if name != memory}
    kept: dict[str, Flag] = {}
    for value in reversed(known.get(memory, [])):
        flags = {**found.baseline, **most, memory: value}
        if flags_key(flags) not in recorded:
            continue
        yield flags
        if seen[-1].value is not None:
            kept = {memory: value}
            break
    for first in known.get(seats, [found.baseline.get(seats)]):
        for second in known.get(step, [found.baseline.get(step)]):
            wanted = {seats: first, step: second, **kept}
            flags = {name: wanted.get(name, value) for name, value in found.baseline.items()}
            if flags_key(flags) in recorded:
                yield flags


def tpe(found: Landscape, seed: int, seen: list[Seen]) -> Proposals:
    """Optuna's TPE as it comes, failed launches told as FAIL."""
    yield from _optuna(found, seed, seen, optuna.samplers.TPESampler(seed=seed))


def gp(found: Landscape, seed: int, seen: list[Seen]) -> Proposals:
    """Optuna's Gaussian process as it comes, failed launches told as FAIL."""
    yield from _optuna(found, seed, seen, optuna.samplers.GPSampler(seed=seed))


def _optuna(found: Landscape, seed: int, seen: list[Seen], sampler: optuna.samplers.BaseSampler) -> Proposals:
    """Numbers by their place among the recorded values; one of today's flags is told first, since all launch those.

    A point that was not recorded is told as FAIL and costs nothing. A sampler that comes to nothing else, since a FAIL
    teaches it nothing, gets a recorded point at random that it never had.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=sampler)
    values = {name: _values(found, name) for name in found.baseline}
    axes: dict[str, BaseDistribution] = {name: _axis(one) for name, one in values.items()}
    recorded = {flags_key(point) for point in found.points}
    study.enqueue_trial({name: values[name].index(value) for name, value in found.baseline.items()})
    _tell(study, study.ask(axes), seen[-1])
    refused, rng = 0, random.Random(seed)
    while True:
        trial = study.ask(axes)
        flags = {name: values[name][trial.params[name]] for name in values}
        if flags_key(flags) in recorded:
            refused = 0
            yield flags
            _tell(study, trial, seen[-1])
            continue
        study.tell(trial, state=TrialState.FAIL)
        refused += 1
        if refused >= _MOST_ASKS:
            had = {flags_key(one.flags) for one in seen}
            left = [point for point in found.points if flags_key(point) not in had]
            if not left:
                return
            study.enqueue_trial({name: values[name].index(value) for name, value in rng.choice(left).items()})


def _axis(values: Sequence[Flag]) -> BaseDistribution:
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return IntDistribution(0, len(values) - 1)
    return CategoricalDistribution(tuple(range(len(values))))


def _tell(study: optuna.Study, trial: Trial, last: Seen) -> None:
    if last.value is None:
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, last.value)


def _values(found: Landscape, name: str) -> list[Any]:
    return sorted({point[name] for point in found.points}, key=lambda value: (value is None, value))


OTHERS: Mapping[str, Callable[[Landscape, int, list[Seen]], Proposals]] = {
    "random": at_random,
    "grid": grid,
    "auto_tune": auto_tune,
    "Optuna TPE": tpe,
    "Optuna GP": gp,
}
# Ours, and ours without each of the parts that a study file can switch off.
OURS: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    "ours": {},
    **{
        f"ours without {name}": {"study": {name: False}}
        for name in ("gate", "equivalence", "racing")
        if name in StudySection.model_fields
    },
    **{f"ours with {name}": {"study": {"sampler": name}} for name in ("twin", "gp")},
}
