"""A Pareto front in words."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from sweep.console.figures import figure_text, plain_table
from sweep.console.words import flags_text
from sweep.front import Front
from sweep.measured import Measured


def print_front(console: Console, front: Front, measured: Mapping[int, Measured] | None = None) -> None:
    """What it is of, its trials, and which stand outside. `measured`: what is known of the trials, by number."""
    console.print(Text(front_title(front), style="bold"))
    if front.points:
        console.print(plain_table(*front_rows(front, measured)))
    for line in front_notes(front):
        console.print(Text(line), soft_wrap=True)


def front_title(front: Front) -> str:
    """What the front is of; an empty one is said."""
    metrics = " and ".join(front.metrics) if len(front.metrics) == 2 else ", ".join(front.metrics)
    if not front.points:
        return f"Front of {metrics}: no trial that could be measured keeps every SLO"
    return f"Front of {metrics}: {len(front.points)} of {len(front.points) + len(front.dominated)} trials (unconfirmed)"


def front_rows(front: Front, measured: Mapping[int, Measured] | None = None) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table of the front."""
    rows = []
    for point in front.points:
        known = (measured or {}).get(point.number)
        cells = [
            figure_text(value)
            if known is None
            else figure_text(value, known.intervals.get(name), thin=name in known.thin)
            for name, value in zip(front.metrics, point.values, strict=True)
        ]
        rows.append([str(point.number), *cells, flags_text(point.flags)])
    return ["trial", *front.metrics, "flags"], rows


def front_notes(front: Front) -> list[str]:
    """The trials that stand outside, by reason."""
    by_reason: dict[str, list[str]] = {}
    for number, why in front.left_out.items():
        by_reason.setdefault(why, []).append(str(number))
    return [f"not in it: trial {', '.join(numbers)} ({why})" for why, numbers in by_reason.items()]
