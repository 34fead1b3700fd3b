"""Costs with what is not known about them: an ensemble of fits, the costs that the data leave open, intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweep.twin.fit import NAMES, Fitted, costs_of, fit, residuals_of, solve
from sweep.twin.observation import FAMILIES, PERCENTILES, Observation
from sweep.twin.values import Costs, Engine, Floats, Load, TwinError

# A cost is left open by the data when its logarithm may be off by more than this (a standard deviation) ...
_OPEN = 0.4
# ... or when a factor e of it moves no latency by more than this share.
_MATTERS = 0.02
# Standard deviations of how much larger a full cache looks: where the data were short of it, and where they were not.
_SHARING_OFF, _SHARING_UNSEEN = 0.005, 0.015
# What a launch differs from the next by at least: log standard deviation of a percentile. Two launches of one setting
# on GPUs differ by 1 to 5 %; on shared CPU cores the residuals say more.
_LEAST_SPREAD = 0.01


@dataclass(frozen=True, slots=True)
class Seen:
    """The settings and loads that the data came from: least and most of each."""

    max_num_seqs: tuple[int, int]
    max_num_batched_tokens: tuple[int, int]
    kv_tokens: tuple[int, int] | None
    block_size: tuple[int, int]
    arrivals_per_s: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What finished trials say about the costs.

    `members` are costs as likely as `costs`, from other samples of the same trials and requests. `spread` is how far a
    launch lies from the prediction, as a standard deviation of logarithms for TTFT, TPOT and E2EL: measured on trials
    left out where there are three and more, otherwise the fit's own residuals, widened. `left_open` are the costs that
    the data do not separate from others: predictions where they matter have wide intervals. `seen` and `fitted` are
    None where nothing was measured (see `sweep.twin.prior`). `sharing` and, for each member, `members_sharing` are how
    much larger a full KV cache looks (see `fit`).
    """

    costs: Costs
    members: tuple[Costs, ...]
    spread: tuple[float, float, float]
    left_open: tuple[str, ...]
    seen: Seen | None
    requests: int
    trials: int
    fitted: Fitted | None
    sharing: float = 0.0
    members_sharing: tuple[float, ...] = ()

    def engine(self, engine: Engine) -> Engine:
        """The engine with the KV cache that it looks to have."""
        return engine.sharing(self.sharing)

    def ensemble(self) -> tuple[tuple[Costs, float], ...]:
        """The members, each with its sharing."""
        shares = self.members_sharing or (self.sharing,) * len(self.members)
        return tuple(zip(self.members, shares, strict=True))


def calibrate(
    observations: Sequence[Observation],
    *,
    members: int = 24,
    seed: int = 0,
    least_step_s: float = 0.0,
) -> Calibration:
    """Fit costs to the measured rounds of any settings. Takes seconds; the same for the same seed.

    Raises ValueError without observations, TwinError for one that cannot be simulated.
    """
    fitted = fit(observations, least_step_s=least_step_s)
    rng = np.random.default_rng(seed)
    shared = [one.sharing(fitted.sharing or 0.0) for one in observations]
    covariance = _covariance(fitted, len(shared))
    ensemble = tuple(_member(shared, fitted, covariance, rng) for _ in range(members))
    # Where no cache was full, nothing says how much is shared: anything from none on.
    middle, off = (0.0, _SHARING_UNSEEN) if fitted.sharing is None else (fitted.sharing, _SHARING_OFF)
    shares = np.abs(middle + off * rng.standard_normal(members))
    return Calibration(
        costs=fitted.costs,
        members=ensemble,
        spread=_spread(shared, fitted),
        left_open=_left_open(fitted, covariance),
        seen=_seen(observations),
        requests=int(sum(observation.counts.sum() for observation in observations)),
        trials=len(observations),
        fitted=fitted,
        sharing=fitted.sharing or 0.0,
        members_sharing=tuple(shares.tolist()),
    )


def _logs(costs: Costs, least_step_s: float) -> Floats:
    values = costs.array()
    values[0] = max(values[0] - least_step_s, values[0] * 1e-3)
    logs: Floats = np.log(np.maximum(values, 1e-15))
    return logs


def _covariance(fitted: Fitted, trials: int) -> Floats:
    """How far the logarithms of the costs may be off: what the data say of them, and no further than a factor e.

    Percentiles of one trial are taken for nine figures that are off independently; its requests, which share the
    machine's moods, for none beyond.
    """
    weighted = fitted.jacobian * (fitted.scales * np.sqrt(fitted.trusted))[:, None]
    noise = max(float(np.sum((fitted.residuals * fitted.scales) ** 2 * fitted.trusted)), 1e-6) / (9.0 * trials)
    inverse: Floats = np.linalg.inv(weighted.T @ weighted / noise + np.eye(len(NAMES)))
    return inverse


def _member(observations: Sequence[Observation], fitted: Fitted, covariance: Floats, rng: np.random.Generator) -> Costs:
    """One fit to another sample - trials drawn with replacement, then their requests - off as far as the data allow."""
    drawn = rng.multinomial(len(observations), np.full(len(observations), 1.0 / len(observations)))
    weights = []
    for times, observation in zip(drawn.tolist(), observations, strict=True):
        own = np.zeros(len(observation.load))
        used = np.flatnonzero(observation.counts)
        own[used] = rng.multinomial(times * len(used), np.full(len(used), 1.0 / len(used)))
        weights.append(own)
    moved = _logs(_moved(observations, fitted, weights), fitted.least_step_s)
    off = rng.multivariate_normal(np.zeros(len(NAMES)), covariance)
    return costs_of(moved + off, fitted.least_step_s)


def _moved(observations: Sequence[Observation], fitted: Fitted, weights: Sequence[Floats]) -> Costs:
    """Costs for other weights: Gauss-Newton from the fit with the slopes found there, half steps if it goes astray."""
    logs, least = _logs(fitted.costs, fitted.least_step_s), fitted.least_step_s
    residuals, scales = residuals_of(observations, fitted.costs, weights)
    weight = scales * np.sqrt(fitted.trusted)
    step = solve(fitted.jacobian * weight[:, None], residuals * weight, logs - fitted.prior, 1e-3)
    before = float(np.sum((residuals * weight) ** 2))
    for factor in (1.0, 0.5, 0.25):
        costs = costs_of(logs + factor * step, least)
        tried, scales = residuals_of(observations, costs, weights)
        if float(np.sum((tried * scales * np.sqrt(fitted.trusted)) ** 2)) <= before:
            return costs
    # The linear step does not hold so far out: the fit itself is as good a member as any.
    return fitted.costs


def _spread(observations: Sequence[Observation], fitted: Fitted) -> tuple[float, float, float]:
    """How far a launch lies from what is predicted for it: one figure for each of TTFT, TPOT, E2EL."""
    gaps = []
    for i, one in enumerate(observations):
        costs = fitted.costs
        if len(observations) >= 3:
            weights: list[Floats] = [np.where(other.counts, float(j != i), 0.0) for j, other in enumerate(observations)]
            costs = _moved(observations, fitted, weights)
        simulated = residuals_of([one], costs)[0][-len(FAMILIES) * len(PERCENTILES) :]
        gaps.append(simulated.reshape(len(FAMILIES), len(PERCENTILES)))
    # With fewer than three trials nothing was left out: costs fitted to the very figures look better than they are.
    widened = 1.0 if len(observations) >= 3 else 2.0
    size = np.sqrt(np.nanmean(np.square(np.stack(gaps)), axis=(0, 2))) * widened
    ttft, tpot, e2el = np.maximum(size, _LEAST_SPREAD).tolist()
    return ttft, tpot, e2el


def _left_open(fitted: Fitted, covariance: Floats) -> tuple[str, ...]:
    """Costs whose logarithm the data hold no better than a factor, and those that move nothing."""
    off = np.sqrt(np.diag(covariance))
    matters = np.abs(fitted.jacobian).max(axis=0)
    return tuple(name for i, name in enumerate(NAMES) if off[i] > _OPEN or matters[i] < _MATTERS)


def _seen(observations: Sequence[Observation]) -> Seen:
    engines = [one.engine for one in observations]
    blocks = [one.kv_blocks * one.block_size for one in engines if one.kv_blocks is not None]
    rates = [arrivals_per_s(one.load) for one in observations]

    def span(values: list[int]) -> tuple[int, int]:
        return min(values), max(values)

    return Seen(
        max_num_seqs=span([one.max_num_seqs for one in engines]),
        max_num_batched_tokens=span([one.max_num_batched_tokens for one in engines]),
        kv_tokens=span(blocks) if blocks else None,
        block_size=span([one.block_size for one in engines]),
        arrivals_per_s=(min(rates), max(rates)),
    )


def arrivals_per_s(*loads: Load) -> float:
    """Mean rate of arrivals of all loads, the time between them left out; infinite when all arrive at once."""
    span = sum(float(load.arrival_s[-1] - load.arrival_s[0]) for load in loads)
    return sum(len(load) - 1 for load in loads) / span if span > 0 else math.inf


def kv_tokens_for(launched: Sequence[tuple[float, int]], gpu_memory_utilization: float) -> tuple[float, float, float]:
    """KV tokens of a launch not made yet: low, expected and high, from (utilization, KV tokens) of launches that were.

    Memory for the cache grows in proportion to utilization above what weights and activations take, so two different
    utilizations tell both. With one, the whole device is taken to be split as there: a bound, not an estimate.
    Raises TwinError without launches.
    """
    if not launched:
        raise TwinError("no launch tells how many tokens the KV cache holds")
    shares = np.array([share for share, _ in launched])
    tokens = np.array([float(count) for _, count in launched])
    if np.ptp(shares) < 1e-9:
        known = float(tokens.mean())
        by_share = known * gpu_memory_utilization / float(shares[0])
        # With weights and activations taking nine tenths of what was given, a share more brings ten times as much.
        steep = max(known * (1.0 + 10.0 * (gpu_memory_utilization / float(shares[0]) - 1.0)), 0.0)
        low, high = sorted((by_share, steep))
        return low, (low + high) / 2.0, high
    slope, base = np.polyfit(shares, tokens, 1)
    expected = float(max(slope * gpu_memory_utilization + base, 0.0))
    off = float(np.abs(tokens - (slope * shares + base)).max())
    # About 5 % less on the first launch of a pair of (batched tokens, seqs): vLLM compiles then.
    return max(expected * 0.95 - off, 0.0), expected, expected * 1.02 + off
