"""Points that a search tries before it proposes any: a person's, the best of an earlier study, what vLLM would take by
itself, and corners of the space that the memory model calls safe.

They are told to nobody as measurements: each is launched like any other point, or passed over as any other is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from sweep.config import StudyConfig
from sweep.config.mistakes import shown
from sweep.errors import ConfigError
from sweep.fingerprint import Fingerprint
from sweep.search_space import Key, Options, Parameter, Range, SearchSpace, flags_key
from sweep.store import StoredTrial, read_trials
from sweep.trial import SEARCHING, Flag, Flags, TrialStatus

_ENQUEUE, _WARM_START = "search_space.enqueue", "study.warm_start"
# Of an earlier study: beyond its best few its order is noise.
_WARM = 3
# A shorter search has no launches to spare for points that nobody asked for.
_TRIALS = 20
# How sure the memory model must be of a corner.
SAFE = 0.99
SEQS, BATCHED, UTILIZATION = "max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization"


@dataclass(frozen=True, slots=True)
class StartPoint:
    """A point and where it comes from."""

    flags: Flags
    why: str


def enqueued(config: StudyConfig, space: SearchSpace) -> tuple[StartPoint, ...]:
    """The points of `search_space.enqueue`, a flag left out being the baseline's. Raises ConfigError for one that lies
    outside the space or breaks a constraint."""
    found = []
    for place, given in enumerate(config.search_space.enqueue):
        key = f"{_ENQUEUE}[{place}]"
        for name in given:
            if name not in space.names:
                raise ConfigError("is not under search_space.parameters: only searched flags", key=f"{key}.{name}")
        point = {**config.baseline_flags(), **given}
        for parameter in space.parameters:
            value = point[parameter.name]
            if not parameter.contains(value):
                whose = "" if parameter.name in given else "the baseline's, "
                where = f"{key}.{parameter.name}" if parameter.name in given else key
                raise ConfigError(
                    f"{parameter.name} {shown(value)} ({whose}outside the search space): give one of "
                    f"{_described(parameter)}",
                    key=where,
                )
        point = space.quantise(point)
        if (broken := space.violated(point)) is not None:
            raise ConfigError(f"breaks the constraint {broken!r}", key=key)
        found.append(StartPoint(point, "enqueued"))
    return tuple(found)


def warm_points(
    folder: Path, space: SearchSpace, baseline: Flags, fingerprint: Fingerprint
) -> tuple[tuple[StartPoint, ...], str]:
    """The best of an earlier study of the same model on the same devices, in its own ranking, as far as they lie in
    this space; and a line about them. A point that was measured several times is one, with its mean. Raises
    ConfigError for a folder without trials, or of something else."""
    try:
        other = Fingerprint.from_json((folder / "fingerprint.json").read_text())
    except (OSError, ValueError, TypeError):
        raise ConfigError(f"{folder} holds no study (no fingerprint.json that can be read)", key=_WARM_START) from None
    for what, one, this in (
        ("model", other.model_sha256 or other.model, fingerprint.model_sha256 or fingerprint.model),
        ("GPUs", other.gpus, fingerprint.gpus),
        ("CPU", other.cpu_model if not other.gpus else None, fingerprint.cpu_model if not fingerprint.gpus else None),
    ):
        if one is not None and this is not None and one != this:
            text = f"{folder} measured another {what} ({one}, here {this}): no prior for this one"
            raise ConfigError(text, key=_WARM_START)
    looks: dict[Key, list[StoredTrial]] = {}
    for trial in filter(_measured, read_trials(folder)):
        looks.setdefault(flags_key(trial.flags), []).append(trial)
    best = [same[0] for same in sorted(looks.values(), key=_place)]
    if not best:
        raise ConfigError(f"{folder} has no measured trial", key=_WARM_START)
    points = []
    for place, earlier in enumerate(best[:_WARM]):
        flags = {name: value for name, value in earlier.flags.items() if name in space.names}
        point = space.quantise({**baseline, **flags})
        if space.contains(point) and space.violated(point) is None:
            points.append(StartPoint(point, f"number {place + 1} of {folder.name}"))
    outside = min(_WARM, len(best)) - len(points)
    line = f"warm start: the best {len(points)} of {folder} are tried first; a prior, none of its measurements counts"
    return tuple(points), line + (f" ({outside} more lie outside this search space)" if outside else "")


def _measured(one: StoredTrial) -> bool:
    usable = one.status is TrialStatus.COMPLETE and one.score is not None and not one.disturbances
    return usable and one.kind in SEARCHING


def _place(looks: Sequence[StoredTrial]) -> tuple[bool, float, int]:
    """Sorts points best first: those that kept every SLO, then by the mean of their scores."""
    broken = sum(one.feasible is False for one in looks) * 2 > len(looks)
    return broken, fmean(one.score or 0.0 for one in looks), looks[0].number


def usual_points(
    space: SearchSpace,
    baseline: Flags,
    trials: int,
    *,
    defaults: Mapping[str, Flag],
    starts: Callable[[Flags], float | None],
) -> tuple[StartPoint, ...]:
    """vLLM's own `defaults` for this device as far as the space has them, and safe corners: much memory and many
    sequences, with large steps and with small ones. `starts`: with what probability a server gets ready, None where
    that is not known. None of them in a search of fewer than 20 trials."""
    if trials < _TRIALS:
        return ()
    found = [StartPoint(point, "vLLM's own defaults") for point in _defaults(space, baseline, defaults)]
    for point in _corners(space, baseline):
        chance = starts(point)
        if chance is not None and chance >= SAFE:
            found.append(StartPoint(point, "a corner that fits in memory"))
    return tuple(found)


def _defaults(space: SearchSpace, baseline: Flags, defaults: Mapping[str, Flag]) -> Iterator[dict[str, Flag]]:
    if not any(parameter.contains(None) or parameter.name in defaults for parameter in space.parameters):
        return
    point: dict[str, Flag] = {}
    for parameter in space.parameters:
        if parameter.contains(None):
            point[parameter.name] = None
        else:
            own = defaults.get(parameter.name, baseline.get(parameter.name))
            point[parameter.name] = _nearest(parameter, own)
    if space.contains(point) and space.violated(point) is None:
        yield space.quantise(point)


def _corners(space: SearchSpace, baseline: Flags) -> Iterator[dict[str, Flag]]:
    searched = {parameter.name: parameter for parameter in space.parameters}
    base = {name: _nearest(parameter, baseline.get(name)) for name, parameter in searched.items()}
    high = {name: _ends(searched[name])[1] for name in (UTILIZATION, SEQS) if name in searched}
    steps: Sequence[Flag] = tuple(reversed(_ends(searched[BATCHED]))) if BATCHED in searched else (None,)
    for step in steps:
        point = {**base, **high} | ({} if BATCHED not in searched else {BATCHED: step})
        if space.contains(point) and space.violated(point) is None:
            yield space.quantise(point)


def _numbers(parameter: Options) -> list[int | float]:
    return [one for one in parameter.options if isinstance(one, (int, float)) and not isinstance(one, bool)]


def _ends(parameter: Parameter) -> tuple[Flag, Flag]:
    if isinstance(parameter, Options):
        numbers = _numbers(parameter)
        return (min(numbers), max(numbers)) if numbers else (parameter.options[0], parameter.options[-1])
    if parameter.count is not None:
        return parameter.at(0), parameter.at(parameter.count - 1)
    return parameter.quantise(float(parameter.low)), parameter.quantise(float(parameter.high))


def _nearest(parameter: Parameter, value: Flag) -> Flag:
    """The value of the space that is nearest; `value` itself where it is no number."""
    if parameter.contains(value) or isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if isinstance(parameter, Options):
        return min(_numbers(parameter), key=lambda one: abs(one - value), default=value)
    low, high = float(parameter.low), float(parameter.high)
    inside = min(max(float(value), low), high)
    if parameter.count is None:
        return round(inside) if parameter.integer else parameter.quantise(inside)
    step = round((inside - low) / float(parameter.step or 1))
    return parameter.at(min(max(step, 0), parameter.count - 1))


def _described(parameter: Parameter) -> str:
    if isinstance(parameter, Range):
        grid = "" if parameter.step is None else f" in steps of {parameter.step}"
        return f"{parameter.low} to {parameter.high}{grid}{', or null' if parameter.or_null else ''}"
    return ", ".join("null" if one is None else str(one) for one in parameter.options)
