"""The minute at the top of the page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sweep.metric_table import parse_metric
from sweep.report.facts import Facts
from sweep.report.facts.brief import Brief
from sweep.report.facts.costs import MetricChange
from sweep.report.html.markup import Html, Part, el, joined
from sweep.report.html.words import change, counted, duration, metric_words
from sweep.report.html.words import number as figure

_MOST_CHANGES = 4


def in_short(facts: Facts) -> Html | None:
    """What one must know without reading on: how much, at what price, what went wrong, out of what."""
    brief, report = facts.brief, facts.report
    if not facts.sheets:
        return None
    items: list[tuple[str, Part]] = []
    if brief.asked:
        items.append(("You asked for", _changes(brief.asked)))
    if brief.worse:
        items.append(("It costs", _changes(_one_a_kind(brief.worse))))
    if brief.perhaps_worse:
        items.append(("It may cost", _changes(_one_a_kind(brief.perhaps_worse), unsure=facts.settled)))
    elif brief.asked and not brief.worse:
        items.append(("It costs", "nothing that was measured"))
    if brief.closest is not None:
        number, score = brief.closest
        link = el("a", f"trial {number}", href=f"#trial-{number}")
        items.append(("Closest to them", joined((link, f", score {score:.3f} (today's flags: 1)"))))
    items.append(("Went wrong", _went_wrong(facts)))
    items.append(("Made of", _made_of(brief)))
    if report.own_winner is not None:
        items.append(("Asked otherwise", f"by the study's own objective: {report.own_winner.sentence}"))
    return el("dl", *(joined((el("dt", name), el("dd", value))) for name, value in items), class_="short")


def _changes(changes: Sequence[MetricChange], *, unsure: bool = False) -> Html:
    """`p95 TTFT 5,945 → 674 ms (−88.7 %)`, one after another."""
    parts: list[Part] = []
    for one in changes[:_MOST_CHANGES]:
        unit = "" if not one.unit or one.unit != "ms" else f" {one.unit}"
        broken = el("b", ", its SLO is broken") if one.keeps is False else None
        values = f"{figure(one.baseline)} → {figure(one.winner)}{unit} ({change(one.ratio)}"
        parts += [joined((metric_words(one.name), " ", el("b", values, ")"), broken)), "; "]
    left_out = len(changes) - _MOST_CHANGES
    more = f"; {left_out} more" if left_out > 0 else ""
    return el("span", *parts[:-1], more, " – their intervals include no change" if unsure else None)


def _one_a_kind(changes: Sequence[MetricChange]) -> list[MetricChange]:
    """Of each latency and rate the change that is worst, broken SLOs before others: the table has all."""
    found: dict[str, MetricChange] = {}
    for one in changes:
        kind = parse_metric(one.name).stem or one.name
        found[kind] = max((found.get(kind, one), one), key=_badness)
    return sorted(found.values(), key=_badness, reverse=True)


def _badness(one: MetricChange) -> tuple[bool, float]:
    ratio = one.ratio if one.lower_is_better or one.ratio <= 0 else 1 / one.ratio
    return one.keeps is False, ratio


def _went_wrong(facts: Facts) -> Html | str:
    brief = facts.brief
    parts = [f"{counted(count, 'trial')} failed: {name}" for name, count in brief.causes]
    if brief.disturbed:
        parts.append(f"{counted(brief.disturbed, 'trial')} disturbed")
    parts += [f"the machine drifted (trial {one.number})" for one in facts.report.drift if one.moved]
    return el("a", "; ".join(parts), href="#wrong") if parts else "nothing"


def _made_of(brief: Brief) -> str:
    parts = [counted(brief.searched, "trial")]
    if brief.others:
        parts.append(f"{counted(brief.others, 'launch', 'launches')} beside the search")
    if brief.refused or brief.same:
        parts.append(f"{counted(brief.refused + brief.same, 'candidate')} not launched")
    text = ", ".join(parts)
    if brief.began_wall_s is None or brief.ended_wall_s is None:
        return text
    return f"{text}; {duration(brief.ended_wall_s - brief.began_wall_s)}, until {_date(brief.ended_wall_s)}"


def _date(wall_s: float) -> str:
    when = datetime.fromtimestamp(wall_s, UTC)
    return f"{when.day} {when:%B %Y, %H:%M} UTC"
