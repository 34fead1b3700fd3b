"""From the launches of the confirmation to a verdict: better, no clear winner, or keep your flags.

Only confirmation data enters. Search scores are the best of many and are shown beside, never used.

**Interval of the leader.** The leader is chosen among k candidates on the data it is judged by, so it looks better than
it is. Two errors make its interval wrong. Claiming too much: the limit towards the baseline is Dunnett's one-sided
simultaneous one, at half of the error, so the chance that *any* candidate is overrated is within it. Claiming too
little: being chosen makes this rarer, so the other limit is Student's, at what a single comparison leaves of the
error. The asymmetry of intervals for selected populations is that of Fuentes, Casella and Wells, "Confidence intervals
for the means of the selected populations", Electronic Journal of Statistics 12 (2018) 58-79.

**Repeated looks.** See `sweep.verdict.stop`: intervals are widened by its price.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sweep.metric_table import parse_metric
from sweep.objective import Objective
from sweep.trial import Flag, Flags
from sweep.verdict.launches import LaunchFigures
from sweep.verdict.layout import Contrast, Layout, fit
from sweep.verdict.quantiles import Array, dunnett_quantile, t_quantile, t_tail
from sweep.verdict.sentence import sentence_of
from sweep.verdict.stop import WIDTH, look_price
from sweep.verdict.values import Effect, Interval, MetricLine, Outcome, Shrinkage, Spread, Verdict

_STEP = 1e-4  # of a log metric, for the slope of the score
_ROUNDING = 1e-6  # of a score: launches may agree to the last digit, on a simulator
_SAME = 0.01  # points of the score that are no reason to change one flag more, however surely they are measured
_UTILIZATION = "gpu-memory-utilization"


def judge(
    figures: Sequence[LaunchFigures],
    objective: Objective,
    *,
    baseline: int,
    flags: Mapping[int, Flags],
    search_scores: Mapping[int, float | None] | None = None,
    width: float = WIDTH,
    level: float = 0.95,
    metric_names: Sequence[str] = (),
) -> Verdict:
    """The verdict on the launches of a confirmation; `figures_of` gives their figures, of the objective's metrics at
    least (`Objective.metrics_needed`).

    `flags` holds the searched flags by configuration. `width` is that of the stop rule, in points of the score: with
    the leader's interval as narrow as that, "cannot be told from the baseline" reads "keep your flags". `metric_names`
    are further metrics to give intervals for. A launch without a metric of the objective is left out; a candidate with
    fewer than two launches is not judged.
    """
    needed = objective.metrics_needed()
    usable = [launch for launch in figures if all(launch.metrics.get(name) is not None for name in needed)]
    counts = {key: sum(launch.key == key for launch in usable) for key in {launch.key for launch in usable}}
    usable = [launch for launch in usable if counts[launch.key] >= 2]
    layout = fit(usable, baseline, _names(usable, (*needed, *metric_names)))
    if layout is None:
        return _undecided(counts.get(baseline, 0), len(figures) - sum(counts.values()), level)
    court = _Court(layout, objective, 1 - level)
    effects = tuple(sorted((court.effect(key, flags) for key in layout.keys[1:]), key=lambda e: (e.rank, e.key)))
    leader = effects[0]
    tied = court.tied(leader, effects)
    winner = min(tied, key=lambda effect: _preference(effect, flags)) if tied else None
    outcome = Outcome.BETTER if winner else _without_winner(leader, court.baseline_rank(), width)
    shown = winner or leader
    verdict = Verdict(
        outcome=outcome,
        winner=None if winner is None else winner.key,
        leader=leader,
        effects=effects,
        tied=tuple(effect.key for effect in tied),
        baseline_feasible=not court.baseline_rank()[0],
        metrics=court.lines(shown.key, frozenset[str]().union(*(launch.thin for launch in usable))),
        shrinkage=_shrinkage(effects, search_scores or {}),
        spread=court.spread(leader.key),
        launches=layout.counts[0],
        unusable=len(figures) - sum(counts.values()),
        level=level,
        sentence="",
    )
    return sentence_of(verdict, court.broken())


@dataclass(frozen=True, slots=True)
class _Court:
    """One fitted layout under one objective. `error` is 1 - level."""

    layout: Layout
    objective: Objective
    error: float

    @property
    def baseline(self) -> int:
        return self.layout.keys[0]

    def score(self, key: int, against: int) -> float:
        value = self.objective.score(self.layout.metrics(key), self.layout.metrics(against)).value
        return math.nan if value is None else value

    def violations(self, key: int) -> dict[str, float]:
        own = self.layout.metrics(key)
        return dict(self.objective.score(own, own).violations)

    def baseline_rank(self) -> tuple[bool, float, float]:
        excess = sum(max(0.0, value) for value in self.violations(self.baseline).values())
        return (excess > 0, excess, 1.0)

    def broken(self) -> str | None:
        """The SLO that the baseline breaks most, if any."""
        found = self.violations(self.baseline)
        worst = max(found, key=lambda name: found[name], default=None)
        return worst if worst is not None and found[worst] > 0 else None

    def effect(self, key: int, flags: Mapping[int, Flags]) -> Effect:
        slopes = self.slopes(key, self.baseline)
        contrast = self.layout.contrast(key, self.baseline, slopes)
        score = self.score(key, self.baseline)
        found = Effect(
            key=key,
            launches=self.layout.counts[self.layout.keys.index(key)],
            score=self.limits(score, contrast),
            violations=self.violations(key),
            changed=_changed(flags.get(key, {}), flags.get(self.baseline, {})),
            clear=False,
        )
        return _with_clear(found, self.is_clear(found))

    def is_clear(self, effect: Effect) -> bool:
        """Better than the baseline beyond doubt. A broken SLO of the baseline is what must be mended first: then its
        metric is compared, not the score."""
        broken = self.broken()
        if broken is None:
            return effect.feasible and effect.score.high < 1 - _ROUNDING
        if effect.rank[:2] >= self.baseline_rank()[:2]:
            return False
        sign = 1.0 if parse_metric(broken).lower_is_better else -1.0
        contrast = self.layout.contrast(effect.key, self.baseline, self.unit(broken) * sign)
        return contrast.log_ratio + self.reach(contrast) < -_ROUNDING

    def tied(self, leader: Effect, effects: Sequence[Effect]) -> list[Effect]:
        """The leader, if it is clear, and the clear ones that cannot be told from it or differ by next to nothing."""
        if not leader.clear:
            return []
        found = [leader]
        for effect in effects[1:]:
            slopes = (self.slopes(effect.key, self.baseline) + self.slopes(leader.key, self.baseline)) / 2
            contrast = self.layout.contrast(effect.key, leader.key, slopes)
            behind = math.log(effect.score.value / leader.score.value)
            alike = behind <= self.reach(contrast) or effect.score.value - leader.score.value <= _SAME
            if alike and effect.clear and effect.feasible is leader.feasible:
                found.append(effect)
        return found

    def slopes(self, key: int, against: int) -> Array:
        """d log(score) / d log(metric) at the mean metrics: what each metric's noise does to the score."""
        base, own = self.layout.metrics(against), self.layout.metrics(key)
        found = np.zeros(len(self.layout.names))
        for place, name in enumerate(self.layout.names):
            if name in self.objective.terms:
                sides = (own | {name: own[name] * math.exp(step)} for step in (_STEP, -_STEP))
                up, down = (self.objective.score(side, base).value for side in sides)
                found[place] = math.log((up or math.nan) / (down or math.nan)) / (2 * _STEP)
        return found

    def unit(self, name: str) -> Array:
        return np.array([float(other == name) for other in self.layout.names])

    def tails(self, df: float) -> tuple[float, float]:
        """How far an interval reaches, in standard errors, towards less gain and towards more."""
        layout = self.layout
        error = self.error * look_price(df)
        shares = tuple(round(math.sqrt(n / (n + layout.counts[0])), 3) for n in layout.counts[1:])
        whole_df = round(df, 1)
        towards_less = dunnett_quantile(error / 2, shares, whole_df)
        return towards_less, t_quantile(error - t_tail(towards_less, whole_df), whole_df)

    def reach(self, contrast: Contrast) -> float:
        return self.tails(contrast.df)[0] * contrast.error

    def limits(self, value: float, contrast: Contrast) -> Interval:
        less, more = self.tails(contrast.df)
        return Interval(value, value * math.exp(-more * contrast.error), value * math.exp(less * contrast.error))

    def spread(self, key: int) -> Spread:
        slopes = self.slopes(key, self.baseline)
        whole = float(slopes @ self.layout.spread @ slopes)
        return Spread(
            math.sqrt(whole), math.sqrt(self.layout.within_variance(key, self.baseline, slopes)), self.layout.df
        )

    def lines(self, key: int, thin: Collection[str]) -> tuple[MetricLine, ...]:
        """Two-sided intervals of every metric; ratios carry the price of the looks, and of the choice where limits
        lie towards the baseline. `thin`: the percentiles that too few requests stand behind."""
        levels = []
        for one in (self.baseline, key):
            errors, df = self.layout.level_error(one)
            t = t_quantile(self.error / 2, df)
            own = self.layout.metrics(one)
            levels.append(
                {
                    name: Interval(own[name], own[name] * math.exp(-t * error), own[name] * math.exp(t * error))
                    for name, error in zip(self.layout.names, errors.tolist(), strict=True)
                }
            )
        return tuple(
            MetricLine(name, levels[0][name], levels[1][name], self.ratio(name, key), name in thin)
            for name in levels[0]
        )

    def ratio(self, name: str, key: int) -> Interval:
        contrast = self.layout.contrast(key, self.baseline, self.unit(name))
        less, more = self.tails(contrast.df)
        up, down = (less, more) if parse_metric(name).lower_is_better else (more, less)
        value = math.exp(contrast.log_ratio)
        return Interval(value, value * math.exp(-down * contrast.error), value * math.exp(up * contrast.error))


def _without_winner(leader: Effect, baseline_rank: tuple[bool, float, float], width: float) -> Outcome:
    if leader.rank >= baseline_rank or leader.score.width <= width:
        return Outcome.KEEP
    return Outcome.NO_CLEAR_WINNER


def _names(figures: Sequence[LaunchFigures], wanted: Sequence[str]) -> list[str]:
    """Those of `wanted` that every launch has."""
    return [name for name in dict.fromkeys(wanted) if all(launch.metrics.get(name) is not None for launch in figures)]


def _changed(flags: Flags, baseline: Flags) -> int:
    return sum(flags.get(name) != baseline.get(name) for name in {*flags, *baseline})


def _preference(effect: Effect, flags: Mapping[int, Flags]) -> tuple[int, float, float, int]:
    utilization: Flag = flags.get(effect.key, {}).get(_UTILIZATION)
    # Left to vLLM it is as high as vLLM dares.
    share = float(utilization) if isinstance(utilization, int | float) else 1.0
    return (effect.changed, share, effect.score.value, effect.key)


def _with_clear(effect: Effect, clear: bool) -> Effect:
    return Effect(effect.key, effect.launches, effect.score, effect.violations, effect.changed, clear)


def _shrinkage(effects: Sequence[Effect], search_scores: Mapping[int, float | None]) -> tuple[Shrinkage, ...]:
    known = ((effect, search_scores.get(effect.key)) for effect in effects)
    return tuple(Shrinkage(e.key, score, e.score.value) for e, score in known if score is not None)


def _undecided(launches: int, unusable: int, level: float) -> Verdict:
    empty = Verdict(
        outcome=Outcome.NO_CLEAR_WINNER,
        winner=None,
        leader=None,
        effects=(),
        tied=(),
        baseline_feasible=True,
        metrics=(),
        shrinkage=(),
        spread=None,
        launches=launches,
        unusable=unusable,
        level=level,
        sentence="",
    )
    return sentence_of(empty, None)
