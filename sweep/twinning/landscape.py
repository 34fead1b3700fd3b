"""What the twin makes of many settings under one load: figures, and which settings do the same step by step.

Most of a search space is plateau: seats and KV cache beyond what a load needs change nothing. A setting whose schedule
is known for certain from one that was simulated is not simulated again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sweep.metrics import Part, RequestColumns, summarize_parts
from sweep.twin import Costs, Engine, Load, Simulation, TwinError, simulate

# Tokens that cost as much to simulate as a step.
_TOKENS_A_STEP = 10.0


@dataclass(frozen=True, slots=True)
class Played:
    """One setting under the load. `schedule` is equal for settings that do the same step by step; `work` is what the
    simulation took, in steps; `load_s` how long the load takes.
    """

    figures: Mapping[str, float | None]
    schedule: tuple[int, ...]
    load_s: float
    work: float


@dataclass(frozen=True, slots=True)
class _Bounds:
    """How far a run was from its limits: `full` blocks are what it held at most, and room for one request more."""

    engine: Engine
    running: int
    full: int
    preempted: bool
    played: Played

    def covers(self, engine: Engine) -> bool:
        """Whether `engine`, alike but for seats and KV cache, does the very same: the limits bind in neither run."""
        mine, theirs = self.engine, engine
        same_seats = mine.max_num_seqs == theirs.max_num_seqs
        seats = same_seats or (self.running < mine.max_num_seqs and self.running <= theirs.max_num_seqs)
        if not seats or mine.kv_blocks == theirs.kv_blocks:
            return seats
        least = min(one.kv_blocks for one in (mine, theirs) if one.kv_blocks is not None)
        return not self.preempted and self.full <= least and mine.watermark_share == 0.0


@dataclass(slots=True)
class Landscape:
    """Simulates settings under `rounds`, each of which finds the engine idle; `names` are the figures wanted, `slo`
    what goodput counts by, `rates` the request rate of each round where they differ. `work` adds up what was simulated,
    in steps.
    """

    rounds: Sequence[Load]
    names: Sequence[str]
    slo: Mapping[str, float]
    max_concurrency: int | None
    rates: Sequence[float | None] = ()
    work: float = 0.0
    _known: dict[tuple[Engine, Costs], list[_Bounds]] = field(default_factory=dict)

    def play(self, engine: Engine, costs: Costs) -> Played | None:
        """What `engine` makes of the load at these costs; None where it cannot run it."""
        known = self._known.setdefault((replace(engine, max_num_seqs=1, kv_blocks=None), costs), [])
        found = next((one.played for one in known if one.covers(engine)), None)
        if found is not None:
            return found
        try:
            runs = [simulate(load, engine, costs, max_concurrency=self.max_concurrency) for load in self.rounds]
        except TwinError:
            return None
        bounds = self._bounds(engine, runs)
        known.append(bounds)
        self.work += bounds.played.work
        return bounds.played

    def _bounds(self, engine: Engine, runs: Sequence[Simulation]) -> _Bounds:
        longest = max(int((one.input_tokens + one.output_tokens).max()) for one in self.rounds)
        # Without a limit on blocks the share of them is not known: all that the load could hold.
        every = max(int(np.sum(-(-(one.input_tokens + one.output_tokens) // engine.block_size))) for one in self.rounds)
        shares = [run.engine.peak_kv_usage_share for run in runs]
        peak = every if engine.kv_blocks is None else max(round((share or 0.0) * engine.kv_blocks) for share in shares)
        return _Bounds(
            engine,
            running=max(int(run.engine.peak_running or 0) for run in runs),
            full=min(every, peak + -(-longest // engine.block_size)),
            preempted=any(run.engine.preemptions for run in runs),
            played=Played(
                figures_of(runs, self.names, self.slo, self.rates),
                tuple(run.schedule for run in runs),
                sum(run.duration_s for run in runs),
                sum(run.steps + len(run.token_s) / _TOKENS_A_STEP for run in runs),
            ),
        )


def figures_of(
    runs: Sequence[Simulation], names: Sequence[str], slo: Mapping[str, float], rates: Sequence[float | None] = ()
) -> dict[str, float | None]:
    """Metrics of the table for the rounds of one launch, by the formulas of measured ones."""
    parts = [
        Part(_columns(run), run.duration_s, rate) for run, rate in zip(runs, rates or [None] * len(runs), strict=True)
    ]
    return summarize_parts(parts, names, slo=slo)


def _columns(run: Simulation) -> RequestColumns:
    return RequestColumns(
        ttft_ms=run.ttft_s * 1000.0,
        e2el_ms=run.e2el_s * 1000.0,
        input_tokens=run.load.input_tokens.astype(np.float64),
        output_tokens=run.load.output_tokens.astype(np.float64),
        itl_ms=run.itl_s * 1000.0,
    )
