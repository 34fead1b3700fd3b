"""What all plots share: shapes and colours that tell states apart without colour vision, on light and dark ground."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sweep.report.facts.history import State
from sweep.report.html.markup import Html, el

# Of the Okabe-Ito palette, in shades that show on white and on near black; each with a symbol of its own.
BLUE, ORANGE, RED, PURPLE, GREEN, GREY = "#2b87c8", "#d98c00", "#d1571b", "#b5659a", "#159a74", "#828a93"
LOOKS = {
    State.KEPT: (BLUE, "circle"),
    State.BREAKS: (ORANGE, "triangle-up"),
    State.CENSORED: (GREY, "circle-open"),
    State.DISTURBED: (PURPLE, "diamond-open"),
    State.FAILED: (RED, "x-thin-open"),
}
# A ring around the trial whose flags are recommended, or in whose place nearer ones were launched that are.
RECOMMENDED, MEANT = "recommended", "the same as recommended"
CHOSEN: dict[str, Any] = {"symbol": "square-open", "size": 16, "color": GREEN, "line": {"width": 2, "color": GREEN}}


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure with the id of the element it is drawn into and a sentence that says what it shows, for who cannot see
    it. `spec` is plotly's own JSON.
    """

    name: str
    says: str
    spec: dict[str, Any]

    @property
    def place(self) -> Html:
        """The element that the page's script draws into; as high as the drawing, so that nothing jumps."""
        height = f"min-height:{self.spec['layout'].get('height', 360)}px"
        return el("div", class_="plot", id=self.name, role="img", aria_label=self.says, style=height)


def plot(name: str, says: str, traces: Iterable[dict[str, Any]], *, height: int = 360, **layout: Any) -> Plot:
    """A figure in plotly's JSON; colours of text and lines come from the page's theme.

    As plain JSON, since plotly's own classes take a second or two to import; the tests check each figure with them.
    """
    common = {
        "height": height,
        "margin": {"l": 60, "r": 16, "t": 24, "b": 48},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hovermode": "closest",
    }
    return Plot(name, says, {"data": list(traces), "layout": {**common, **layout}})


def scatter(**attributes: Any) -> dict[str, Any]:
    """A trace of points and lines."""
    return {"type": "scatter", **attributes}


def bar(**attributes: Any) -> dict[str, Any]:
    """A trace of bars."""
    return {"type": "bar", **attributes}


def markers(state: State, size: int = 9) -> dict[str, Any]:
    """The marker of a state."""
    colour, symbol = LOOKS[state]
    return {"color": colour, "symbol": symbol, "size": size, "line": {"color": colour, "width": 2}}
