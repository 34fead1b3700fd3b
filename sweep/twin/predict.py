"""What a setting would give that nobody launched: figures with intervals, and what they must be taken with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweep.twin.calibrate import Calibration, arrivals_per_s
from sweep.twin.observation import FAMILIES
from sweep.twin.simulate import Simulation, simulate
from sweep.twin.values import Costs, Engine, Floats, Load, TwinError

# Beside every prediction stands one of a device faster and slower by this factor. Where a figure changes more than in
# proportion, queues decide it, and its interval takes both in: a capacity 20 % off, and what the fit itself is off.
_CAPACITY = 1.25
# From in proportion (1.0) to fully taken in (this), in change of the figure's logarithm over that of the capacity.
_FULLY = 1.5
# At a change this steep the load is said to be near saturation.
_SATURATED = 2.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with what it lies between, nine times in ten by default."""

    low: float
    expected: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Prediction:
    """Figures by the names of the table of metrics, in milliseconds and tokens per second; simulated, never measured.

    `cautions` say in words what they rest on that was not seen. `saturated`: a small error in capacity changes
    them much. `simulation` is the expected run of the first round.
    """

    metrics: dict[str, Interval]
    cautions: tuple[str, ...]
    saturated: bool
    simulation: Simulation


def predict(
    calibration: Calibration,
    load: Load | Sequence[Load],
    engine: Engine,
    *,
    max_concurrency: int | None = None,
    percentiles: Sequence[float] = (50.0, 95.0, 99.0),
    level: float = 0.9,
    seed: int = 0,
) -> Prediction:
    """Percentiles of every latency and the output throughput of `load` on `engine`, with intervals of `level`.

    Several loads are the rounds of one trial: each finds the engine idle, and percentiles are of all requests together.
    The interval holds the ensemble's disagreement, what one launch differs from another by, and near saturation a
    capacity a quarter off either way. Raises TwinError for what cannot run, and without a load.
    """
    loads = (load,) if isinstance(load, Load) else tuple(load)
    if not loads:
        raise TwinError("no requests to simulate")

    def run(costs: Costs, sharing: float = calibration.sharing) -> list[Simulation]:
        looks = engine.sharing(sharing)
        return [simulate(one, looks, costs, max_concurrency=max_concurrency) for one in loads]

    expected_run = run(calibration.costs)
    names, spreads = _names(calibration, percentiles)
    expected = _figures(expected_run, percentiles)
    members = np.stack([_figures(run(*one), percentiles) for one in calibration.ensemble()] or [expected])
    slower = _figures(run(calibration.costs.times(_CAPACITY)), percentiles)
    faster = _figures(run(calibration.costs.times(1.0 / _CAPACITY)), percentiles)
    rng = np.random.default_rng(seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(members)
        noise = rng.standard_normal((400, len(names))) * spreads
        sample = logs[rng.integers(0, len(logs), 400)] + noise
        edge = (1.0 - level) / 2.0 * 100.0
        low, high = np.exp(np.percentile(sample, [edge, 100.0 - edge], axis=0))
        steep = np.abs(np.log(np.stack([slower, faster]) / expected)) / math.log(_CAPACITY)
    steep = np.where(np.isfinite(steep), steep, 0.0)
    # How much of an error in capacity belongs into the interval: none in proportion, all where queues decide.
    taken = np.clip((steep - 1.0) / (_FULLY - 1.0), 0.0, 1.0)
    for share, other in zip(taken, (slower, faster), strict=True):
        moved = np.exp(np.log(expected) + share * np.log(other / expected))
        # As far beyond the shifted figure as the interval reached beyond the expected one.
        low = np.where(share > 0, np.minimum(low, moved * np.minimum(low / expected, 1.0)), low)
        high = np.where(share > 0, np.maximum(high, moved * np.maximum(high / expected, 1.0)), high)
    saturated = bool(np.any(steep > _SATURATED))
    return Prediction(
        metrics={
            name: Interval(float(low[i]), float(expected[i]), float(high[i]))
            for i, name in enumerate(names)
            if math.isfinite(expected[i])
        },
        cautions=_cautions(calibration, loads, engine, saturated),
        saturated=saturated,
        simulation=expected_run[0],
    )


def _names(calibration: Calibration, percentiles: Sequence[float]) -> tuple[list[str], Floats]:
    by_family = dict(zip(FAMILIES, calibration.spread, strict=True))
    # Gaps between tokens are as uncertain as the time per token; throughput as the whole.
    spreads = {
        "ttft": by_family["ttft"],
        "tpot": by_family["tpot"],
        "itl": by_family["tpot"],
        "e2el": by_family["e2el"],
    }
    names = [f"p{rank:g}_{family}_ms" for family in spreads for rank in percentiles]
    sizes = [spread for spread in spreads.values() for _ in percentiles]
    return [*names, "output_throughput_tokens_per_s"], np.array([*sizes, by_family["e2el"]])


def _figures(rounds: Sequence[Simulation], percentiles: Sequence[float]) -> Floats:
    found: list[float] = []
    for name in ("ttft_s", "tpot_s", "itl_s", "e2el_s"):
        values = np.concatenate([getattr(one, name) for one in rounds])
        known = values[np.isfinite(values)]
        row = np.percentile(known, percentiles) * 1000.0 if len(known) else np.full(len(percentiles), np.nan)
        found.extend(row.tolist())
    found.append(sum(len(one.token_s) for one in rounds) / sum(one.duration_s for one in rounds))
    return np.array(found)


def _cautions(calibration: Calibration, loads: Sequence[Load], engine: Engine, saturated: bool) -> tuple[str, ...]:
    seen, found = calibration.seen, []
    if saturated:
        found.append("near saturation: a capacity 20 % off changes these figures by far more than 20 %")
    if calibration.left_open:
        found.append("the trials do not tell these costs apart: " + ", ".join(calibration.left_open))
    if seen is None:
        return (*found, "nothing was measured: costs are those that the model's size and the card suggest")
    low, high = (_rounded(rate) for rate in seen.arrivals_per_s)
    if calibration.trials < 3:
        found.append(f"fitted to {calibration.trials} trial{'s' * (calibration.trials > 1)}")
    given: list[tuple[str, float, tuple[float, float] | None]] = [
        ("max-num-seqs", engine.max_num_seqs, seen.max_num_seqs),
        ("max-num-batched-tokens", engine.max_num_batched_tokens, seen.max_num_batched_tokens),
        ("block-size", engine.block_size, seen.block_size),
        ("request rate", _rounded(arrivals_per_s(*loads)), (low, high)),
    ]
    if engine.kv_blocks is not None:
        given.append(("KV tokens", engine.kv_blocks * engine.block_size, seen.kv_tokens))
    for name, value, span in given:
        if span is not None and not span[0] * 0.95 <= value <= span[1] * 1.05:
            found.append(f"{name} {value:g} was not seen: the trials had {span[0]:g} to {span[1]:g}")
    return tuple(found)


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")
