"""The objective over two flags, by the twin, with what was measured."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from pydantic import ValidationError

from sweep.config import ObjectiveSection
from sweep.config.models import SearchSpaceConfig
from sweep.errors import ConfigError, UserError
from sweep.flags import canonical
from sweep.objective import Objective
from sweep.predict.settings import merged
from sweep.predict.values import Question
from sweep.report.source import Source
from sweep.search_space import SearchSpace
from sweep.search_space import canonical as one_value
from sweep.trial import Flag, Flags
from sweep.twinning.basis import learn, nearest_first
from sweep.twinning.computed import COMPUTED
from sweep.twinning.landscape import Landscape
from sweep.twinning.load import at_rate, own_rounds
from sweep.twinning.record import Launch, Record, read_record
from sweep.twinning.target import target_of
from sweep.twinning.values import Basis

# So many values of a flag at most: those of the search space, evenly taken, those that were measured among them.
_VALUES = 16
# A flag that is not searched: its value and so many doublings either way.
_DOUBLINGS = 3


@dataclass(frozen=True, slots=True)
class Mark:
    """A measured trial. `changes` are flags in which it differs from the map beside the two."""

    number: int
    at: tuple[Flag, Flag]
    score: float
    changes: Flags


@dataclass(frozen=True, slots=True)
class FlagMap:
    """Scores by value of the first flag (rows) and of the second; None where the study's constraints or the KV cache
    allow none. Scores are ratios to the baseline, lower is better; those of `marks` are measured, the others simulated.
    `settings` are the flags that stay, `distinct` how many schedules differ.
    """

    study: str
    names: tuple[str, str]
    values: tuple[tuple[Flag, ...], tuple[Flag, ...]]
    scores: tuple[tuple[float | None, ...], ...]
    marks: tuple[Mark, ...]
    baseline: tuple[Flag, Flag]
    settings: Flags
    objective: str
    request_rates_per_s: tuple[float | None, ...]
    basis: Basis
    distinct: int
    cautions: tuple[str, ...]


def flag_map(source: Source, names: tuple[str, str], question: Question) -> FlagMap:
    """The map of a study over two flags; `question` may change others, and the rate. Takes seconds.

    Raises UserError for flags that cannot be computed or have one value only, and where the record does not tell
    enough.
    """
    record = read_record(source.folder, source.trials)
    known = merged(record.baseline, record.fixed, question.changes)
    space = _space(source, record)
    values = (_values(names[0], record, known, space), _values(names[1], record, known, space))
    near = nearest_first(record, target_of(known, record))
    rounds = own_rounds(*record.requests_of(next((one for one in near if one.own_load), near[0]).trial.number))
    if question.request_rate_per_s is not None:
        rounds = at_rate(rounds, question.request_rate_per_s, burstiness=record.burstiness, seed=record.seed)
    learnt = learn(record, near)
    rates = [one.request_rate_per_s for one in rounds]
    objective = _objective(source, tuple(dict.fromkeys(rates)))
    landscape = Landscape(
        [one.load for one in rounds], objective.metrics_needed(), objective.limits, record.max_concurrency, rates
    )
    costs, calibration = learnt.calibration.costs, learnt.calibration
    base_target = target_of({**record.fixed, **record.baseline}, record)
    base = landscape.play(calibration.engine(base_target.engine), costs)
    if base is None:
        raise UserError("the study's baseline cannot run this load at all, so there is nothing to compare with")
    schedules = set()

    def score(first: Flag, second: Flag) -> float | None:
        flags = {**known, names[0]: first, names[1]: second}
        if space is not None and space.violated({n: flags.get(n) for n in space.names}) is not None:
            return None
        played = landscape.play(calibration.engine(target_of(flags, record).engine), costs)
        if played is None:
            return None
        schedules.add(played.schedule)
        return objective.score(played.figures, base.figures).value

    scores = tuple(tuple(score(first, second) for second in values[1]) for first in values[0])
    return FlagMap(
        study=source.study,
        names=names,
        values=values,
        scores=scores,
        marks=_marks(record, objective, names, known) if question.request_rate_per_s is None else (),
        baseline=(record.baseline.get(names[0]), record.baseline.get(names[1])),
        settings={name: value for name, value in known.items() if name not in names},
        objective=objective.describe(),
        request_rates_per_s=tuple(dict.fromkeys(rates)),
        basis=learnt.basis,
        distinct=len(schedules),
        cautions=base_target.cautions,
    )


def parse_pair(text: str) -> tuple[str, str]:
    """`FLAG_A,FLAG_B` as two names. Raises UserError for anything else."""
    parts = [canonical(part) for part in text.split(",")]
    if len(parts) != 2 or not all(parts) or parts[0] == parts[1]:
        raise UserError(f"--map: {text!r} is not two flags, such as max-num-seqs,max-num-batched-tokens")
    for name in parts:
        if name not in COMPUTED:
            raise UserError(f"--map: what {name} changes cannot be computed; these can: {', '.join(sorted(COMPUTED))}")
    return parts[0], parts[1]


def _objective(source: Source, rates: Sequence[float | None]) -> Objective:
    section = source.objective or ObjectiveSection()
    return Objective.of(section.preset, section.weights, section.slo, section.aggregate, rates=rates)


def _space(source: Source, record: Record) -> SearchSpace | None:
    """The study's own space as last run; None where it is not known."""
    try:
        content = json.loads((source.folder / "study.json").read_text(encoding="utf-8"))
        config = SearchSpaceConfig.model_validate(content["search_space"])
        return SearchSpace.from_config(config, record.fixed)
    except (OSError, ValueError, KeyError, TypeError, ValidationError, ConfigError):
        return None


def _values(name: str, record: Record, known: Flags, space: SearchSpace | None) -> tuple[Flag, ...]:
    """The values of a flag that the map has, in order. Raises UserError where there is only one."""
    measured = [launch.flags.get(name) for launch in record.launches]
    parameter = next((one for one in space.parameters if one.name == name), None) if space is not None else None
    if parameter is not None and parameter.size is not None:
        every = _thinned(list(parameter.values()), _VALUES)
    elif parameter is not None and hasattr(parameter, "low"):
        low, high = Decimal(parameter.low), Decimal(parameter.high)
        every = [parameter.quantise(float(low + (high - low) * place / (_VALUES - 1))) for place in range(_VALUES)]
    else:
        every = _around(name, known.get(name))
    found = {one_value(value): value for value in (*every, *measured)}
    values = [value for value in found.values() if value is None or COMPUTED[name][0](value)]
    if len(values) < 2:
        raise UserError(f"--map: {name} has one value in this study, so there is nothing to map")
    return tuple(sorted(_thinned(sorted(values, key=_order), 2 * _VALUES), key=_order))


def _around(name: str, value: Flag) -> list[Flag]:
    """Values about one that is not searched: doublings of a whole number, both of a switch."""
    if isinstance(value, bool):
        return [False, True]
    if not isinstance(value, int) or value < 1:
        raise UserError(f"--map: {name} is not searched, and has no number in the baseline to start from")
    return [n for k in range(-_DOUBLINGS, _DOUBLINGS + 1) if (n := int(value * 2.0**k)) >= 1]


def _thinned(values: list[Flag], most: int) -> list[Flag]:
    if len(values) <= most:
        return values
    places = sorted({round(k * (len(values) - 1) / (most - 1)) for k in range(most)})
    return [values[place] for place in places]


def _order(value: Flag) -> tuple[int, float, str]:
    if value is None or isinstance(value, str):
        return (2 if value is None else 1, 0.0, str(value))
    return (0, float(value), "")


def _marks(record: Record, objective: Objective, names: Sequence[str], known: Flags) -> tuple[Mark, ...]:
    baseline = next((one for one in record.launches if one.trial.number == 0), None)
    if baseline is None or not baseline.telling:
        return ()
    metrics = record.metrics_of(baseline, objective)
    found = []
    for launch in record.launches:
        if not (launch.telling and launch.own_load):
            continue
        value = objective.score(record.metrics_of(launch, objective), metrics).value
        if value is not None and math.isfinite(value):
            at = (launch.flags.get(names[0]), launch.flags.get(names[1]))
            found.append(Mark(launch.trial.number, at, value, _elsewhere(launch, known, names)))
    return tuple(found)


def _elsewhere(launch: Launch, known: Flags, names: Sequence[str]) -> Flags:
    return {
        name: launch.flags.get(name)
        for name in {**launch.flags, **known}
        if name not in names and one_value(launch.flags.get(name)) != one_value(known.get(name))
    }
