"""Studies whose truth is known, for `bench_decision.py`: noise in layers, and the layers of real launches.

The log of a request's TTFT (and of its TPOT) is

    median + configuration + drift(block) + server(launch) + round(launch, round) + prompt(load, request) + request

The first noise is shared by all launches of a block, `prompt` by all launches of the same load, all others belong to
one launch. `common_share` is the correlation of TTFT and TPOT in drift, server and round. E2EL follows from both.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sweep.records import RequestRecord
from sweep.trial import TrialKind, TrialStatus
from sweep.verdict import Launch, RoundData

Numbers = NDArray[np.float64]
STEMS = ("ttft", "tpot")
OUTPUT_TOKENS, OUTPUT_SD = 120.0, 0.6


@dataclass(frozen=True, slots=True)
class Layers:
    """Standard deviations of the log of one latency, layer by layer, and its median."""

    median_ms: float
    drift_sd: float
    server_sd: float
    round_sd: float
    prompt_sd: float
    request_sd: float


@dataclass(frozen=True, slots=True)
class Noise:
    """A noise file. `requests` is per round; `most_launches` is where a confirmation ends at the latest."""

    name: str
    source: str
    most_launches: int
    rounds: int
    requests: int
    common_share: float
    latencies: Mapping[str, Layers]

    @classmethod
    def load(cls, path: Path) -> Noise:
        """From a file as beside this script."""
        raw = json.loads(path.read_text())
        return cls(**{**raw, "latencies": {stem: Layers(**layers) for stem, layers in raw["latencies"].items()}})

    def dump(self) -> str:
        """The text of such a file."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


class World:
    """Draws launches. `effects` are the true log effects by configuration; those not named have none."""

    def __init__(self, noise: Noise, seed: int, effects: Mapping[int, float]) -> None:
        self._noise, self._rng, self._effects = noise, np.random.default_rng(seed), effects
        self._load = 0

    def truth(self, key: int) -> float:
        """The true score of a configuration: both latencies, and so every metric, are longer by this factor."""
        return math.exp(self._effects.get(key, 0.0))

    def block(
        self, keys: Sequence[int], block: int, *, apart: bool = False, luck: Mapping[int, float] | None = None
    ) -> list[Launch]:
        """One launch of each configuration under one new load. `apart`: each at its own time, as trials of a search.

        `luck` adds a log effect to a single launch: an outlier that has nothing to do with its flags.
        """
        noise, rng, n = self._noise, self._rng, len(keys)
        shape = (n, noise.rounds, noise.requests)
        tokens = np.maximum(2, np.round(OUTPUT_TOKENS * np.exp(OUTPUT_SD * rng.standard_normal(shape[1:]))))
        logs = {}
        shared = [self._shared((n if apart else 1, 1, 1)), self._shared((n, 1, 1)), self._shared((n, noise.rounds, 1))]
        effect = np.array([self._effects.get(key, 0.0) + (luck or {}).get(key, 0.0) for key in keys])[:, None, None]
        for place, stem in enumerate(STEMS):
            layers = noise.latencies[stem]
            sds = (layers.drift_sd, layers.server_sd, layers.round_sd)
            logs[stem] = math.log(layers.median_ms) + effect + layers.request_sd * rng.standard_normal(shape)
            logs[stem] = logs[stem] + layers.prompt_sd * rng.standard_normal(shape[1:])
            for sd, draw in zip(sds, shared, strict=True):
                logs[stem] = logs[stem] + sd * draw[place]
        ttft, tpot = np.exp(logs["ttft"]), np.exp(logs["tpot"])
        self._load += noise.rounds
        return [
            Launch(
                key, block, block * n + (at if block % 2 == 0 else n - 1 - at), self._rounds(ttft[at], tpot[at], tokens)
            )
            for at, key in enumerate(keys)
        ]

    def _shared(self, shape: tuple[int, ...]) -> Numbers:
        """Two draws, one a latency, with the stated correlation."""
        share = self._noise.common_share
        both, own = self._rng.standard_normal(shape), self._rng.standard_normal((2, *shape))
        return math.sqrt(share) * both + math.sqrt(1 - share) * own

    def _rounds(self, ttft: Numbers, tpot: Numbers, tokens: Numbers) -> tuple[RoundData, ...]:
        return tuple(
            RoundData(
                load=self._load + k,
                duration_s=60.0,
                ttft_ms=ttft[k],
                tpot_ms=tpot[k],
                e2el_ms=ttft[k] + tpot[k] * (tokens[k] - 1),
                input_tokens=np.full(len(tokens[k]), 200.0),
                output_tokens=tokens[k],
                itl_ms=np.zeros(0),
                itl_counts=np.zeros(len(tokens[k]), dtype=np.int64),
            )
            for k in range(self._noise.rounds)
        )


def fit_noise(folder: Path, most_launches: int = 12, *, alike: bool = False) -> Noise:
    """The layers, from a stored study in which flags were launched more than once on one load.

    `alike`: all of its flags do the same (an A/A study), so that each block has launched one setting several times.

    Variances by the method of moments on mean logs: requests of the same prompt over launches give `prompt_sd`, what is
    left of a request `request_sd`; a two-way layout of launches by rounds gives the rest, less what its requests
    explain; `server_sd` is that of the p95 where it is larger. Drift between the launches of a block is a part of it;
    `drift_sd` is what three blocks and more differ by beyond all this, 0 where there are fewer.
    Raises ValueError when nothing was launched twice.
    """
    # Here, since only this function needs Parquet: the workers of the bench start faster without.
    from sweep.store import read_requests, read_trials

    groups: dict[str, list[tuple[RequestRecord, ...]]] = {}
    for trial in read_trials(folder):
        # A calibration and a soak send loads of their own.
        if trial.status is TrialStatus.COMPLETE and trial.kind not in (TrialKind.CALIBRATION, TrialKind.SOAK):
            flags = "" if alike else json.dumps(dict(trial.flags), sort_keys=True)
            groups.setdefault(f"{flags} {trial.block}", []).append(read_requests(folder, trial.number))
    repeated = [launches for launches in groups.values() if len(launches) > 1]
    if not repeated:
        raise ValueError(f"{folder}: no flags were launched twice on the same load")
    first = repeated[0][0]
    rounds = len({request.round for request in first})
    layers = {stem: _layers([_table(launches, stem) for launches in repeated]) for stem in STEMS}
    return Noise(
        name=folder.name,
        source=f"{sum(map(len, repeated))} launches, the same load at least twice: {len(repeated)} times",
        most_launches=most_launches,
        rounds=rounds,
        requests=max(1, len(first) // rounds),
        common_share=0.5,
        latencies=layers,
    )


def _table(launches: Sequence[tuple[RequestRecord, ...]], stem: str) -> list[Numbers]:
    """Logs, a table (launches x requests) a round, of requests that every launch answered."""
    found: list[Numbers] = []
    values = [{(r.round, r.prompt_id): _log(r, stem) for r in launch} for launch in launches]
    for number in sorted({place[0] for place in values[0]}):
        places = [place for place in values[0] if place[0] == number]
        table = np.array([[launch.get(place, math.nan) for place in places] for launch in values])
        table = table[:, np.isfinite(table).all(axis=0)]
        if table.shape[1] > 1:
            found.append(table)
    return found


def _log(request: RequestRecord, stem: str) -> float:
    if request.error is not None or not request.ttft_ms:
        return math.nan
    if stem == "ttft":
        return math.log(request.ttft_ms)
    tokens = request.output_tokens or 0
    span_ms = (request.e2el_ms or 0.0) - request.ttft_ms
    return math.log(span_ms / (tokens - 1)) if tokens > 1 and span_ms > 0 else math.nan


def _layers(groups: Sequence[Sequence[Numbers]]) -> Layers:
    """Scheffé, The Analysis of Variance (1959), chapter 7: expected mean squares of the nested and crossed layout."""
    request, prompt, round_, server, medians = [], [], [], [], []
    for tables in (group for group in groups if group):
        launches = len(tables[0])
        means = np.array([table.mean(axis=1) for table in tables]).T  # launches x rounds
        size = float(np.mean([table.shape[1] for table in tables]))
        left = [t - t.mean(axis=1, keepdims=True) - t.mean(axis=0) + t.mean() for t in tables]
        free = sum((launches - 1) * (t.shape[1] - 1) for t in tables)
        noise = sum(float((part**2).sum()) for part in left) / free
        of_prompt = np.mean([np.var(t.mean(axis=0), ddof=1) for t in tables])
        request.append(noise)
        prompt.append(float(of_prompt) - noise / launches)
        medians.append(float(np.median(np.concatenate([t.ravel() for t in tables]))))
        if means.shape[1] > 1:
            rest = means - means.mean(axis=1, keepdims=True) - means.mean(axis=0) + means.mean()
            within = float((rest**2).sum()) / ((launches - 1) * (means.shape[1] - 1))
        else:
            within = noise / size
        round_.append(within - noise / size)
        # Servers differ more in their tails than in their means, and it is a p95 that is judged.
        tails = np.log(np.percentile(np.exp(np.concatenate(tables, axis=1)), 95, axis=1))
        spread = max(float(np.var(middles, ddof=1)) for middles in (means.mean(axis=1), tails))
        server.append(spread - within / means.shape[1])
    variances = [max(0.0, float(np.mean(part))) for part in (server, round_, prompt, request)]
    drift = _between(groups, variances) if len(groups) > 2 else 0.0
    return Layers(math.exp(float(np.mean(medians))), math.sqrt(drift), *map(math.sqrt, variances))


def _between(groups: Sequence[Sequence[Numbers]], variances: Sequence[float]) -> float:
    """The variance between blocks beyond what their servers, rounds, prompts and requests explain."""
    server, round_, prompt, request = variances
    means, explained = [], []
    for tables in (group for group in groups if group):
        launches, sizes = len(tables[0]), sum(table.shape[1] for table in tables)
        means.append(float(np.mean([table.mean() for table in tables])))
        of_launches = (server + round_ / len(tables) + request / sizes) / launches
        explained.append(of_launches + prompt / sizes)
    return max(0.0, float(np.var(means, ddof=1)) - float(np.mean(explained)))
