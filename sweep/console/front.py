"""A Pareto front in words."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sweep.console.words import flags_text
from sweep.front import Front


def print_front(console: Console, front: Front) -> None:
    """What it is of, its trials, and which stand outside."""
    console.print(Text(front_title(front), style="bold"))
    if front.points:
        console.print(plain_table(*front_rows(front)))
    for line in front_notes(front):
        console.print(Text(line), soft_wrap=True)


def front_title(front: Front) -> str:
    """What the front is of; an empty one is said."""
    metrics = " and ".join(front.metrics) if len(front.metrics) == 2 else ", ".join(front.metrics)
    if not front.points:
        return f"Front of {metrics}: no trial that could be measured keeps every SLO"
    return f"Front of {metrics}: {len(front.points)} of {len(front.points) + len(front.dominated)} trials (unconfirmed)"


def front_rows(front: Front) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table of the front."""
    rows = [
        [str(point.number), *(number_text(value) for value in point.values), flags_text(point.flags)]
        for point in front.points
    ]
    return ["trial", *front.metrics, "flags"], rows


def front_notes(front: Front) -> list[str]:
    """The trials that stand outside, by reason."""
    by_reason: dict[str, list[str]] = {}
    for number, why in front.left_out.items():
        by_reason.setdefault(why, []).append(str(number))
    return [f"not in it: trial {', '.join(numbers)} ({why})" for why, numbers in by_reason.items()]


def number_text(value: float | None) -> str:
    """A metric's value with as many digits as say something."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table of texts, numbers to the right, the last column as wide as it likes."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for title in head[:-1]:
        table.add_column(title, justify="right")
    table.add_column(head[-1], overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
