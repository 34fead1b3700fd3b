"""The trials of a study as two tables: what was tried and how it ended, and the latencies that were measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from sweep.console.figures import figure_text, flag_header
from sweep.measured import Measured
from sweep.metric_table import LATENCIES, parse_metric
from sweep.store import StoredTrial
from sweep.trial import TrialKind, TrialStatus

_PERCENTILE = re.compile(r"p[\d.]+_")
_SHOWN = 2  # percentiles of each latency, the highest


def trials_table(trials: Sequence[StoredTrial], best: int | None, width: int, lead: str = "") -> Table:
    """All trials: flags, score, and how each ended. `lead`: what is said of the `best` one, such as "unconfirmed"."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", title=stood_in_title(trials))
    table.add_column("trial", justify="right")
    names = list(dict.fromkeys(name for trial in trials for name in trial.flags))
    for name in names:
        table.add_column(flag_header(name, width), justify="right")
    table.add_column("score", justify="right")
    table.add_column("status", overflow="fold")
    for trial in trials:
        flags = ["-" if (v := trial.flags.get(name)) is None else str(v) for name in names]
        score = "" if trial.score is None else f"{trial.score:.3f}"
        style = _style(trial, best)
        status = "; ".join(filter(None, (_status(trial), lead if trial.number == best else "")))
        table.add_row(_number(trial, best), *flags, score, Text(status), style=style)
    return table


def stood_in_title(trials: Iterable[StoredTrial]) -> str | None:
    """What to put above any table of trials that no server ran; None for measured ones."""
    words = dict.fromkeys(trial.stood_in for trial in trials if trial.stood_in is not None)
    return f"{' and '.join(words).capitalize()}, not measured" if words else None


def shown_metrics(trials: Iterable[StoredTrial]) -> tuple[str, ...]:
    """The metrics that `latencies_table` shows of these trials: the highest percentiles stored of each latency, where
    the load has several request rates those at each rate."""
    names = dict.fromkeys(name for trial in trials for name in trial.metrics or {} if _PERCENTILE.match(name))
    metrics = [parse_metric(name) for name in names]
    rates: list[str | None] = list(dict.fromkeys(metric.at for metric in metrics if metric.at is not None))
    highest = sorted({metric.percentile or 0.0 for metric in metrics})[-_SHOWN:]
    by_place = {(metric.stem, metric.percentile, metric.at): metric.name for metric in metrics}
    wanted = ((stem, percentile, at) for at in rates or [None] for percentile in highest for stem in LATENCIES)
    return tuple(by_place[place] for place in wanted if place in by_place)


def latencies_table(trials: Sequence[StoredTrial], best: int | None, measured: Mapping[int, Measured]) -> Table | None:
    """The highest percentiles of each latency in ms, a row a percentile; None where nothing was measured."""
    names = shown_metrics(trials)
    rows: dict[str, dict[str, str]] = {}
    for name in names:
        metric = parse_metric(name)
        at = "" if metric.at is None else f"@{metric.at}"
        rows.setdefault(f"p{metric.percentile:g}{at}", {})[metric.stem] = name
    shown = [one for one in trials if one.metrics is not None and one.kind is not TrialKind.CALIBRATION]
    if not (names and shown):
        return None
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold", title=stood_in_title(trials)
    )
    for head in ("trial", "", *(f"{stem.upper()} ms" for stem in LATENCIES)):
        table.add_column(head, justify="right")
    for trial in shown:
        for place, (percentile, of_row) in enumerate(rows.items()):
            cells = (_figure(trial, measured.get(trial.number), of_row.get(stem)) for stem in LATENCIES)
            first = "" if place else _number(trial, best)
            table.add_row(first, percentile, *(Text(cell) for cell in cells), style=_style(trial, best))
    return table


def _figure(trial: StoredTrial, known: Measured | None, name: str | None) -> str:
    if name is None:
        return ""
    percentile = parse_metric(name).percentile
    value = (trial.metrics or {}).get(name)
    thin = f"p{percentile:g}" in trial.thin_percentiles if known is None else name in known.thin
    return figure_text(value, None if known is None else known.intervals.get(name), thin=thin)


def _number(trial: StoredTrial, best: int | None) -> str:
    return f"{trial.number} *" if trial.number == best else str(trial.number)


def _style(trial: StoredTrial, best: int | None) -> str:
    return "bold" if trial.number == best else "dim" if trial.status is not TrialStatus.COMPLETE else ""


def _status(trial: StoredTrial) -> str:
    what = "" if trial.kind is TrialKind.SEARCH else f"{trial.kind}, "
    if trial.block is not None:
        what = f"{trial.kind}, block {trial.block}, "
    parts = [f"{what}{trial.status}" if trial.stood_in is None else f"{trial.stood_in}: {what}{trial.status}"]
    if trial.stopped_because is not None:
        parts.append(trial.stopped_because)
    if trial.failure is not None:
        parts.append(f"{trial.failure.failure_class} in {trial.failure.phase}")
    parts += [f"disturbed: {text}" for text in trial.disturbances]
    broken = [name for name, excess in trial.violations.items() if excess > 0]
    if broken:
        parts.append(f"SLO broken: {', '.join(broken)}")
    return "; ".join(parts)
