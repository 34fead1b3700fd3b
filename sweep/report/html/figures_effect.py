"""The plots of what was confirmed and of what it costs."""

from __future__ import annotations

import math

from sweep.report.facts.confirmation import ConfirmedRow
from sweep.report.facts.costs import Costs, MetricChange
from sweep.report.html.markup import plain
from sweep.report.html.plots import BLUE, GREEN, GREY, ORANGE, Plot, plot, scatter
from sweep.report.html.words import change, counted, metric_words, number, short

_LEAST_RATIO = 1e-4
# From this ratio on "×5" says more than "+400 %".
_TIMES = 5
# Ticks of an axis of ratios, by how far it reaches from 1.
_TICKS: tuple[tuple[float, tuple[float, ...]], ...] = (
    (1.12, (0.9, 0.95, 0.98, 1, 1.02, 1.05, 1.1)),
    (1.5, (0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5)),
    (4.0, (0.25, 0.35, 0.5, 0.7, 1, 1.5, 2, 3, 4)),
    (30.0, (0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)),
    (math.inf, (0.001, 0.01, 0.1, 0.3, 1, 3, 10, 100, 1000)),
)


def confirmation_plot(rows: tuple[ConfirmedRow, ...], level: float) -> Plot:
    """Scores with their intervals, the baseline at 1, single launches as small marks."""
    names = [_row_name(row) for row in rows]
    traces = [
        scatter(
            x=[short(score) for row in rows for score in row.launch_scores],
            y=[name for row, name in zip(rows, names, strict=True) for _ in row.launch_scores],
            mode="markers",
            name="one launch",
            marker={"symbol": "line-ns-open", "size": 12, "color": GREY, "line": {"width": 2, "color": GREY}},
            hovertemplate="one launch: %{x}<extra></extra>",
        ),
        scatter(
            x=[row.search_score for row in rows if row.search_score is not None],
            y=[name for row, name in zip(rows, names, strict=True) if row.search_score is not None],
            mode="markers",
            name="what the search believed",
            marker={"symbol": "diamond-open", "size": 10, "color": ORANGE, "line": {"width": 2, "color": ORANGE}},
            hovertemplate="score of the search: %{x:.3f}<extra></extra>",
        ),
    ]
    for recommended in (True, False):
        own = [(row, name) for row, name in zip(rows, names, strict=True) if row.recommended is recommended]
        if not own:
            continue
        scores = [row.score for row, _ in own]
        colour = GREEN if recommended else BLUE
        traces.append(
            scatter(
                x=[1.0 if score is None else short(score.value) for score in scores],
                y=[name for _, name in own],
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [0.0 if score is None else score.high - score.value for score in scores],
                    "arrayminus": [0.0 if score is None else score.value - score.low for score in scores],
                    "thickness": 3,
                    "width": 8,
                },
                mode="markers",
                name=f"{'recommended' if recommended else 'others'}, {level:.0%} interval",
                marker={"symbol": "square" if recommended else "circle", "size": 12, "color": colour},
                hovertext=[_row_words(row) for row, _ in own],
                hoverinfo="text",
            )
        )
    says = "; ".join(_row_words(row) for row in rows)
    return plot(
        "plot-confirmation",
        f"Confirmed scores: {says}",
        traces,
        height=150 + 56 * len(rows),
        xaxis={"title": {"text": "score: today's flags are 1, lower is better"}},
        yaxis={"autorange": "reversed", "automargin": True, "type": "category", "categoryarray": names},
        shapes=[_line_at(1.0)],
    )


def costs_plot(costs: Costs) -> Plot:
    """Every metric as a change from today's flags, with its interval and its SLO."""
    rows = costs.changes
    names = [metric_words(row.name) for row in rows]
    known = [(row, name) for row, name in zip(rows, names, strict=True)]
    traces = []
    for better, label, colour, symbol in (
        (True, "better", GREEN, "square"),
        (False, "worse", ORANGE, "triangle-up"),
        (None, "cannot be told from no change", BLUE, "circle-open"),
    ):
        own = [(row, name) for row, name in known if row.better is better]
        if not own:
            continue
        traces.append(
            scatter(
                x=[_ratio(row.ratio) for row, _ in own],
                y=[name for _, name in own],
                error_x=_ratio_errors([row for row, _ in own]),
                mode="markers",
                name=label if costs.confirmed else "measured once, no interval",
                marker={"symbol": symbol, "size": 11, "color": colour, "line": {"width": 2, "color": colour}},
                hovertext=[_change_words(row) for row, _ in own],
                hoverinfo="text",
            )
        )
    limits = [(row, name) for row, name in known if row.limit is not None and row.baseline > 0]
    if limits:
        traces.append(
            scatter(
                x=[_ratio((row.limit or 0.0) / row.baseline) for row, _ in limits],
                y=[name for _, name in limits],
                mode="markers",
                name="SLO",
                marker={"symbol": "line-ns-open", "size": 22, "color": GREY, "line": {"width": 3, "color": GREY}},
                hovertext=[f"SLO: {number(row.limit)} {row.unit}" for row, _ in limits],
                hoverinfo="text",
            )
        )
    return plot(
        "plot-costs",
        "Change of each metric: " + "; ".join(_change_words(row) for row in rows),
        traces,
        height=150 + 26 * len(rows),
        xaxis={"title": {"text": "change from today's flags"}, **_ratio_axis(rows)},
        yaxis={"autorange": "reversed", "automargin": True, "type": "category", "categoryarray": names},
        shapes=[_line_at(1.0)],
    )


def _ratio(value: float) -> float:
    """As a logarithmic axis takes it."""
    return max(short(value), _LEAST_RATIO)


def _ratio_axis(rows: tuple[MetricChange, ...]) -> dict[str, object]:
    """A logarithmic axis, on which half and double are as far, labelled with changes: an interval of one metric that
    reaches to twenty times as much would leave all others no room on a linear one."""
    found = [1.0, *(row.ratio for row in rows)]
    for row in rows:
        found += [] if row.ratio_interval is None else [row.ratio_interval.low, row.ratio_interval.high]
        found += [] if row.limit is None or row.baseline <= 0 else [row.limit / row.baseline]
    found = [one for one in found if math.isfinite(one)]
    low, high = _ratio(min(found)), max(found)
    reach = max(1 / low, high)
    ticks = next((ticks for most, ticks in _TICKS if reach <= most), _TICKS[-1][1])
    room = 0.04 * (math.log10(high) - math.log10(low) or 1.0)
    return {
        "type": "log",
        "range": [math.log10(low) - room, math.log10(high) + room],
        "tickvals": list(ticks),
        "ticktext": ["0" if tick == 1 else change(tick, 0) if tick < _TIMES else f"×{tick:g}" for tick in ticks],
    }


def _ratio_errors(rows: list[MetricChange]) -> dict[str, object]:
    known = [row.ratio_interval for row in rows]
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if one is None else one.high - one.value for one in known],
        "arrayminus": [0.0 if one is None else max(0.0, one.value - max(one.low, _LEAST_RATIO)) for one in known],
        "thickness": 2,
        "width": 5,
    }


def _line_at(x: float) -> dict[str, object]:
    line = {"color": GREY, "width": 2, "dash": "dash"}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line}


def _row_name(row: ConfirmedRow) -> str:
    return "today's flags" if row.score is None else f"trial {row.key}"


def _row_words(row: ConfirmedRow) -> str:
    name, launches = _row_name(row), counted(row.launches, "launch", "launches")
    broken = "" if row.feasible else ", breaks an SLO"
    if row.score is None:
        return f"{name}: 1 by definition, {launches}{broken}"
    score = row.score
    return f"{name}: {score.value:.3f} ({score.low:.3f} to {score.high:.3f}), {launches}{broken}"


def _change_words(row: MetricChange) -> str:
    limit = "" if row.limit is None else f", SLO {number(row.limit)} {'kept' if row.keeps else 'broken'}"
    values = f"{number(row.baseline)} to {number(row.winner)} {row.unit}"
    return plain(f"{metric_words(row.name)} {change(row.ratio)}: {values}{limit}")
