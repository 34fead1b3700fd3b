"""Costs from measured requests: least squares on logarithms, robust to the odd stalled request.

What is made small: for every request the logarithms of simulated / measured TTFT, TPOT and E2EL, and the same for their
percentiles, which a study is judged by. Logarithms keep the costs above zero and let a millisecond of TTFT and ten
seconds of E2EL count alike. What is far from the rest counts less and less (Cauchy's loss).

Damped Gauss-Newton steps come near from a poor start; a schedule that tips makes the ground uneven there, so a simplex
(Nelder and Mead) goes the rest of the way, which needs no slopes.

Prompts that begin alike share blocks of the KV cache, and a record of lengths does not say which do. A cache that is
full then holds more than its blocks say: by `sharing`, a share of it, which is looked for where the data were short of
KV cache (in a public run of 300 ShareGPT prompts on a full cache 1.5 %, without which p95 TTFT is 8 % off).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from sweep.twin.observation import Observation
from sweep.twin.simulate import simulate
from sweep.twin.values import Costs, Engine, Floats

NAMES = tuple(item.name for item in fields(Costs))
# Percentiles together weigh so many times what the requests together weigh.
_PERCENTILES_WEIGH = 3.0
# Of requests, TTFT, TPOT and E2EL. A single TTFT depends on where in a step its request falls: little is learnt of it.
_FAMILY_WEIGHS = np.array([0.2, 1.0, 1.0])
# The start is taken to be right within a factor e^3 (one standard deviation): keeps costs that the data do not tell
# from running away, and pulls nothing that they do.
_PRIOR_SD, _PRIOR_WEIGHT = 3.0, 1e-4
# Where to begin: shares of the time per token for the step itself, its requests and their context.
_START = (0.5, 0.2, 0.3)
# Descents, one after the other: step of the difference quotients in logarithms, the logarithm from which residuals
# count less and less, and iterations. A schedule that tips makes the ground uneven: wide steps see over it.
_DESCENTS = ((0.2, 1.0, 6), (0.2, 0.1, 4), (0.05, 0.05, 4))
# Then a simplex: its size in logarithms, and runs.
_SIMPLEX = (0.2, 80)
# Shares by which a full cache may look larger, and the runs that each gets to show what it comes to. Before the data it
# is taken for normal around 0 with this standard deviation, and never below.
_SHARING, _SHARING_RUNS, _SHARING_SD = (0.0, 0.0075, 0.015, 0.0225, 0.03), 30, 0.02
# From this share of the blocks held on, or with a preemption, the cache was full.
_FULL = 0.98


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fit: the costs, how far it is from its data and what moves when each cost does.

    `loss` is the weighted mean square of logarithms. `jacobian` and `residuals` are those of `residuals_of` at the
    end, with their weights `trusted` and scales `scales`; `prior` is where the fit began. `sharing`: how much larger
    than its blocks a full KV cache looks, None where the data were not short of it and cannot tell.
    """

    costs: Costs
    loss: float
    residuals: Floats
    jacobian: Floats
    trusted: Floats
    scales: Floats
    prior: Floats
    least_step_s: float
    simulations: int
    sharing: float | None = None

    def engine(self, engine: Engine) -> Engine:
        """The engine with the KV cache that it looks to have."""
        return engine.sharing(self.sharing or 0.0)


def fit(observations: Sequence[Observation], *, least_step_s: float = 0.0) -> Fitted:
    """The costs that come nearest to `observations`.

    `least_step_s` is what no step can be faster than: the bytes of the weights over the device's bandwidth. Raises
    ValueError without observations, TwinError for one that cannot be simulated.
    """
    if not observations:
        raise ValueError("nothing to fit to")
    target = _Target(observations, least_step_s)
    prior = _start(observations, _START)
    logs = prior
    for step, target.bend, iterations in _DESCENTS:
        logs = _descend(target, logs, prior, step, iterations)
    sharing = None
    if target.full(logs):
        sharing, logs = _share(target, logs, prior)
    logs = simplex(lambda point: target.loss(point, prior), logs, *_SIMPLEX)
    residuals, scales = target.residuals(logs)
    return Fitted(
        costs=costs_of(logs, least_step_s),
        loss=target.loss(logs, prior),
        residuals=residuals,
        jacobian=slopes(target, logs, _DESCENTS[-1][0]),
        trusted=trust(residuals, target.bend),
        scales=scales,
        prior=prior,
        least_step_s=least_step_s,
        simulations=target.runs * len(observations),
        sharing=sharing,
    )


def _share(target: _Target, logs: Floats, prior: Floats) -> tuple[float, Floats]:
    """How much larger the cache looks, the mean over what each share comes to in a short search; and costs to go on
    from.

    The nine percentiles of a trial are taken for figures that are off independently, as for the ensemble. The target is
    left with the share found.
    """
    found, losses = [], []
    for share in _SHARING:
        target.share(share)
        found.append(simplex(lambda point: target.loss(point, prior), logs, _SIMPLEX[0], _SHARING_RUNS))
        losses.append(target.loss(found[-1], prior))
    shares = np.array(_SHARING)
    likely = -4.5 * len(target.observations) * np.log(losses) - 0.5 * (shares / _SHARING_SD) ** 2
    weights = np.exp(likely - likely.max())
    sharing = float(weights @ shares / weights.sum())
    target.share(sharing)
    return sharing, found[int(np.argmin(np.abs(shares - sharing)))]


class _Target:
    """What is made small, with the simulations it took counted."""

    def __init__(self, observations: Sequence[Observation], least_step_s: float) -> None:
        self._plain = self.observations = tuple(observations)
        self.least_step_s, self.runs, self.bend = least_step_s, 0, 1.0
        self._last: tuple[Floats, tuple[Floats, Floats]] | None = None

    def share(self, sharing: float) -> None:
        """Let caches look larger from now on."""
        self.observations = tuple(one.sharing(sharing) for one in self._plain)
        self._last = None

    def full(self, logs: Floats) -> bool:
        """Whether any cache whose blocks can be shared was full."""
        costs = costs_of(logs, self.least_step_s)
        for one in self.observations:
            if one.engine.prefix_caching and one.engine.kv_blocks is not None:
                summary = simulate(one.load, one.engine, costs).engine
                if summary.preemptions or (summary.peak_kv_usage_share or 0.0) >= _FULL:
                    return True
        return False

    def residuals(self, logs: Floats) -> tuple[Floats, Floats]:
        if self._last is None or not np.array_equal(self._last[0], logs):
            self.runs += 1
            self._last = logs.copy(), residuals_of(self.observations, costs_of(logs, self.least_step_s))
        return self._last[1]

    def loss(self, logs: Floats, prior: Floats) -> float:
        """Cauchy's loss of all residuals, and a little for being far from where the fit began."""
        residuals, scales = self.residuals(logs)
        bent = self.bend**2 * np.log1p((residuals / self.bend) ** 2)
        away = _PRIOR_WEIGHT * float(np.sum(((logs - prior) / _PRIOR_SD) ** 2))
        return float(np.sum(bent * scales**2)) + away


def residuals_of(
    observations: Sequence[Observation], costs: Costs, weights: Sequence[Floats] | None = None
) -> tuple[Floats, Floats]:
    """Residuals and their scale: requests of all observations, then percentiles; NaNs are 0 with scale 0.

    The residual that counts is `residual x scale`. `weights`: how often each request of each observation is taken.
    """
    values: list[Floats] = []
    scales: list[Floats] = []
    for i, observation in enumerate(observations):
        times = None if weights is None else weights[i]
        simulation = simulate(observation.load, observation.engine, costs)
        gaps = observation.request_gaps(simulation)
        tails = observation.percentile_gaps(simulation, times)
        share = 1.0 if times is None else float(times.sum()) / len(times)
        for part, own, total in (
            (gaps, _FAMILY_WEIGHS[:, None] * (np.ones(gaps.shape[1]) if times is None else times), 1.0),
            (tails, np.full(tails.shape, share), _PERCENTILES_WEIGH),
        ):
            known = np.isfinite(part)
            values.append(np.where(known, part, 0.0).ravel())
            scale = np.where(known, np.sqrt(own), 0.0)
            scales.append((scale * np.sqrt(total / max(known.sum(), 1) / len(observations))).ravel())
    return np.concatenate(values), np.concatenate(scales)


def trust(residuals: Floats, bend: float) -> Floats:
    """Weights of residuals as squares: a half at `bend`, less and less beyond."""
    weights: Floats = 1.0 / (1.0 + (residuals / bend) ** 2)
    return weights


def solve(jacobian: Floats, residuals: Floats, away: Floats, damping: float) -> Floats:
    """The damped Gauss-Newton step; `away` is how far from the prior the costs are now."""
    normal = jacobian.T @ jacobian
    prior = _PRIOR_WEIGHT / _PRIOR_SD**2
    matrix = normal + np.diag(damping * np.diag(normal) + prior + 1e-12)
    step = -np.linalg.solve(matrix, jacobian.T @ residuals + prior * away)
    bounded: Floats = np.clip(step, -1.5, 1.5)
    return bounded


def costs_of(logs: Floats, least_step_s: float) -> Costs:
    """Costs from their logarithms, that of `step_s` above the least."""
    values = np.exp(np.clip(logs, -60.0, 10.0))
    values[0] += least_step_s
    return Costs.of(values)


def _logs(costs: Costs, least_step_s: float) -> Floats:
    values = costs.array()
    values[0] = max(values[0] - least_step_s, values[0] * 1e-3)
    logs: Floats = np.log(np.maximum(values, 1e-15))
    return logs


def _start(observations: Sequence[Observation], shares: tuple[float, float, float]) -> Floats:
    """Logarithms of costs to begin with; `shares` of the time per token: the step, its requests, their context."""
    tpot = np.concatenate([one.tpot_s[one.counts] for one in observations])
    ttft = np.concatenate([one.ttft_s[one.counts] for one in observations])
    inputs = np.concatenate([one.load.input_tokens[one.counts] for one in observations])
    lengths = np.concatenate([one.load.input_tokens + one.load.output_tokens / 2.0 for one in observations])
    known = tpot[np.isfinite(tpot)]
    pace = float(np.percentile(known, 25)) if len(known) else float(np.percentile(ttft, 5))
    # Little's law: how many decode at once.
    decoding = np.mean([_decoding(one) for one in observations])
    per_token = float(np.percentile(ttft / inputs, 2)) * 0.35
    context = float(lengths.mean())
    logs: Floats = np.log(
        np.array(
            [
                pace * shares[0],
                per_token,
                pace * shares[1] / decoding,
                pace * shares[2] / decoding / context,
                0.05 * per_token / context,
                max(float(ttft.min()) * 0.1, 1e-4),
            ]
        )
    )
    return logs


def _decoding(observation: Observation) -> float:
    span = float(np.max(observation.load.arrival_s + observation.e2el_s) - observation.load.arrival_s[0])
    mean = float(np.sum(observation.e2el_s - observation.ttft_s)) / span
    return min(max(mean, 1.0), observation.engine.max_num_seqs)


def _descend(target: _Target, start: Floats, prior: Floats, step: float, iterations: int) -> Floats:
    """Damped Gauss-Newton from `start`, while it helps."""
    logs, damping = start, 1e-2
    for _ in range(iterations):
        before = target.loss(logs, prior)
        residuals, scales = target.residuals(logs)
        weight = scales * np.sqrt(trust(residuals, target.bend))
        jacobian = slopes(target, logs, step) * weight[:, None]
        for harder in (1.0, 10.0, 100.0, 1000.0):
            tried = logs + solve(jacobian, residuals * weight, logs - prior, damping * harder)
            after = target.loss(tried, prior)
            if after < before:
                break
        else:
            break
        logs, damping = tried, max(damping * harder / 10.0, 1e-6)
        if after > 0.99 * before:
            break
    return logs


def simplex(loss: Callable[[Floats], float], start: Floats, size: float, runs: int) -> Floats:
    """The best of about `runs` points that a simplex of Nelder and Mead comes across, from one of `size` at `start`."""
    points = [start, *(start + size * row for row in np.eye(len(start)))]
    values = [loss(point) for point in points]
    used = len(points)
    while used < runs:
        order = np.argsort(values)
        points, values = [points[i] for i in order], [values[i] for i in order]
        if values[-1] - values[0] < 1e-3 * values[0]:
            break
        middle = np.mean(points[:-1], axis=0)
        away = middle - points[-1]
        mirrored = loss(middle + away)
        used += 2
        if mirrored < values[0]:
            farther = loss(middle + 2.0 * away)
            better = farther < mirrored
            points[-1], values[-1] = (middle + 2.0 * away, farther) if better else (middle + away, mirrored)
        elif mirrored < values[-2]:
            points[-1], values[-1] = middle + away, mirrored
        else:
            inside = middle + (0.5 if mirrored < values[-1] else -0.5) * away
            value = loss(inside)
            if value < min(mirrored, values[-1]):
                points[-1], values[-1] = inside, value
            else:
                points = [points[0], *(points[0] + 0.5 * (point - points[0]) for point in points[1:])]
                values = [values[0], *(loss(point) for point in points[1:])]
                used += len(start)
    best: Floats = points[int(np.argmin(values))]
    return best


def slopes(target: _Target, logs: Floats, step: float) -> Floats:
    """How residuals change with the logarithm of each cost, one column a cost."""
    columns = []
    for i in range(len(logs)):
        ahead, back = logs.copy(), logs.copy()
        ahead[i] += step
        back[i] -= step
        columns.append((target.residuals(ahead)[0] - target.residuals(back)[0]) / (2.0 * step))
    matrix: Floats = np.stack(columns, axis=1)
    return matrix
