"""How far the score of equal flags spreads, and how much worse a trial must look before it is certainly not the best.

**Model.** The log score of a trial is `truth + server + round + requests`. `server` is drawn once a launch (memory
layout, neighbours, clocks): it is the same in all rounds of a trial, so no number of rounds or requests averages it
out. A test that takes requests for independent draws (a Wilcoxon test over them, as in `optuna.pruners.WilcoxonPruner`)
sees only the last term, which is why it is far too sure.

**Margin.** The incumbent is the best of many noisy trials, so it looks better than it is. The rule is the subset
selection of S. S. Gupta, "On some multiple decision (selection and ranking) rules", Technometrics 7 (1965) 225-245:
keep every population whose mean is within `d * sd` of the best observed mean. The best one is kept with probability

    P(d) = integral over t and s of phi(t) * (1 - Phi(t - d * s)) ** (n - 1) * g(s)

at the least favourable truth, where all n are equally good; s = estimated sd / true sd, whose density g is that of
sqrt(chi2_df / df). d solves P(d) = 1 - error.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sweep.objective import Objective
from sweep.racing.rounds import Round, score


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviations of the log score (0.05: about 5 %) between launches, and between rounds of one launch.

    `df`: how many degrees of freedom the first one rests on; few of them widen the margin.
    Raises ValueError for a value that is not above zero.
    """

    server_sd: float
    round_sd: float
    df: float

    def __post_init__(self) -> None:
        if not (self.server_sd > 0 and self.round_sd > 0 and self.df > 0):
            raise ValueError(f"noise must be above zero: {self}")


# What is believed before a study has launched anything twice. GPU: vLLM's own CI, three runs of 1,000 ShareGPT
# requests, has a spread of 4.7 % in p95 TTFT, 9.5 % in p99 TPOT and 3.2 % in p99 ITL; a score is a mean of several.
# CPU: pairs of launches on two shared cores differ by 19 % at the median, an sd of 0.19 / 0.674 / sqrt(2) each, rounds
# included.
GPU_NOISE = Noise(server_sd=0.06, round_sd=0.03, df=10.0)
CPU_NOISE = Noise(server_sd=0.18, round_sd=0.10, df=10.0)


def estimate_noise(
    launches: Sequence[Sequence[Round]],
    objective: Objective,
    baseline_metrics: Mapping[str, float | None],
    prior: Noise,
) -> Noise:
    """`prior`, moved by what several launches of the same flags show (the baseline's, say).

    Two-way layout of log scores, launch by round (rounds are the same for all): the mean square between launches is
    `round_sd^2 + K server_sd^2`, the one left over is `round_sd^2`; see H. Scheffé, The Analysis of Variance (1959),
    chapter 7. Variances are averaged with those of the prior by degrees of freedom. Launches that lack a round of the
    others, or a score, are left out; fewer than two leave the prior.
    """
    rounds = max((len(launch) for launch in launches), default=0)
    table = [
        [score([part], objective, baseline_metrics) for part in launch] for launch in launches if len(launch) == rounds
    ]
    # At a request rate that has no weight no round has a score.
    scored = [number for number in range(rounds) if any(row[number] is not None for row in table)]
    rounds = len(scored)
    chosen = [[row[number] for number in scored] for row in table]
    known = [[math.log(value) for value in row if value] for row in chosen if all(row)]
    if len(known) < 2 or not rounds:
        return prior
    logs = np.array(known)
    servers = len(known)
    means = logs.mean(axis=1)
    left = logs - means[:, None] - logs.mean(axis=0)[None, :] + logs.mean()
    free, left_free = servers - 1, (servers - 1) * (rounds - 1)
    round_variance = float(np.sum(left**2)) / left_free if left_free else 0.0
    server_variance = max(0.0, float(np.var(means, ddof=1)) - round_variance / rounds)
    return Noise(
        server_sd=math.sqrt((prior.df * prior.server_sd**2 + free * server_variance) / (prior.df + free)),
        round_sd=math.sqrt((prior.df * prior.round_sd**2 + left_free * round_variance) / (prior.df + left_free)),
        df=prior.df + free,
    )


@functools.lru_cache(maxsize=4096)
def subset_margin(populations: int, error: float, df: float) -> float:
    """Gupta's d, see above: how many standard deviations behind the best observed of `populations` the truly best one
    falls with probability `error`. `df`: degrees of freedom of the standard deviation; inf when it is known.

    Raises ValueError for fewer than two populations or an error outside 0..0.5.
    """
    if populations < 2 or not 0 < error < 0.5:
        raise ValueError(f"no margin for {populations} populations at error {error:g}")
    t = np.linspace(-7.0, 7.0, 281)
    weight_t = np.exp(-(t**2) / 2)
    scale = np.linspace(0.02, 3.0, 75) if math.isfinite(df) else np.ones(1)
    log_g = (df - 1) * np.log(scale) - df * scale**2 / 2 if math.isfinite(df) else np.zeros(1)
    weight = np.exp(log_g - log_g.max())[:, None] * weight_t[None, :]
    weight /= weight.sum()

    def lost(d: float) -> float:
        behind = np.interp(t[None, :] - d * scale[:, None], _GRID, _PHI)
        return float(np.sum(weight * -np.expm1((populations - 1) * np.log1p(-np.minimum(behind, 1 - 1e-12)))))

    low, high = 0.0, 60.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if lost(middle) > error else (low, middle)
    return high


_GRID = np.linspace(-12.0, 12.0, 4801)
_PHI = np.array([0.5 * math.erfc(-x / math.sqrt(2.0)) for x in _GRID.tolist()])
