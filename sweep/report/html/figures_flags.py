"""The plot of the objective against one flag."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from sweep.report.facts.flags import FlagFacts, FlagLevel, FlagPoint
from sweep.report.facts.history import State
from sweep.report.html.markup import plain
from sweep.report.html.plots import CHOSEN, GREEN, GREY, RECOMMENDED, RED, Plot, markers, plot, scatter
from sweep.report.html.words import counted, flag_word, short
from sweep.trial import Flag

# So many values each have their tick; neighbours closer than this share of the axis would write over each other.
_FEW, _EVEN = 8, 0.11


def flag_plot(place: int, facts: FlagFacts, recommended: int | None = None, ring: str = RECOMMENDED) -> Plot:
    """Every trial by the flag's value, the mean of each value with its interval, and where every trial failed. `ring`
    names the mark around trial `recommended`."""
    axis = _Axis(facts)
    traces: list[Any] = []
    for state in State:
        own = [point for point in facts.points if point.state is state and point.score is not None]
        if own:
            traces.append(_points(axis, own, str(state), markers(state), [short(p.score or 0.0) for p in own]))
    scores = [point.score for point in facts.points if point.score is not None]
    failed = [point for point in facts.points if point.score is None and point.state is State.FAILED]
    if failed:
        top = max(scores, default=1.0)
        level = short(top + 0.08 * (top - min(scores, default=0.0) or 1.0))
        traces.append(_points(axis, failed, "failed (no score)", markers(State.FAILED), [level] * len(failed)))
    chosen = [p for p in facts.points if p.number == recommended and p.score is not None]
    if chosen:
        traces.append(_points(axis, chosen, ring, CHOSEN, [short(p.score or 0.0) for p in chosen]))
    means = [level for level in facts.levels if level.mean is not None]
    if means:
        traces.append(_means(axis, means))
    regions = [
        {
            "type": "rect",
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "x0": axis.at(region.low) - axis.half,
            "x1": axis.at(region.high) + axis.half,
            "fillcolor": RED,
            "opacity": 0.13,
            "line": {"width": 0},
            "label": {"text": f"all {region.trials} failed", "textposition": "top center", "font": {"size": 10}},
        }
        for region in facts.failed_regions
    ]
    rule = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1}
    return plot(
        f"plot-flag-{place}",
        f"Score by {facts.name}: {_says(facts)}",
        traces,
        height=330,
        showlegend=True,
        xaxis={"title": {"text": plain(facts.name)}, **axis.layout},
        # An interval may be much wider than what was measured: it runs out of the plot.
        yaxis={"title": {"text": "score, lower is better"}, "range": _range([*scores, 1.0])},
        shapes=[*regions, {**rule, "line": {"color": GREY, "width": 1, "dash": "dash"}}],
    )


class _Axis:
    """From a flag's value to a place: numbers as they are or by their logarithm's place, others in a row."""

    def __init__(self, facts: FlagFacts) -> None:
        self.numeric = facts.numeric
        self._words = [flag_word(level.low) for level in facts.levels]
        if self.numeric:
            numbers = sorted(float(p.value) for p in facts.points if isinstance(p.value, int | float))
            gaps = [b - a for a, b in itertools.pairwise(numbers) if b > a]
            self._ranked = sorted(set(numbers))
            # By rank where few values lie unevenly, such as powers of two, or span decades: a logarithmic axis would
            # put shapes and means elsewhere.
            uneven = len(self._ranked) <= _FEW and bool(gaps) and min(gaps) < _EVEN * (numbers[-1] - numbers[0])
            decades = numbers[0] > 0 and numbers[-1] / numbers[0] >= 16 and len(self._ranked) <= 12
            self.by_rank = uneven or decades
            self.half = 0.4 if self.by_rank else min(gaps, default=1.0) / 2
        else:
            self.by_rank, self._ranked, self.half = False, [], 0.4

    def at(self, value: Flag) -> float:
        """Where a value stands."""
        if not self.numeric:
            return float(self._words.index(flag_word(value)))
        assert isinstance(value, int | float)
        return float(self._ranked.index(float(value))) if self.by_rank else float(value)

    @property
    def layout(self) -> dict[str, Any]:
        """The axis of plotly."""
        if self.numeric and not self.by_rank:
            if len(self._ranked) > _FEW:
                return {"type": "linear"}
            return {"type": "linear", "tickvals": self._ranked, "ticktext": [f"{value:g}" for value in self._ranked]}
        texts = [f"{value:g}" for value in self._ranked] if self.by_rank else [plain(word) for word in self._words]
        last = len(texts) - 0.5
        return {"type": "linear", "tickvals": list(range(len(texts))), "ticktext": texts, "range": [-0.5, last]}


def _points(
    axis: _Axis, points: Sequence[FlagPoint], name: str, marker: dict[str, Any], scores: Sequence[float]
) -> Any:
    return scatter(
        x=[short(axis.at(point.value)) for point in points],
        y=list(scores),
        mode="markers",
        name=name,
        marker=marker,
        customdata=[point.number for point in points],
        hovertext=[f"trial {point.number}: {plain(flag_word(point.value))}" for point in points],
        hovertemplate="%{hovertext}<br>score %{y}<extra></extra>",
    )


def _means(axis: _Axis, levels: Sequence[FlagLevel]) -> Any:
    means = [level.mean for level in levels if level.mean is not None]
    return scatter(
        x=[(axis.at(level.low) + axis.at(level.high)) / 2 for level in levels],
        y=[short(mean.value) for mean in means],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [mean.high - mean.value for mean in means],
            "arrayminus": [mean.value - mean.low for mean in means],
            "thickness": 2,
            "width": 6,
        },
        mode="markers",
        name="mean, 95 % interval",
        marker={"symbol": "line-ew-open", "size": 22, "color": GREEN, "line": {"width": 3, "color": GREEN}},
        hovertext=[counted(level.measured, "trial") for level in levels],
        hovertemplate="mean %{y} of %{hovertext}<extra></extra>",
    )


def _range(scores: Sequence[float]) -> list[float]:
    low, high = min(scores), max(scores)
    room = 0.2 * (high - low or 1.0)
    return [short(low - room), short(high + room)]


def _says(facts: FlagFacts) -> str:
    parts = []
    for level in facts.levels:
        word = flag_word(level.low) if level.low == level.high else f"{flag_word(level.low)} to {flag_word(level.high)}"
        mean = "no mean" if level.mean is None else f"mean {level.mean.value:.3f}"
        parts.append(f"{word}: {mean} of {counted(level.measured, 'trial')}, {level.failed} failed")
    return "; ".join(parts)
