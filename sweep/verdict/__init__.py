"""Is it really better? Intervals, the verdict on a confirmation, and when to stop it. numpy only; see `judge`."""

from __future__ import annotations

from sweep.verdict.finalists import finalists
from sweep.verdict.judge import judge
from sweep.verdict.launches import Launch, LaunchFigures, RoundData, figures_of, from_requests
from sweep.verdict.percentiles import percentile_interval, prompts_needed
from sweep.verdict.sentence import gain
from sweep.verdict.stop import FIRST_LAUNCHES, MOST_LAUNCHES, WIDTH, Enough, Why, enough
from sweep.verdict.values import Effect, Interval, MetricLine, Outcome, Shrinkage, Spread, Verdict

__all__ = [
    "FIRST_LAUNCHES",
    "MOST_LAUNCHES",
    "WIDTH",
    "Effect",
    "Enough",
    "Interval",
    "Launch",
    "LaunchFigures",
    "MetricLine",
    "Outcome",
    "RoundData",
    "Shrinkage",
    "Spread",
    "Verdict",
    "Why",
    "enough",
    "figures_of",
    "finalists",
    "from_requests",
    "gain",
    "judge",
    "percentile_interval",
    "prompts_needed",
]
