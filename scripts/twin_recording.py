"""The twin against recordings of real vLLM on CPU: fitted on a few configurations, held against all others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sweep.store import StoredLaunch, read_launches
from sweep.trial import TrialStatus
from sweep.twin import Engine, Load, Observation, calibrate, predict
from sweep.twin.observation import FAMILIES, PERCENTILES, percentiles

# Fitted on so many configurations; the keys are those of three, and a quick run has them alone.
FITTED_ON, QUICK = (1, 2, 3, 5), (3,)
NAMES = tuple(f"p{rank:g}_{family}_ms" for family in FAMILIES for rank in PERCENTILES)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launched server: its flags as a key, and an observation a round."""

    flags: tuple[tuple[str, str], ...]
    rounds: tuple[Observation, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """The complete launches of one study."""

    name: str
    launches: tuple[Launch, ...]


def recordings(folder: Path) -> list[Recording]:
    """The study in `folder`, or those in the folders in it, packed or not; without a complete launch a study is none.

    Raises HostError for tables that cannot be read.
    """
    within = [folder, *sorted(path for path in folder.glob("*") if path.is_dir())]
    holding = [path for path in within if (path / "trials").is_dir() or (path / "trials.parquet").is_file()]
    return [
        Recording(study.name, launches)
        for study in (holding[:1] if holding[:1] == [folder] else holding)
        if (launches := tuple(map(_launch, filter(_complete, read_launches(study)))))
    ]


def _complete(stored: StoredLaunch) -> bool:
    return stored.trial.status is TrialStatus.COMPLETE


def _launch(stored: StoredLaunch) -> Launch:
    trial = stored.trial
    # The CPU build plans no step ahead (`vllm/platforms/cpu.py`).
    engine = Engine.of(trial.flags, trial.engine_config, asynchronous=False)
    records = sorted(stored.requests, key=lambda record: record.round)
    groups = itertools.groupby(records, key=lambda record: record.round)
    rounds = tuple(Observation.measured(tuple(group), engine) for _, group in groups)
    return Launch(tuple(sorted((name, str(value)) for name, value in trial.flags.items())), rounds)


def score(
    found: Sequence[Recording], draws: int, fitted_on: Sequence[int] = FITTED_ON, members: int = 24
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """The keys of the recordings, and errors by how many configurations were fitted. `members`: of each ensemble."""
    pairs = [gap for one in found for gap in _pair_gaps(one)]
    pair = float(np.median(np.expm1(pairs))) if pairs else None
    details: dict[str, Any] = {"pair_difference_median": pair, "fitted_on": {}}
    keys: dict[str, float | None] = {}
    for count in fitted_on:
        errors, against_means, inside = _errors(found, count, draws, members)
        if not errors:
            continue
        row = {
            "median_error": float(np.median(errors)),
            "p90_error": float(np.percentile(errors, 90)),
            "median_error_vs_means": float(np.median(against_means)) if against_means else None,
            "coverage_90": float(np.mean(inside)),
        }
        details["fitted_on"][count] = row
        if count == 3:
            keys = {
                "cpu_error_over_pair_difference": row["median_error"] / pair if pair and row["median_error"] else None,
                "cpu_error_vs_means_from_3": row["median_error_vs_means"],
                "interval_coverage_90": row["coverage_90"],
            }
    empty = dict.fromkeys(("cpu_error_over_pair_difference", "cpu_error_vs_means_from_3", "interval_coverage_90"))
    return {**empty, **keys}, details


def _figures(observation: Observation) -> np.ndarray[Any, Any]:
    """Percentiles of the three latencies, in milliseconds, in the order of NAMES."""
    return np.concatenate(percentiles(observation.latencies())) * 1000.0


def _by_flags(recording: Recording) -> dict[tuple[tuple[str, str], ...], list[Launch]]:
    grouped: dict[tuple[tuple[str, str], ...], list[Launch]] = {}
    for launch in recording.launches:
        grouped.setdefault(launch.flags, []).append(launch)
    return grouped


def _pair_gaps(recording: Recording) -> list[float]:
    """|log| of the ratio of every figure of every two launches of one configuration, round by round."""
    gaps: list[float] = []
    for launches in _by_flags(recording).values():
        for one, other in itertools.combinations(launches, 2):
            for mine, theirs in zip(one.rounds, other.rounds, strict=False):
                gap = np.abs(np.log(_figures(mine) / _figures(theirs)))
                gaps.extend(gap[np.isfinite(gap)].tolist())
    return gaps


def _errors(
    found: Sequence[Recording], count: int, draws: int, members: int
) -> tuple[list[float], list[float], list[bool]]:
    errors: list[float] = []
    against_means: list[float] = []
    inside: list[bool] = []
    for recording in found:
        grouped = _by_flags(recording)
        if len(grouped) <= count:
            continue
        rng = np.random.default_rng(0)
        for draw in range(draws):
            order = rng.permutation(len(grouped))
            settings = [list(grouped.values())[i] for i in order]
            observed = [one for launches in settings[:count] for one in launches[0].rounds]
            fitted = calibrate(observed, members=members, seed=draw)
            for launches in settings[count:]:
                for number, observation in enumerate(launches[0].rounds):
                    load: Load = observation.load
                    prediction = predict(fitted, load, observation.engine)
                    measured = dict(zip(NAMES, _figures(observation).tolist(), strict=True))
                    for name, value in measured.items():
                        if math.isfinite(value) and name in prediction.metrics:
                            interval = prediction.metrics[name]
                            errors.append(math.expm1(abs(math.log(interval.expected / value))))
                            inside.append(value in interval)
                    same = [one.rounds[number] for one in launches if len(one.rounds) > number]
                    if len(same) > 1:
                        means = np.mean([_figures(one) for one in same], axis=0)
                        expected = np.array([prediction.metrics[name].expected for name in NAMES])
                        gap = np.expm1(np.abs(np.log(expected / means)))
                        against_means.extend(gap[np.isfinite(gap)].tolist())
    return errors, against_means, inside
