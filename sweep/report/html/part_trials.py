"""The table of trials, and for each of them a section that opens."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sweep.console import LEGEND, figure_text
from sweep.report.facts import Facts, Sheet
from sweep.report.facts.curves import SHARES
from sweep.report.facts.timeline import Timeline
from sweep.report.html.markup import Html, Part, el, joined, plain, table
from sweep.report.html.words import counted, duration, flag_word, metric_words, number, short
from sweep.report.terminal import flag_names, place_text, score_text, status_text
from sweep.report.values import RankedTrial
from sweep.trial import TrialKind

_DECIMALS_S = 1


def trials(facts: Facts) -> Html:
    """All trials of the search in a table, then a section for every stored trial."""
    report = facts.report
    parts: list[Part] = [el("h2", "Trials")]
    if not report.trials:
        parts.append(el("p", "No trial of the search is stored yet."))
    else:
        names = flag_names(report.trials)
        head = ["trial", "place", "score", *names, *map(metric_words, report.metric_names), "remark"]
        parts += [table(head, (_row(facts, trial, names) for trial in report.trials), class_="trials")]
        parts.append(el("p", LEGEND, class_="quiet"))
    if facts.sheets:
        how = "Open a trial for its latencies, its load over time, its engine, its command and the end of its log."
        parts += [el("h3", "One by one"), el("p", how, class_="quiet")]
        ranked = {trial.number: trial for trial in report.trials}
        parts += [_sheet(sheet, ranked.get(sheet.number)) for sheet in facts.sheets]
    return el("section", *parts, id="trials")


def trial_data(facts: Facts) -> dict[str, Any]:
    """What the page's script draws when a trial is opened: curves at common shares, tracks at common times."""
    return {
        "shares": list(SHARES),
        "baseline": 0,
        "trials": {str(sheet.number): _data(sheet) for sheet in facts.sheets},
    }


def _row(facts: Facts, trial: RankedTrial, names: list[str]) -> list[Html | str]:
    metrics = facts.report.metric_names
    return [
        el("a", str(trial.number), href=f"#trial-{trial.number}"),
        place_text(trial),
        el("b", score_text(trial)),
        *("–" if (value := trial.flags.get(name)) is None else str(value) for name in names),
        *(_figure(trial, name) if trial.metrics else "" for name in metrics),
        el("span", status_text(facts.report, trial), class_="remark"),
    ]


def _figure(trial: RankedTrial, name: str) -> str:
    return figure_text(trial.metrics.get(name), trial.intervals.get(name), thin=name in trial.thin)


def _sheet(sheet: Sheet, ranked: RankedTrial | None) -> Html:
    title = f"Trial {sheet.number}"
    what = " · ".join(word for word in (_kind(sheet), score_text(ranked) if ranked else "", str(sheet.status)) if word)
    flags = ", ".join(f"{name} {flag_word(value)}" for name, value in sheet.flags.items())
    parts: list[Part] = [
        el("summary", el("b", title), f" {what} ", el("span", flags, class_="quiet")),
        el("p", "Why it failed: ", _failure(ranked)) if ranked is not None and ranked.failure is not None else None,
    ]
    if sheet.curves:
        title = "Latencies: share of requests at most so slow" + ("" if sheet.number == 0 else ", today's flags dotted")
        parts += [el("h4", title), el("div", class_="plot later", data_curves=str(sheet.number))]
    if sheet.timeline is not None:
        parts += [el("h4", "The load over time"), el("div", class_="plot later", data_timeline=str(sheet.number))]
        parts.append(_throttles(sheet.timeline))
    engine = _engine(sheet)
    if engine:
        parts += [el("h4", "What the engine made of it"), el("dl", engine)]
    parts += [el("h4", "Time"), el("p", _times(sheet))]
    parts += [el("p", remark) for remark in (*sheet.remarks, *(f"cannot be read: {note}" for note in sheet.notes))]
    parts += [el("h4", "Command"), el("pre", el("code", sheet.command), tabindex="0")]
    for log in sheet.logs:
        text = ("...\n" if log.cut else "") + "\n".join(log.lines)
        if log.left_out:
            text += f"\n({counted(log.left_out, 'line')} on what was not given back at the end left out)"
        parts += [el("h4", f"The end of {log.path}"), el("pre", text, class_="log", tabindex="0")]
    return el("details", *parts, id=f"trial-{sheet.number}", class_="trial")


def _kind(sheet: Sheet) -> str:
    return "" if sheet.kind is TrialKind.SEARCH else str(sheet.kind)


def _failure(trial: RankedTrial) -> Html:
    assert trial.failure is not None
    failure = trial.failure
    line = el("code", failure.line) if failure.line else None
    return el("span", f"{failure.failure_class} in {failure.phase}. ", line, f" {failure.advice}")


def _throttles(timeline: Timeline) -> Html | None:
    marks = timeline.throttles
    if not marks:
        return None
    left_out = f", and {timeline.throttles_left_out} more changes" if timeline.throttles_left_out else ""
    counts = counted(len(marks), "mark")
    bad = sum(mark.disturbing for mark in marks)
    return el(
        "p",
        f"Clocks held back: {counts}{left_out}, {bad} of them by heat, power or hardware; the first: "
        f"{marks[0].device}, {', '.join(marks[0].reasons)} at {duration(marks[0].at_s)}.",
    )


def _engine(sheet: Sheet) -> Html:
    config = dataclasses.asdict(sheet.engine_config)
    known = {name.replace("_", " "): value for name, value in config.items() if value is not None}
    summary = {name.replace("_", " "): value for name, value in sheet.engine_summary.items() if value is not None}
    items = [
        (name, f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
        for name, value in known.items()
    ]
    items += [(f"{name} under load", number(value)) for name, value in summary.items()]
    return joined(joined((el("dt", name), el("dd", value))) for name, value in items)


def _times(sheet: Sheet) -> str:
    spans = sheet.spans
    parts = (
        ("waiting", spans.waiting_s),
        ("start-up", spans.startup_s),
        ("load", spans.load_s),
        ("warm-up and stop", spans.other_s),
        ("lost", spans.lost_s),
    )
    return ", ".join(f"{name} {duration(seconds)}" for name, seconds in parts if seconds >= 0.5) or "next to none"


def _data(sheet: Sheet) -> Mapping[str, Any]:
    curves = {
        # A logarithmic axis has no zero: chunks that arrive together have no gap between them.
        stem: [short(value) if value > 0 else None for value in curve.values_ms]
        for stem, curve in sheet.curves.items()
    }
    return {"curves": curves, "timeline": None if sheet.timeline is None else _timeline(sheet.timeline)}


def _timeline(timeline: Timeline) -> Mapping[str, Any]:
    return {
        "at": [round(at_s, _DECIMALS_S) for at_s in timeline.at_s],
        "tracks": [
            {
                "name": track.name,
                "unit": track.unit,
                "of": track.of,
                "values": [None if value is None else short(value) for value in track.values],
            }
            for track in timeline.tracks
        ],
        "rounds": [[round(start_s, _DECIMALS_S), round(end_s, _DECIMALS_S)] for start_s, end_s in timeline.rounds],
        "throttles": [
            {
                "at": round(mark.at_s, _DECIMALS_S),
                "text": plain(f"{mark.device}: {', '.join(mark.reasons)}"),
                "bad": mark.disturbing,
            }
            for mark in timeline.throttles
        ],
    }
