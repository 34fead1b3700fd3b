"""Stored trials measured anew from their requests: any metric, by today's limits, with intervals of percentiles."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sweep.errors import HostError
from sweep.metric_table import Metric, parse_metric, rate_text
from sweep.metrics import Part, RequestColumns, enough_samples, summarize_parts
from sweep.objective import Objective
from sweep.store import StoredTrial, read_request_columns, read_rounds
from sweep.trial import SEARCHING, TrialKind, TrialStatus
from sweep.verdict import Interval, percentile_interval

# Loads of their own, whose metrics nothing is compared with.
_APART = (TrialKind.SOAK, TrialKind.CALIBRATION)


@dataclass(frozen=True, slots=True)
class Measured:
    """The metrics of a trial, and how many of its requests completed and failed.

    `intervals` are those of its percentiles, at 95 %, over requests, blocked by round; a percentile that its sample
    cannot bound has none. `thin` names the percentiles that fewer requests stand behind than `samples_needed`.
    """

    metrics: Mapping[str, float | None]
    completed: int
    failed: int
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    thin: frozenset[str] = frozenset()
    completed_at: Mapping[str, int] = field(default_factory=dict)

    def completed_for(self, name: str) -> int:
        """Requests that stand behind a metric: those at its rate, where it names one."""
        at = parse_metric(name).at
        return self.completed if at is None else self.completed_at.get(at, 0)


def measure(
    folder: Path, trial: StoredTrial, objectives: Sequence[Objective], extra: Iterable[str] = ()
) -> tuple[Measured, ...] | None:
    """What each objective needs of a measured trial, and the metrics `extra`, its requests read once; else None.

    An objective's SLOs define its goodput. Raises HostError when the requests cannot be read.
    """
    if trial.metrics is None:
        return None
    names = [tuple(dict.fromkeys((*objective.metrics_needed(), *extra))) for objective in objectives]
    every = {metric.name: metric for metric in map(parse_metric, (name for of_one in names for name in of_one))}
    columns = read_request_columns(folder, trial.number, gaps=any(one.stem == "itl" for one in every.values()))
    if not columns.completed + columns.failed:
        return _imported(folder, trial, names)
    parts, at = parts_of(folder, trial, columns, several=any(one.at is not None for one in every.values()))
    intervals = {
        name: interval
        for name, metric in every.items()
        if (interval := _interval(at.get(metric.at), metric)) is not None
    }
    completed_at = {rate: part.completed for rate, part in at.items() if rate is not None}
    found = []
    for objective, wanted in zip(objectives, names, strict=True):
        metrics = summarize_parts(parts, wanted, slo=objective.limits)
        thin = frozenset(name for name in wanted if _is_thin(every[name], at))
        kept = {name: intervals[name] for name in wanted if name in intervals}
        found.append(Measured(metrics, columns.completed, columns.failed, kept, thin, completed_at))
    return tuple(found)


def _imported(folder: Path, trial: StoredTrial, names: Sequence[Sequence[str]]) -> tuple[Measured, ...]:
    """A measured trial without requests came from elsewhere: its metrics are those that were stored, others None."""
    rounds = read_rounds(folder, trial.number)
    completed, failed = sum(one.completed for one in rounds), sum(one.failed for one in rounds)
    stored = trial.metrics or {}
    return tuple(Measured({name: stored.get(name) for name in of_one}, completed, failed) for of_one in names)


def parts_of(
    folder: Path, trial: StoredTrial, columns: RequestColumns, *, several: bool
) -> tuple[list[Part], dict[str | None, RequestColumns]]:
    """The rounds, or where rates do not matter all of them as one, and the requests of each rate, None for all.

    Raises HostError when the rounds cannot be read."""
    if not several:
        return [Part(columns, trial.load_s)], {None: columns}
    rounds = read_rounds(folder, trial.number)
    parts = [Part(columns.of_rounds({one.round}), one.duration_s, one.request_rate_per_s) for one in rounds]
    at: dict[str | None, RequestColumns] = {None: columns}
    for rate in dict.fromkeys(one.request_rate_per_s for one in rounds):
        at[rate_text(rate)] = columns.of_rounds({one.round for one in rounds if one.request_rate_per_s == rate})
    return parts, at


def _is_thin(metric: Metric, at: Mapping[str | None, RequestColumns]) -> bool:
    completed = at[metric.at].completed if metric.at in at else 0
    return metric.percentile is not None and not enough_samples(metric.percentile, completed)


def _interval(columns: RequestColumns | None, metric: Metric) -> Interval | None:
    if columns is None or metric.percentile is None:
        return None
    if metric.stem != "itl":
        return percentile_interval(columns.of_request(metric.stem), metric.percentile, columns.rounds)
    if columns.gap_counts is None or columns.rounds is None:
        return None
    owners = np.repeat(np.arange(columns.completed), columns.gap_counts)
    return percentile_interval(columns.samples("itl"), metric.percentile, columns.rounds[owners], owners)


def measure_all(
    folder: Path, trials: Iterable[StoredTrial], objective: Objective, extra: Iterable[str] = ()
) -> dict[int, Measured]:
    """`measure` of every trial whose requests can be read, by number."""
    names, found = tuple(extra), {}
    for one in trials:
        with contextlib.suppress(HostError):
            if (measured := measure(folder, one, [objective], names)) is not None:
                found[one.number] = measured[0]
    return found


def load_rates(folder: Path, trials: Iterable[StoredTrial]) -> tuple[float | None, ...]:
    """The request rates of a study's load, in the order of its rounds, by a whole trial of it; none without one."""
    whole = (one for one in trials if one.status is TrialStatus.COMPLETE and one.kind not in _APART)
    for one in sorted(whole, key=lambda one: (one.kind not in SEARCHING, one.number)):
        with contextlib.suppress(HostError):
            return tuple(dict.fromkeys(part.request_rate_per_s for part in read_rounds(folder, one.number)))
    return ()


def lacking(
    folder: Path, stored: Collection[StoredTrial], objective: Objective
) -> dict[int, Mapping[str, float | None]]:
    """The metrics of the trials that do not have all that `objective` needs: by number, measured anew.

    A percentile that was not asked for when they ran is one reason; goodput, which the SLOs of today define, another.
    Raises HostError when requests cannot be read.
    """
    needed = objective.metrics_needed()
    anyway = any(parse_metric(name).base == "goodput_per_s" for name in needed)
    found: dict[int, Mapping[str, float | None]] = {}
    for one in stored:
        if one.metrics is None or one.kind in _APART or not (anyway or any(name not in one.metrics for name in needed)):
            continue
        measured = measure(folder, one, [objective])
        if measured is not None:
            found[one.number] = {**one.metrics, **measured[0].metrics}
    return found
