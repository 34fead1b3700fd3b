"""Regret against server minutes as an SVG: one panel a landscape, one line a method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 420, 240, 52, 34, 40, 24
LEGEND = 26
# Okabe and Ito's colours, which people who see few colours can tell apart, and greys; ours is drawn thicker.
COLOURS = (
    *("#000000", "#888888", "#bbbbbb", "#555555", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9"),
    *("#f0e442", "#8b4513"),
)
LEAST, MOST = 0.01, 10.0

Curve = Sequence[tuple[float, float]]


def svg(panels: Mapping[str, Mapping[str, Curve]]) -> str:
    """`panels`: title to name to (minutes, regret as a share). The regret is on a log axis from 1 % to 1000 %."""
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    colour = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}
    height = TOP + HEIGHT + BOTTOM + LEGEND
    width = max(len(panels) * (LEFT + WIDTH + GAP), LEFT + sum(map(_legend_width, names)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for place, (title, panel) in enumerate(panels.items()):
        parts += _panel(title, panel, colour, place * (LEFT + WIDTH + GAP) + LEFT)
    at = LEFT
    for name in names:
        y = height - 10
        parts.append(f'<path d="M{at} {y - 4}h18" stroke="{colour[name]}" stroke-width="3"/>')
        parts.append(f'<text x="{at + 22}" y="{y}">{escape(name)}</text>')
        at += _legend_width(name)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend_width(name: str) -> int:
    return 34 + 7 * len(name)


def _panel(title: str, panel: Mapping[str, Curve], colour: Mapping[str, str], left: float) -> list[str]:
    longest = max((curve[-1][0] for curve in panel.values()), default=1.0)

    def x(minutes: float) -> float:
        return left + WIDTH * minutes / longest

    def y(regret: float) -> float:
        inside = min(max(regret, LEAST), MOST)
        return TOP + HEIGHT * (1 - math.log(inside / LEAST) / math.log(MOST / LEAST))

    parts = [
        f'<text x="{left}" y="{TOP - 14}" font-weight="bold">{escape(title)} (replayed)</text>',
        f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999999"/>',
        f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 30}" text-anchor="middle">server minutes</text>',
    ]
    for share in (0.01, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0):
        dash = ' stroke-dasharray="4 3"' if share == 0.05 else ""
        shade = "#555555" if share == 0.05 else "#e2e2e2"
        parts.append(f'<path d="M{left} {y(share):.1f}h{WIDTH}" stroke="{shade}"{dash}/>')
        parts.append(f'<text x="{left - 5}" y="{y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    step = _step(longest)
    for count in range(int(longest / step) + 1):
        at = x(count * step)
        parts.append(f'<text x="{at:.1f}" y="{TOP + HEIGHT + 15}" text-anchor="middle">{count * step:g}</text>')
    for name, curve in reversed(list(panel.items())):
        points = " ".join(f"{x(minutes):.1f},{y(regret):.1f}" for minutes, regret in curve)
        wide = 3 if name == "ours" else 1.4
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour[name]}" stroke-width="{wide}"/>')
    return parts


def _step(longest: float) -> float:
    """A round distance that makes about five marks."""
    rough = longest / 5
    power = 10 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return next(power * nice for nice in (1, 2, 5, 10) if power * nice >= rough)
