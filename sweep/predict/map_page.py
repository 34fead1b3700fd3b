"""A map as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import html
import json
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

from sweep.console import number_text
from sweep.predict.flag_map import FlagMap
from sweep.predict.terminal import rates_text
from sweep.predict.values import LABEL
from sweep.trial import Flag

# Scores from here on have one colour: what queues is many times worse, and would leave the rest without any.
_WORST = 2.0

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; \
style-src 'unsafe-inline'; img-src data: blob:">
<title>{title}</title>
<style>body {{ font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 68rem; padding: 0 1rem }}
h1 {{ font-size: 1.3rem }} .label {{ color: #b00020; font-weight: 600 }} #map {{ height: 36rem }}</style></head>
<body><h1>{title}</h1>
<p class="label">{label}: only the circles were measured</p>
<ul>{lines}</ul>
<div id="map"></div>
<script>{library}</script>
<script type="application/json" id="figure">{figure}</script>
<script>
const figure = JSON.parse(document.getElementById("figure").textContent);
Plotly.newPlot("map", figure.data, figure.layout, {{displaylogo: false, responsive: true}});
</script></body></html>
"""


def map_page(found: FlagMap) -> str:
    """The page. Everything that a study names is escaped."""
    title = f"{found.study}: the objective over {found.names[0]} and {found.names[1]}"
    return _PAGE.format(
        title=html.escape(title),
        label=html.escape(LABEL.capitalize()),
        lines="".join(f"<li>{html.escape(line)}</li>" for line in remarks(found)),
        library=_library(),
        figure=_inert(figure(found)),
    )


def remarks(found: FlagMap) -> list[str]:
    """What the map shows and rests on, one line each."""
    settings = ", ".join(f"{name} {_text(value)}" for name, value in sorted(found.settings.items()))
    trials = ", ".join(map(str, found.basis.trials))
    scores = [score for row in found.scores for score in row if score is not None]
    span = f"from {number_text(min(scores))} to {number_text(max(scores))}" if scores else "none can run"
    return [
        f"Score: metrics / baseline, 1 is the baseline, lower is better; {found.objective}",
        f"Load: {rates_text(found.request_rates_per_s)}; the other flags: {settings or 'none'}",
        f"Step costs are learnt from {found.basis.requests:,} requests of trials {trials}",
        f"{len(scores)} settings simulated, {span}; {found.distinct} of them differ in any step",
        *(f"Caution: {text}" for text in found.cautions),
    ]


def figure(found: FlagMap) -> dict[str, Any]:
    """The figure in plotly's JSON; places on the axes are those of the values in their order."""
    rows, columns = found.values
    hover = [
        [
            f"{_safe(found.names[0])} {_safe(_text(row))}<br>{_safe(found.names[1])} {_safe(_text(column))}<br>"
            + ("not possible" if score is None else f"score {number_text(score)} (simulated)")
            for column, score in zip(columns, scores, strict=True)
        ]
        for row, scores in zip(rows, found.scores, strict=True)
    ]
    heat = {
        "type": "heatmap",
        "z": [[None if score is None else min(score, _WORST) for score in scores] for scores in found.scores],
        "x": list(range(len(columns))),
        "y": list(range(len(rows))),
        "text": hover,
        "hoverinfo": "text",
        "colorscale": "Viridis",
        "colorbar": {"title": {"text": f"score, {_WORST:g} and worse in one colour"}},
        "hoverongaps": False,
    }
    layout = {
        "xaxis": _axis(found.names[1], columns),
        "yaxis": _axis(found.names[0], rows),
        "legend": {"orientation": "h"},
        "margin": {"t": 20},
    }
    return {"data": [heat, *_circles(found)], "layout": layout}


def _circles(found: FlagMap) -> list[dict[str, Any]]:
    """Measured trials: full where all other flags are those of the map, empty where some differ; and the baseline."""
    traces = []
    for name, symbol, chosen in (
        ("measured", "circle", [one for one in found.marks if not one.changes]),
        ("measured with other flags", "circle-open", [one for one in found.marks if one.changes]),
    ):
        places = [(_place(one.at[1], found.values[1]), _place(one.at[0], found.values[0]), one) for one in chosen]
        known = [(x, y, one) for x, y, one in places if x is not None and y is not None]
        texts = []
        for *_, one in known:
            others = ", ".join(f"{flag} {_text(value)}" for flag, value in one.changes.items())
            texts.append(
                f"trial {one.number}, measured: score {number_text(one.score)}"
                + (f"<br>{_safe(others)}" if others else "")
            )
        traces.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "name": name,
                "x": [x for x, *_ in known],
                "y": [y for _, y, _ in known],
                "text": [number_text(one.score) for *_, one in known],
                "textposition": "top center",
                "hovertext": texts,
                "hoverinfo": "text",
                "marker": {"symbol": symbol, "size": 12, "color": "#ffffff", "line": {"color": "#b00020", "width": 2}},
            }
        )
    return traces


def _axis(name: str, values: tuple[Flag, ...]) -> dict[str, Any]:
    return {
        "title": {"text": _safe(name)},
        "tickvals": list(range(len(values))),
        "ticktext": [_safe(_text(value)) for value in values],
        "zeroline": False,
    }


def _place(value: Flag, values: tuple[Flag, ...]) -> float | None:
    """Where a value stands on an axis, between two of its values if it is none of them."""
    if value in values:
        return float(values.index(value))
    if value is None or isinstance(value, (str, bool)):
        return None
    numbers = [(place, float(one)) for place, one in enumerate(values) if isinstance(one, (int, float))]
    for (place, low), (_, high) in pairwise(numbers):
        if low <= value <= high:
            return place + (value - low) / (high - low)
    return None


def _text(value: Flag) -> str:
    return "vLLM's default" if value is None else str(value)


def _safe(text: str) -> str:
    """Text for a plot: plotly reads a few tags and entities in what it shows, so they are spelled out."""
    return html.escape(text, quote=False)


def _inert(content: dict[str, Any]) -> str:
    """JSON that ends no script element, whatever is in it."""
    return (
        json.dumps(content, ensure_ascii=True).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    )


def _library() -> str:
    """plotly.js as the plotly package ships it. Not through `plotly.offline`, whose import takes a second."""
    path = metadata.distribution("plotly").locate_file("plotly/package_data/plotly.min.js")
    return Path(str(path)).read_text(encoding="utf-8").replace("</script", "<\\/script")
