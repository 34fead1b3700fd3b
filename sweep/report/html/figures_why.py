"""The plots that say why: importance, history, fronts, parallel axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sweep.report.facts.clouds import Cloud, CloudPoint, Parallel
from sweep.report.facts.history import Moment, State
from sweep.report.html.markup import plain
from sweep.report.html.plots import (
    BLUE,
    CHOSEN,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RECOMMENDED,
    RED,
    Plot,
    bar,
    markers,
    plot,
    scatter,
)
from sweep.report.html.words import counted, duration, metric_unit, metric_words, number, percent, short
from sweep.searcher.importance import Importance
from sweep.trial import SEARCHING, TrialKind


def importance_plot(importance: Importance) -> Plot:
    """A bar a flag with its interval, and what chance alone would give it."""
    rows = importance.flags
    names = [plain(row.name) for row in rows]
    traces = [
        bar(
            x=[short(100 * row.share) for row in rows],
            y=names,
            orientation="h",
            name="share, with what nine of ten halves of the trials give",
            marker={"color": BLUE, "pattern": {"shape": ["" if row.beyond_chance else "/" for row in rows]}},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [max(0.0, 100 * (row.high - row.share)) for row in rows],
                "arrayminus": [max(0.0, 100 * (row.share - row.low)) for row in rows],
            },
            hovertemplate="%{y}: %{x} %<extra></extra>",
        ),
        scatter(
            x=[short(100 * row.chance) for row in rows],
            y=names,
            mode="markers",
            name="chance alone stays below this",
            marker={"symbol": "line-ns-open", "size": 18, "color": RED, "line": {"width": 3, "color": RED}},
            hovertemplate="chance: up to %{x} %<extra></extra>",
        ),
    ]
    says = "; ".join(f"{row.name} {percent(row.share)}" for row in rows)
    return plot(
        "plot-importance",
        f"Importance of the flags: {says}",
        traces,
        height=150 + 34 * len(rows),
        xaxis={"title": {"text": "share of what told the best quarter from all, %"}, "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "automargin": True, "type": "category"},
    )


def history_plot(moments: Sequence[Moment]) -> Plot:
    """Scores by trial, the best so far, the baseline's later measurements and the confirmation's launches."""
    traces: list[Any] = []
    searching = [moment for moment in moments if moment.kind in SEARCHING]
    for state in State:
        own = [one for one in searching if one.state is state]
        scored = [one for one in own if one.score is not None]
        if state is State.FAILED:
            traces += _failed_marks(own, moments)
        elif scored:
            traces.append(_moments(scored, str(state), markers(state)))
    best = [one for one in moments if one.best is not None]
    if best:
        traces.append(
            scatter(
                x=[one.number for one in best],
                y=[short(one.best) for one in best if one.best is not None],
                mode="lines",
                name="best so far",
                line={"shape": "hv", "color": GREEN, "width": 2},
                hovertemplate="best so far: %{y}<extra></extra>",
            )
        )
    drift = [one for one in moments if one.kind is TrialKind.DRIFT and one.score is not None]
    if drift:
        mark = {"symbol": "star-open", "size": 13, "color": PURPLE, "line": {"width": 2, "color": PURPLE}}
        traces.append(_moments(drift, "baseline again (drift)", mark))
    confirming = [one for one in moments if one.kind is TrialKind.CONFIRM and one.score is not None]
    if confirming:
        mark = {"symbol": "square-open", "size": 9, "color": ORANGE, "line": {"width": 2, "color": ORANGE}}
        traces.append(_moments(confirming, "launched again (its block's baseline is 1)", mark))
    says = f"Scores of {counted(len(moments), 'trial')} in their order; the last best score is " + (
        "none" if not best else number(best[-1].best)
    )
    return plot(
        "plot-history",
        says,
        traces,
        height=400,
        xaxis={"title": {"text": "trial"}},
        yaxis={"title": {"text": "score, lower is better"}},
        shapes=[
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": 1,
                "y1": 1,
                "line": {"color": GREY, "width": 1, "dash": "dash"},
            }
        ],
    )


def _moments(moments: Sequence[Moment], name: str, marker: dict[str, Any]) -> Any:
    return scatter(
        x=[one.number for one in moments],
        y=[short(one.score) for one in moments if one.score is not None],
        mode="markers",
        name=name,
        marker=marker,
        customdata=[one.number for one in moments],
        hovertext=[f"trial {one.number}, {one.kind}, after {duration(one.began_s)}" for one in moments],
        hovertemplate="%{hovertext}<br>score %{y}<extra></extra>",
    )


def _failed_marks(failed: Sequence[Moment], moments: Sequence[Moment]) -> list[Any]:
    """They have no score: marked along the bottom."""
    if not failed:
        return []
    scores = [one.score for one in moments if one.score is not None]
    bottom = min(scores, default=1.0)
    return [
        scatter(
            x=[one.number for one in failed],
            y=[short(bottom - 0.06 * (max(scores, default=1.0) - bottom or 1.0))] * len(failed),
            mode="markers",
            name="failed (no score)",
            marker=markers(State.FAILED),
            customdata=[one.number for one in failed],
            hovertext=[f"trial {one.number} failed" for one in failed],
            hoverinfo="text",
        )
    ]


def cloud_plot(place: int, cloud: Cloud, recommended: int | None = None, ring: str = RECOMMENDED) -> Plot:
    """The trials by two metrics, the front joined by a line. `ring` names the mark around trial `recommended`."""
    traces: list[Any] = []
    front = cloud.front
    if len(front) > 1:
        traces.append(
            scatter(
                x=[short(point.x) for point in front],
                y=[short(point.y) for point in front],
                mode="lines",
                name="front: none is better in both",
                line={"color": GREEN, "width": 2, "dash": "dot"},
                hoverinfo="skip",
            )
        )
    for state in State:
        own = [point for point in cloud.points if point.state is state]
        if own:
            traces.append(_cloud_points(own, str(state), markers(state)))
    base = [point for point in cloud.points if point.kind is TrialKind.BASELINE]
    if base:
        look = {"symbol": "star", "size": 15, "color": GREEN, "line": {"width": 1, "color": GREY}}
        traces.append(_cloud_points(base, "today's flags", look))
    chosen = [point for point in cloud.points if point.number == recommended]
    if chosen:
        traces.append(_cloud_points(chosen, ring, CHOSEN))
    x, y = cloud.metrics
    numbers = ", ".join(str(point.number) for point in front)
    return plot(
        f"plot-front-{place}",
        f"{metric_words(x)} against {metric_words(y)}; on the front: trial {numbers or 'none'}",
        traces,
        height=400,
        xaxis={"title": {"text": _title(x)}, **_log([point.x for point in cloud.points])},
        yaxis={"title": {"text": _title(y)}, **_log([point.y for point in cloud.points])},
    )


def _cloud_points(points: Sequence[CloudPoint], name: str, marker: dict[str, Any]) -> Any:
    return scatter(
        x=[short(point.x) for point in points],
        y=[short(point.y) for point in points],
        mode="markers",
        name=name,
        marker=marker,
        customdata=[point.number for point in points],
        hovertemplate="trial %{customdata}: %{x}, %{y}<extra></extra>",
    )


def _title(name: str) -> str:
    unit = metric_unit(name)
    return f"{metric_words(name)}, {unit}" if unit else metric_words(name)


def _log(values: Sequence[float]) -> dict[str, Any]:
    low, high = min(values, default=0.0), max(values, default=0.0)
    return {"type": "log", "dtick": "D2"} if low > 0 and high / low >= 16 else {}


_THIRDS = ((GREEN, "solid", "best third"), (BLUE, "dash", "middle third"), (GREY, "dot", "worst third"))


def parallel_plot(parallel: Parallel) -> Plot:
    """Every trial a line across the axes. Drawn as plain lines: the trace made for this needs WebGL."""
    traces: list[Any] = []
    places = [*range(len(parallel.axes)), None]
    for third, look in ((0, _THIRDS[0]), (1, _THIRDS[1]), (2, _THIRDS[2]), (None, (RED, "dashdot", "no score"))):
        own = [line for line in parallel.lines if line.third == third]
        if own:
            colour, dash, name = look
            traces.append(
                scatter(
                    x=[place for _ in own for place in places],
                    y=[None if spot is None else short(spot) for line in own for spot in (*line.places, None)],
                    customdata=[line.number for line in own for _ in places],
                    mode="lines",
                    connectgaps=False,
                    name=name,
                    opacity=0.75,
                    line={"color": colour, "dash": dash, "width": 1.5},
                    hovertemplate="trial %{customdata}<extra></extra>",
                )
            )
    ticks = [
        {
            "x": place,
            "y": spot,
            "text": plain(text),
            "showarrow": False,
            "xanchor": "left",
            "xshift": 4,
            "font": {"size": 10},
        }
        for place, axis in enumerate(parallel.axes)
        for spot, text in axis.ticks
    ]
    rules = [
        {"type": "line", "x0": place, "x1": place, "y0": 0, "y1": 1, "line": {"color": GREY, "width": 1}}
        for place in range(len(parallel.axes))
    ]
    names = [plain(metric_words(axis.name) if axis.metric else axis.name) for axis in parallel.axes]
    return plot(
        "plot-parallel",
        f"{counted(len(parallel.lines), 'trial')} across {', '.join(axis.name for axis in parallel.axes)}",
        traces,
        height=440,
        xaxis={
            "tickvals": list(range(len(names))),
            "ticktext": names,
            "range": [-0.15, len(names) - 0.4],
            "showgrid": False,
            "zeroline": False,
            "side": "bottom",
        },
        yaxis={"visible": False, "range": [-0.05, 1.05]},
        annotations=ticks,
        shapes=rules,
    )
