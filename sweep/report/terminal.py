"""A report for a terminal or a pipe: the table of trials, the front, the verdict last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sweep.console import LEGEND, fits, flag_header, measured_text, metric_header, plain_table, print_front
from sweep.recommend import changed_flags
from sweep.report.values import RankedTrial, Report, ThinMetric
from sweep.trial import TrialKind, TrialStatus
from sweep.verdict import Verdict, gain

# A figure with its interval beneath, and the number of the trial before.
_METRIC_COLUMNS, _NUMBER_COLUMNS = 14, 6
CONFIRMATION = "Launched again, on fresh servers with prompts the search never sent"


def print_report(console: Console, report: Report) -> None:
    """All of it, the most important last."""
    if report.trials:
        for table in _tables(console, report):
            console.print(table)
        if report.metric_names:
            console.print(Text(LEGEND), soft_wrap=True)
    if report.front is not None:
        print_front(console, report.front, report.measured)
    if report.confirmed is not None:
        console.print(Text(CONFIRMATION, style="bold"))
        console.print(plain_table(*confirmation_rows(report.confirmed.verdict)))
    for line in remarks(report):
        console.print(Text(line), soft_wrap=True)
    for line in verdict_lines(report):
        console.print(Text(line, style="bold"), soft_wrap=True)
    if report.command is not None:
        console.print(Text(report.command), soft_wrap=True)


def remarks(report: Report, *, tables: bool = False) -> list[str]:
    """What limits the numbers, one line each, and what they were ranked by.

    `tables`: failures, refusals, flags that made no difference and what was launched in place of a trial are shown
    otherwise, and are left out.
    """
    lines = list(report.notes)
    if not tables:
        lines += _found(report) + in_place_lines(report)
    for first, members in report.equal.stands_for.items():
        lines.append(f"Trial {first} is the same to the engine as {', '.join(map(str, members))}")
    lines += [_thin_text(thin, sum(trial.completed is not None for trial in report.trials)) for thin in report.thin]
    lines += [f"Everything measured: {report.folder}", f"Ranked by {report.objective.describe()}"]
    if report.own_winner is not None:
        lines.append(f"By the study's own objective: {report.own_winner.sentence}")
    if report.confirmed is not None:
        lines.append(
            f"By the search alone: {report.search_winner.sentence}"
            if report.recommendation.confirmed
            else f"Of those that were launched again: {report.confirmed.verdict.sentence}"
        )
    lines.append(progress_text(report))
    return lines


def _found(report: Report) -> list[str]:
    lines = []
    counts = Counter(trial.failure for trial in report.trials if trial.failure is not None)
    for failure, count in counts.most_common():
        cause = " - ".join(part for part in (failure.failure_class, failure.line, failure.advice) if part)
        lines.append(f"{count} failed: {cause}")
    return [*lines, *report.gate.lines(), *report.equal.sentences]


def in_place_lines(report: Report) -> list[str]:
    """Which configurations were launched in place of a trial of the search, and in what they differ from it."""
    lines = []
    for key, number in ({} if report.confirmed is None else report.confirmed.in_place_of).items():
        assert report.confirmed is not None
        pairs = changed_flags(report.confirmed.flags[key], report.known[number].flags)
        words = ", ".join(f"{name} {flag_text(new)} instead of {flag_text(old)}" for name, (old, new) in pairs.items())
        lines.append(
            f"Trial {key} was launched in place of trial {number}: {words}, the same to the engine and nearer to "
            "today's flags"
        )
    return lines


def _thin_text(thin: ThinMetric, measured: int) -> str:
    numbers = ", ".join(map(str, thin.trials))
    trials = "all trials" if len(thin.trials) == measured else f"trial {numbers}"
    return (
        f"{thin.metric} rests on too few requests: {thin.completed:,} completed, {thin.needed:,} are needed ({trials})"
    )


def verdict_lines(report: Report) -> list[str]:
    """The flags that change, and the verdict."""
    lines = []
    flags, baseline = report.recommendation.flags, report.baseline
    if flags is not None and baseline is not None and (changed := changed_flags(flags, baseline.flags)):
        words = (f"{name} {flag_text(old)} -> {flag_text(new)}" for name, (old, new) in changed.items())
        lines.append(f"Changed: {', '.join(words)}")
    return [*lines, report.recommendation.sentence]


def progress_text(report: Report) -> str:
    """How much of the study there is."""
    stored = len(report.trials)
    count = f"{stored} trials are" if report.asked is None else f"{stored} of {report.asked} trials are"
    if report.running is not None:
        return f"{count} stored so far; the study is running on {report.running}, so this may change"
    return f"{count} stored" + ("; the study ended before the others" if stored < (report.asked or 0) else "")


def flag_text(value: object) -> str:
    """A flag's value; null is left to vLLM."""
    return "(vLLM's default)" if value is None else str(value)


def flag_names(trials: Sequence[RankedTrial]) -> list[str]:
    """Every flag of the trials, in the order of the first that has it."""
    return list(dict.fromkeys(name for trial in sorted(trials, key=lambda t: t.number) for name in trial.flags))


def place_text(trial: RankedTrial) -> str:
    """The place, or nothing."""
    return "" if trial.place is None else str(trial.place)


def score_text(trial: RankedTrial) -> str:
    """The score, or nothing."""
    return "" if trial.score is None or trial.score.value is None else f"{trial.score.value:.3f}"


def status_text(report: Report, trial: RankedTrial) -> str:
    """How a trial ended, why it has no place, which SLOs it breaks, and whether its lead is confirmed."""
    parts = [] if report.stood_in is None else [report.stood_in]
    parts += ["baseline"] if trial.kind is TrialKind.BASELINE else []
    if trial.why_no_place is not None:
        parts.append(trial.why_no_place)
    elif trial.status is TrialStatus.COMPLETE and (broken := trial.broken_slos):
        parts.append(f"breaks the SLO on {', '.join(broken)}")
    if trial is report.winner and trial.kind is not TrialKind.BASELINE:
        parts.append("best, confirmed" if report.recommendation.confirmed else "best, unconfirmed")
        if trial.number != report.recommendation.number:
            parts[-1] += f" as trial {report.recommendation.number}"
    return "; ".join(parts)


def _tables(console: Console, report: Report) -> list[Table]:
    """One table of the trials; where it does not fit, what was tried, then what was measured, a few metrics each."""
    whole = _table(report, report.metric_names, console.width)
    if fits(console, whole):
        return [whole]
    each = max(1, (console.width - _NUMBER_COLUMNS) // _METRIC_COLUMNS)
    names = report.metric_names
    parts = [_figures(report, names[at : at + each], console.width) for at in range(0, len(names), each)]
    return [_table(report, (), console.width), *parts]


def _table(report: Report, metrics: Sequence[str], width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    names = flag_names(report.trials)
    flag_titles = (flag_header(name, width) for name in names)
    for title in ("place", "trial", *flag_titles, *(metric_header(name, width) for name in metrics), "score"):
        table.add_column(title, justify="right")
    table.add_column("", overflow="fold")
    for trial in report.trials:
        flags = ["-" if (value := trial.flags.get(name)) is None else str(value) for name in names]
        figures = [measured_text(report.measured.get(trial.number), name) for name in metrics]
        cells = [place_text(trial), str(trial.number), *flags, *figures, score_text(trial), status_text(report, trial)]
        table.add_row(*(Text(cell) for cell in cells), style=_style(report, trial))
    return table


def _figures(report: Report, metrics: Sequence[str], width: int) -> Table:
    """Some metrics of the trials that have any."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold")
    for title in ("trial", *(metric_header(name, width) for name in metrics)):
        table.add_column(title, justify="right")
    for trial in report.trials:
        if (known := report.measured.get(trial.number)) is not None:
            figures = (measured_text(known, name) for name in metrics)
            table.add_row(str(trial.number), *(Text(cell) for cell in figures), style=_style(report, trial))
    return table


def _style(report: Report, trial: RankedTrial) -> str:
    return "bold" if trial is report.winner else "dim" if trial.place is None else ""


def confirmation_rows(verdict: Verdict) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table of what was launched again: the score of the search beside the confirmed one."""
    search = {one.key: one for one in verdict.shrinkage}
    rows = [
        [
            str(effect.key),
            f"{search[effect.key].search_score:.3f}" if effect.key in search else "",
            f"{effect.score.value:.3f}",
            f"{effect.score.low:.3f} to {effect.score.high:.3f}",
            f"{search[effect.key].luck:+.3f}" if effect.key in search else "",
            str(effect.launches),
            gain(effect.score, verdict.level),
        ]
        for effect in verdict.effects
    ]
    interval = f"{100 * verdict.level:g} % interval"
    return ["trial", "score of the search", "confirmed score", interval, "luck", "launches", "than the baseline"], rows
