"""Measured values as text, with their intervals and a mark where too few requests stand behind them."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sweep.measured import Measured
from sweep.metric_table import parse_metric
from sweep.verdict import Interval

FEW = "~"
FEW_NOTE = f"{FEW} too few requests: fewer than 10 / (1 - p)"
LEGEND = f"(low-high): 95 % interval over the requests of that server; {FEW_NOTE}"
# From so many columns on a table takes names of flags in one line.
_ROOMY = 120
_HEADER = 13  # of a metric's column elsewhere


def number_text(value: float | None) -> str:
    """A metric's value with as many digits as say something."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def figure_text(value: float | None, interval: Interval | None = None, *, thin: bool = False) -> str:
    """`374 (351-412)`, with the mark of few requests before it; `-` for nothing."""
    if value is None:
        return "-"
    text = f"{FEW if thin else ''}{_short(value)}"
    return text if interval is None else f"{text} ({_short(interval.low)}-{_short(interval.high)})"


def measured_text(found: Measured | None, name: str) -> str:
    """A metric of a trial as `figure_text`; nothing where the trial was not measured."""
    if found is None:
        return ""
    return figure_text(found.metrics.get(name), found.intervals.get(name), thin=name in found.thin)


def marked(name: str, thin: bool) -> str:
    """A metric's name with the mark of few requests."""
    return f"{FEW}{name}" if thin else name


def flag_header(name: str, width: int) -> str:
    """A flag's name as the head of a column, broken at its hyphens where the console is narrow."""
    return name if width >= _ROOMY else name.replace("-", "-\n")


def metric_header(name: str, width: int) -> str:
    """The same for a metric's name, broken where its words end and before its rate."""
    if width >= _ROOMY:
        return name
    metric, lines = parse_metric(name), [""]
    for word in metric.base.split("_"):
        if lines[-1] and len(lines[-1]) + len(word) >= _HEADER:
            lines.append("")
        lines[-1] += f"{word}_"
    lines[-1] = lines[-1].removesuffix("_")
    return "\n".join([*lines, f"@{metric.at}"] if metric.at is not None else lines)


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table of texts, numbers to the right, the last column as wide as it likes."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for title in head[:-1]:
        table.add_column(title, justify="right")
    table.add_column(head[-1], overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def fits(console: Console, table: Table) -> bool:
    """Whether a table needs no more columns than the console has."""
    return console.measure(table, options=console.options.update(width=10_000)).maximum <= console.width


def _short(value: float) -> str:
    """Three digits, or four before the point: 0.98, 37.1, 600, 1544, 12.3k."""
    size = abs(value)
    if size >= 9_999.5:
        return f"{value / 1000:.0f}k" if size >= 99_950 else f"{value / 1000:.1f}k"
    return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
