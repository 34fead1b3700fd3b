"""Which trials the costs are learnt from, and how much of each: the nearest ones, and those most unlike them."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sweep.errors import UserError
from sweep.records import RequestRecord
from sweep.trial import Flags
from sweep.twin import Calibration, Engine, Load, Observation, calibrate
from sweep.twin.calibrate import arrivals_per_s
from sweep.twin.values import Floats
from sweep.twinning.computed import uncomputed
from sweep.twinning.load import by_round
from sweep.twinning.record import Launch, Record
from sweep.twinning.target import Target
from sweep.twinning.values import Basis

# The nearest tell most of a setting, and what is unlike them separates the costs; from five on little is gained.
_NEAREST, _TRIALS = 2, 5
# A fit simulates what it looks at some 300 times; a step takes about 3 us, a token a tenth of that: ten seconds in all.
_STEPS, _TOKENS_A_STEP = 12_000, 10.0
_MEMBERS = 16
# Of a round that is cut, so many requests must be over before the cut; otherwise it is taken whole.
_LEAST_REQUESTS = 30
# Rounds of one server stand behind one another, each after a pause of so many times the one before: with costs as far
# off as a fit tries them, too, it finds the engine idle.
_PAUSE = 2.0


@dataclass(frozen=True, slots=True)
class Learnt:
    """Costs, what they were learnt from, and the highest rate of arrivals among that."""

    calibration: Calibration
    basis: Basis
    fastest_per_s: float


def learn(record: Record, near: Sequence[Launch], *, steps: float = _STEPS, members: int = _MEMBERS) -> Learnt:
    """Costs from a few of the trials of `nearest_first`, about `steps` of their work. Takes seconds.

    Raises UserError when none has what it takes.
    """
    chosen = choose([launch.engine for launch in near], _TRIALS)
    taken: list[tuple[Launch, Observation, list[float]]] = []
    held = 0.0
    for i in chosen:
        # Rounds sent all at once cannot be cut: then fewer trials must do.
        found = None if held > 2 * steps else observed(record, near[i], steps / len(chosen))
        if found is not None:
            taken.append((near[i], *found[:2]))
            held += found[2]
    if not taken:
        raise UserError(f"{record.folder}: no trial has a request whose lengths and times are known")
    # All of them have the same weights in the same shape: it is what `nearest_first` goes by.
    least_step_s = 0.0 if record.room is None else record.room.least_step_s(near[0].flags)
    calibration = _calibrated([observation for _, observation, _ in taken], members, least_step_s)
    rates = [rate for *_, own in taken for rate in own]
    # Of observations the pauses between rounds would count as time without arrivals.
    assert calibration.seen is not None  # it rests on observations
    seen = replace(calibration.seen, arrivals_per_s=(min(rates), max(rates)))
    basis = Basis(tuple(sorted(launch.trial.number for launch, *_ in taken)), calibration.requests)
    return Learnt(replace(calibration, seen=seen), basis, max(rates))


_calibrations: OrderedDict[bytes, Calibration] = OrderedDict()
_KEPT = 64


def _calibrated(observations: Sequence[Observation], members: int, least_step_s: float) -> Calibration:
    """A fit takes seconds and depends on its data alone, so the same data are fitted once a process."""
    digest = hashlib.sha256(f"{members} {least_step_s}".encode())
    for one in observations:
        digest.update(f"{one.engine!r}".encode())
        columns = [getattr(one.load, item.name) for item in fields(one.load)]
        for column in (*columns, one.ttft_s, one.e2el_s, one.counts):
            digest.update(f"{column.dtype} {len(column)} ".encode() + column.tobytes())
    key = digest.digest()
    if key not in _calibrations:
        _calibrations[key] = calibrate(observations, members=members, least_step_s=least_step_s)
        if len(_calibrations) > _KEPT:
            _calibrations.popitem(last=False)
    return _calibrations[key]


def nearest_first(record: Record, target: Target) -> tuple[Launch, ...]:
    """The trials that can tell of `target`, nearest settings first, the study's own load before others.

    Raises UserError when there is none, saying what is in the way.
    """
    telling = [launch for launch in record.launches if launch.telling]
    if not telling:
        raise UserError(f"{record.folder}: no trial is complete and undisturbed yet: nothing to predict from")
    alike = [launch for launch in telling if uncomputed(launch.flags) == uncomputed(target.flags)]
    if not alike:
        raise UserError(_not_measured(target.flags, telling))
    order = [(distance(one.engine, target.engine), not one.own_load, one.trial.number, one) for one in alike]
    return tuple(entry[-1] for entry in sorted(order, key=lambda entry: entry[:-1]))


def _not_measured(flags: Flags, telling: Sequence[Launch]) -> str:
    """Which flag stands in the way of every trial, or of the nearest one."""
    wanted = dict(uncomputed(flags))
    differing = [
        sorted(name for name in {*wanted, *own} if wanted.get(name) != own.get(name))
        for own in (dict(uncomputed(launch.flags)) for launch in telling)
    ]
    name = min(differing, key=len)[0]
    values = sorted({str(launch.flags.get(name)) for launch in telling})
    return (
        f"no complete trial has {name}={flags.get(name)}, and what that changes cannot be computed; "
        f"measured: {', '.join(values)}"
    )


def distance(one: Engine, other: Engine) -> float:
    """How unlike two engines are, in octaves: of seats, budget, KV cache, block size and replicas; switches count 1."""
    numbers = [
        (one.max_num_seqs, other.max_num_seqs, 1.0),
        (one.max_num_batched_tokens, other.max_num_batched_tokens, 1.0),
        (one.replicas, other.replicas, 1.0),
        (one.block_size, other.block_size, 0.25),
        (max(one.long_prefill_tokens, 1), max(other.long_prefill_tokens, 1), 0.25),
    ]
    if one.kv_blocks is not None and other.kv_blocks is not None:
        numbers.append((one.kv_blocks * one.block_size, other.kv_blocks * other.block_size, 0.5))
    octaves = sum((weight * math.log2(mine / theirs)) ** 2 for mine, theirs, weight in numbers)
    switches = (
        "chunked_prefill",
        "long_prefill_adaptive",
        "by_priority",
        "prefix_caching",
        "whole_prompt",
        "asynchronous",
    )
    return math.sqrt(octaves + sum(getattr(one, name) is not getattr(other, name) for name in switches))


def choose(engines: Sequence[Engine], count: int) -> tuple[int, ...]:
    """Up to `count` of `engines`, which stand nearest first: the nearest two that differ, then always the one least
    like those chosen; when all settings are there, further launches of the nearest."""
    distinct = [i for i, one in enumerate(engines) if one not in engines[:i]]
    chosen = distinct[:_NEAREST]
    rest = distinct[_NEAREST:]
    while rest and len(chosen) < count:
        farthest = max(rest, key=lambda i: min(distance(engines[i], engines[j]) for j in chosen))
        chosen.append(farthest)
        rest.remove(farthest)
    again = (i for i in range(len(engines)) if i not in chosen)
    return (*chosen, *(i for i, _ in zip(again, range(count - len(chosen)), strict=False)))


def observed(record: Record, launch: Launch, steps: float) -> tuple[Observation, list[float], float] | None:
    """The rounds of one launch behind one another, about `steps` of them (see `_work`), the rate of each, the steps."""
    requests, measured = record.requests_of(launch.trial.number)
    disturbed = {one.round for one in measured if one.disturbed}
    columns: list[tuple[npt.NDArray[Any], ...]] = []
    rates: list[float] = []
    begin_s, held = 0.0, 0.0
    for index, group in by_round(requests).items():
        if index in disturbed or held >= steps:
            continue
        part = _cut(group, steps - held)
        if part is None:
            continue
        load, ttft_s, e2el_s, counts, work = part
        at_s = load.arrival_s - load.arrival_s[0] + begin_s
        columns.append((at_s, load.input_tokens, load.output_tokens, ttft_s, e2el_s, counts))
        rates.append(arrivals_per_s(load))
        over_s = float((at_s + e2el_s).max())
        begin_s = over_s + _PAUSE * (over_s - begin_s)
        held += work
    if not columns:
        return None
    arrivals, inputs, outputs, ttft, e2el, counted = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    return Observation(Load.of(arrivals, inputs, outputs), launch.engine, ttft, e2el, counted), rates, held


def _cut(
    group: Sequence[RequestRecord], steps: float
) -> tuple[Load, Floats, Floats, npt.NDArray[np.bool_], float] | None:
    """A round up to the request with which it is so much work; only those over by then count. And the work it is.

    What came after would have been beside the others. A round that cannot be cut so (all sent at once) stays whole.
    """
    load, usable = Load.measured(group)
    if not len(load):
        return None
    ttft_s = np.array([one.ttft_ms or 0.0 for one in usable]) / 1000.0
    e2el_s = np.maximum(np.array([one.e2el_ms or 0.0 for one in usable]) / 1000.0, ttft_s)
    work = _work(load, ttft_s, e2el_s)
    keep = int(np.searchsorted(work, steps)) + 1
    if keep < len(load):
        over = (load.arrival_s + e2el_s)[:keep] <= load.arrival_s[keep]
        if over.sum() >= _LEAST_REQUESTS:
            return load.first(keep), ttft_s[:keep], e2el_s[:keep], over, float(work[keep - 1])
    return load, ttft_s, e2el_s, np.ones(len(load), bool), float(work[-1])


def _work(load: Load, ttft_s: Floats, e2el_s: Floats) -> Floats:
    """What simulating a round up to each request takes, in steps: of the engine, and of the tokens in them."""
    tokens = np.cumsum(load.output_tokens).astype(np.float64)
    several = load.output_tokens > 1
    step_s = np.median((e2el_s - ttft_s)[several] / (load.output_tokens[several] - 1.0)) if several.any() else 0.0
    passed_s = np.maximum.accumulate(load.arrival_s + e2el_s) - load.arrival_s[0]
    steps = np.minimum(tokens, passed_s / step_s) if step_s > 0 else tokens
    work: Floats = steps + tokens / _TOKENS_A_STEP
    return work
