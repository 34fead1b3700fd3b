"""An SLO that can no longer be kept: not even if every request still to come were answered at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from sweep.metric_table import Metric, parse_metric, rate_text
from sweep.objective import Objective
from sweep.racing.rounds import Round
from sweep.workload import LoadPlan
from sweep.workload import Round as PlannedRound


@dataclass(frozen=True, slots=True)
class Planned:
    """All that a trial is to be sent: rounds, and requests and output tokens over all of them.

    `output_tokens` is None where replies may end when they like; it bounds how many gaps between tokens there can be.
    Where rounds take turns at several request rates, `rates` is that of each round, and `by_rate` the same of those at
    each rate.
    """

    rounds: int
    requests: int
    output_tokens: int | None = None
    rates: tuple[float | None, ...] = ()
    by_rate: Mapping[str, Planned] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: LoadPlan, *, full_replies: bool) -> Self:
        """Of a load; `full_replies`: whether each reply has all the tokens asked for."""
        whole = cls._of(plan.rounds, full_replies)
        if len(set(plan.rates)) < 2:
            return whole
        by_rate = {
            rate_text(rate): cls._of([one for one in plan.rounds if one.request_rate == rate], full_replies)
            for rate in plan.rates
        }
        return replace(whole, rates=plan.rates, by_rate=by_rate)

    @classmethod
    def _of(cls, rounds: Sequence[PlannedRound], full_replies: bool) -> Self:
        tokens = sum(prompt.output_tokens for one in rounds for prompt in one.prompts)
        return cls(len(rounds), sum(len(one.prompts) for one in rounds), tokens if full_replies else None)

    def at(self, rate: str | None) -> Planned:
        """What is sent at one request rate as `rate_text` writes it; None: all of it."""
        return self if rate is None else self.by_rate[rate]


def least_violations(rounds: Sequence[Round], objective: Objective, planned: Planned) -> dict[str, float]:
    """For each SLO on a latency the smallest `measured / limit - 1` that the trial can still end with.

    A percentile or mean never rises when a value falls, so filling the sample up to its planned size with zeros gives
    a bound that no outcome undercuts, with the interpolation of the metric itself. SLOs without such a bound (spreads,
    throughputs, ITL of replies of unknown length) are left out.
    """
    found: dict[str, float] = {}
    for name, limit in objective.limits.items():
        metric = parse_metric(name)
        if metric.stat in ("std", "rate"):
            continue
        there = [part for part in rounds if metric.at in (None, rate_text(part.rate))]
        seen = [part.columns.samples(metric.stem) for part in there]
        missing = _missing(metric, sum(map(len, seen)), planned.at(metric.at))
        if missing is not None and any(map(len, seen)):
            values = np.concatenate([*seen, np.zeros(missing)])
            least = np.mean(values) if metric.percentile is None else np.percentile(values, metric.percentile)
            found[name] = float(least) / limit - 1.0
    return found


def beyond_repair(
    rounds: Sequence[Round], objective: Objective, planned: Planned, incumbent_violations: Mapping[str, float]
) -> str | None:
    """One sentence when no outcome of the requests to come lets the trial rank before the incumbent, else None.

    Trials that keep every SLO come first, the others by the sum of their violations: so a breach alone decides only
    against an incumbent without one.
    """
    least = least_violations(rounds, objective, planned)
    excess = sum(max(0.0, value) for value in least.values())
    standing = sum(max(0.0, value) for value in incumbent_violations.values())
    if excess <= standing or math.isinf(standing):
        return None
    name = max(least, key=lambda key: least[key])
    limit = objective.limits[name]
    return (
        f"{name} cannot end below {limit * (1 + least[name]):.4g}, and its limit is {limit:g}: "
        "not even if every request to come took no time"
    )


def _missing(metric: Metric, seen: int, planned: Planned) -> int | None:
    """How many values may still come; more of them only make the bound weaker."""
    if metric.stem != "itl":
        return max(0, planned.requests - seen)
    return None if planned.output_tokens is None else max(0, planned.output_tokens - seen)
