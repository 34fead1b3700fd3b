"""After each round: is the incumbent better beyond doubt?

The candidate's requests are compared with the incumbent's, request by request: same prompts, same arrivals, so that
what the load itself does cancels. Optuna's `WilcoxonPruner` has the idea, and its documentation the cautions: pair by
the identity of an instance, correct for looking several times, and never stop what has the better average. Three
things do not carry over. Requests of a round share a queue, so they are not independent draws; a rank test sees the
middle of a distribution, an objective names its tail; and both servers are themselves draws. So here

- the effect is the log of the ratio of both *scores*, from the metrics of the objective with its weights;
- its uncertainty within a launch comes from blocks of consecutive requests, each left out once (delete-a-block
  jackknife: H. Künsch, "The jackknife and the bootstrap for general stationary observations", Annals of Statistics 17
  (1989) 1217-1241), from the rounds against one another, and from what is known of rounds; the largest counts;
- between launches it comes from repeated launches of equal flags, and the margin allows for the incumbent being the
  luckiest of many (`sweep.racing.noise`). `error` is divided by the number of looks (Bonferroni);
- the effect must exceed the margin over all requests, and in the middle block of each round, too: one hiccup of a
  minute makes a terrible p95, but is nothing that the flags did.

A load at several request rates is compared once every rate was measured. Blocks and rounds are then scored against
others of their rate; what they say of each rate is put together by its share of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sweep.metric_table import parse_metric
from sweep.objective import Objective
from sweep.racing.noise import Noise, subset_margin
from sweep.racing.rounds import Mask, Round, measure, pair, score
from sweep.racing.slo import Planned, beyond_repair
from sweep.racing.trace import LiveTrace

Rule = Literal["behind", "slo", "queue", "preemptions", "frozen"]

# Twenty requests are the fewest whose p95 is not simply the slowest one.
_BLOCK_REQUESTS = 20
_MOST_BLOCKS = 8
_FEWEST_BLOCKS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Incumbent:
    """The best complete trial so far, and what its score is relative to.

    `metrics`, `score` and `violations` are of all its rounds, the latter two against `baseline_metrics`. `traces` are
    what its engine showed in each round, as far as known. `compared`: how many complete trials it is the best of.
    """

    number: int
    rounds: tuple[Round, ...]
    metrics: Mapping[str, float | None]
    score: float
    violations: Mapping[str, float]
    baseline_metrics: Mapping[str, float | None]
    compared: int
    traces: tuple[LiveTrace | None, ...] = ()

    @property
    def feasible(self) -> bool:
        """Whether it keeps every SLO."""
        return all(value <= 0 for value in self.violations.values())


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a decision rests on. Ratios are candidate / incumbent, above 1 is worse; the rest are natural logs of such.

    `ratio` over all paired requests, `typical_ratio` in the middle block; the trial is stopped when the log of both
    exceeds `needed_log = margin x sd`. `launch_sd` is what pairing leaves of the noise within a launch.
    """

    rounds: int
    pairs: int
    ratio: float
    typical_ratio: float
    launch_sd: float
    sd: float
    needed_log: float
    metric_ratios: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RaceDecision:
    """Whether to stop the trial, by which rule, and why in one sentence. `rule` is None exactly when it goes on."""

    stop: bool
    reason: str
    rule: Rule | None = None
    evidence: Evidence | None = None


def race(
    rounds: Sequence[Round],
    incumbent: Incumbent | None,
    objective: Objective,
    *,
    planned: Planned,
    noise: Noise,
    error: float = 0.01,
) -> RaceDecision:
    """The verdict after the rounds 0, 1, ... of a candidate, to be asked after each.

    `error`: the probability that a study's best configuration is stopped by comparison; the rules on SLOs have none.
    Without an incumbent nothing is ever stopped: so runs the baseline. After the last round nothing is left to save.
    Rounds that something on the machine disturbed should not be handed over.
    """
    if incumbent is None:
        return RaceDecision(False, "nothing to compare with")
    if not rounds or len(rounds) >= planned.rounds:
        return RaceDecision(False, "no round is left to save")
    broken = beyond_repair(rounds, objective, planned, incumbent.violations)
    if broken is not None:
        return RaceDecision(True, broken, "slo")
    if not incumbent.feasible:
        return RaceDecision(False, f"trial {incumbent.number} misses an SLO: whatever keeps them all beats it")
    return _compare(rounds, incumbent, objective, planned, noise, error)


def _compare(
    rounds: Sequence[Round],
    incumbent: Incumbent,
    objective: Objective,
    planned: Planned,
    noise: Noise,
    error: float,
) -> RaceDecision:
    pairs = [pair(mine, theirs) for mine, theirs in zip(rounds, incumbent.rounds, strict=False)]
    mine, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    count = sum(len(part) for part in mine)
    masks = [_blocks(len(part)) for part in mine]
    if sum(map(len, masks)) < _FEWEST_BLOCKS or len(pairs) < len(rounds):
        return RaceDecision(False, f"{count} requests answered by both: too few to compare")
    if objective.rates and not set(objective.shares()) <= {part.rate for part in mine}:
        return RaceDecision(False, "not every request rate was measured yet")

    def log_ratio(a: Sequence[Round], b: Sequence[Round]) -> float | None:
        ours, other = (score(side, objective, incumbent.baseline_metrics) for side in (a, b))
        return math.log(ours / other) if ours and other else None

    whole = log_ratio(mine, theirs)
    if whole is None:
        return RaceDecision(False, "a metric of the objective is missing")
    looks = max(1, planned.rounds - 1)
    margin = subset_margin(max(2, incumbent.compared + 1), error / looks, noise.df)
    launch_sd = noise.round_sd * math.sqrt(2.0 / len(rounds))
    typical = whole
    # What is asked first is cheap; blocks and rounds can only widen the margin or lower the effect.
    if whole > margin * _sd(noise, launch_sd):
        typical = _typical(mine, theirs, masks, log_ratio, objective)
        spread = (_jackknife_sd(mine, theirs, masks, log_ratio, whole), _rounds_sd(mine, theirs, log_ratio, objective))
        launch_sd = max(launch_sd, *spread)
    sd = _sd(noise, launch_sd)
    evidence = Evidence(
        rounds=len(rounds),
        pairs=count,
        ratio=math.exp(whole),
        typical_ratio=math.exp(typical),
        launch_sd=launch_sd,
        sd=sd,
        needed_log=margin * sd,
        metric_ratios=_metric_ratios(objective, measure(mine, objective), measure(theirs, objective)),
    )
    stop = min(whole, typical) > evidence.needed_log
    reason = (
        f"{evidence.ratio:.2f} times the score of trial {incumbent.number} on the same {count} requests, "
        f"{evidence.typical_ratio:.2f} times in a typical stretch; "
        f"noise {'explains' if stop else 'may explain'} up to {math.exp(evidence.needed_log):.2f}"
    )
    return RaceDecision(stop, reason, "behind" if stop else None, evidence)


def _sd(noise: Noise, launch_sd: float) -> float:
    """Of one of two launches: half the variance of their difference, which `launch_sd` is a part of, is each one's."""
    return math.hypot(noise.server_sd, launch_sd / math.sqrt(2.0))


LogRatio = Callable[[Sequence[Round], Sequence[Round]], float | None]


def _blocks(requests: int) -> list[Mask]:
    """Stretches of consecutive requests, as long as one another within one request."""
    number = min(_MOST_BLOCKS, requests // _BLOCK_REQUESTS)
    label = np.arange(requests) * number // max(1, requests)
    return [label == block for block in range(number)]


def _jackknife_sd(
    mine: Sequence[Round], theirs: Sequence[Round], masks: Sequence[list[Mask]], log_ratio: LogRatio, whole: float
) -> float:
    """`sqrt((B - 1) / B * sum((whole without a block - their mean)^2))`; a block whose loss leaves no score is taken as
    not moving it."""
    without: list[float] = []
    for number, blocks in enumerate(masks):
        for mask in blocks:
            a, b = list(mine), list(theirs)
            a[number], b[number] = mine[number].where(~mask), theirs[number].where(~mask)
            value = log_ratio(a, b)
            without.append(whole if value is None else value)
    values = np.array(without)
    return math.sqrt((len(values) - 1) / len(values) * float(np.sum((values - values.mean()) ** 2)))


def _rounds_sd(mine: Sequence[Round], theirs: Sequence[Round], log_ratio: LogRatio, objective: Objective) -> float:
    """The standard error of the mean over rounds, from how those of one rate differ; 0 where each rate has one."""
    values: dict[float | None, list[float]] = {}
    for a, b in zip(mine, theirs, strict=True):
        if (value := log_ratio([a], [b])) is not None:
            values.setdefault(_rate(a, objective), []).append(value)
    free = sum(len(of_rate) - 1 for of_rate in values.values())
    if not free:
        return 0.0
    variance = sum(float(np.var(of_rate)) * len(of_rate) for of_rate in values.values()) / free
    shares = objective.shares()
    return math.sqrt(variance * sum(shares.get(rate, 0.0) ** 2 / len(of_rate) for rate, of_rate in values.items()))


def _typical(
    mine: Sequence[Round],
    theirs: Sequence[Round],
    masks: Sequence[list[Mask]],
    log_ratio: LogRatio,
    objective: Objective,
) -> float:
    """The median over blocks of each block's own log ratio; 0, no difference, where no block has a score."""
    values: dict[float | None, list[float]] = {}
    for a, b, blocks in zip(mine, theirs, masks, strict=True):
        for mask in blocks:
            if (value := log_ratio([a.where(mask)], [b.where(mask)])) is not None:
                values.setdefault(_rate(a, objective), []).append(value)
    medians = {rate: float(np.median(of_rate)) for rate, of_rate in values.items()}
    if objective.aggregate == "worst":
        return max(medians.values(), default=0.0)
    return sum(share * medians.get(rate, 0.0) for rate, share in objective.shares().items())


def _rate(part: Round, objective: Objective) -> float | None:
    """What its blocks are compared within: the request rate where the objective has several."""
    return part.rate if objective.rates else None


def _metric_ratios(
    objective: Objective, after: Mapping[str, float | None], before: Mapping[str, float | None]
) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in objective.terms:
        mine, theirs = after.get(name), before.get(name)
        if mine and theirs:
            found[name] = mine / theirs if parse_metric(name).lower_is_better else theirs / mine
    return found
