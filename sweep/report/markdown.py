"""A report as Markdown, for a pull request or a note."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sweep.console import LEGEND, front_notes, front_rows, front_title, measured_text
from sweep.front import Front
from sweep.measured import Measured
from sweep.report.terminal import (
    CONFIRMATION,
    confirmation_rows,
    flag_names,
    place_text,
    remarks,
    score_text,
    status_text,
    verdict_lines,
)
from sweep.report.values import Report

# What Markdown or HTML would read as its own.
_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<>|#"} | {"\n": " ", "\r": " "})


def as_markdown(report: Report) -> str:
    """The verdict first, then the command, the front, the trials and the remarks."""
    parts = [f"# {escaped(report.study)}", *(escaped(line) for line in reversed(verdict_lines(report)))]
    if report.command is not None:
        parts.append(_code(report.command))
    if report.confirmed is not None:
        parts += [f"## {CONFIRMATION}", _table(*confirmation_rows(report.confirmed.verdict))]
    if report.front is not None:
        parts += _front(report.front, report.measured)
    if report.trials:
        parts += ["## Trials", _trials(report), escaped(LEGEND)]
    parts += ["## Remarks", "\n".join(f"- {escaped(line)}" for line in remarks(report))]
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return text.translate(_SPECIAL)


def _code(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}sh\n{text}\n{fence}"


def _trials(report: Report) -> str:
    names = flag_names(report.trials)
    head = ["place", "trial", *names, *report.metric_names, "score", "remark"]
    rows = [
        [
            place_text(trial),
            str(trial.number),
            *("-" if (value := trial.flags.get(name)) is None else str(value) for name in names),
            *(measured_text(report.measured.get(trial.number), name) for name in report.metric_names),
            score_text(trial),
            status_text(report, trial),
        ]
        for trial in report.trials
    ]
    return _table(head, rows)


def _front(front: Front, measured: Mapping[int, Measured]) -> list[str]:
    parts = [f"## {escaped(front_title(front))}"]
    if front.points:
        parts.append(_table(*front_rows(front, measured)))
    if notes := front_notes(front):
        parts.append("\n".join(f"- {escaped(line)}" for line in notes))
    return parts


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    text = [[cell if place == 1 else escaped(cell) for cell in line] for place, line in enumerate(lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in text)
