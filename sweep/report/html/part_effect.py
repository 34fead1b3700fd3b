"""What was confirmed, and what the recommended flags cost."""

from __future__ import annotations

from sweep.recommend import Verdict
from sweep.report.facts import Facts
from sweep.report.facts.costs import Costs, MetricChange
from sweep.report.html.figures_effect import confirmation_plot, costs_plot
from sweep.report.html.markup import Html, el, table
from sweep.report.html.plots import Plot
from sweep.report.html.words import change, metric_words, number, percent
from sweep.report.terminal import confirmation_rows, in_place_lines
from sweep.verdict import Interval


def confirmation(facts: Facts) -> tuple[Html, list[Plot]]:
    """The section on what was launched again; it says so where nothing was."""
    title, confirmed = el("h2", "Confirmation"), facts.report.confirmed
    if confirmed is None or not facts.confirmation:
        say = (
            "Nothing was launched again, so nothing here is confirmed: the best of many single measurements looks "
            "better than it is. Let the study go on to its end, or ask for more trials, before you believe it."
        )
        if facts.report.recommendation.verdict is Verdict.KEEP:
            say = (
                "Nothing was launched again: no trial measured better than today's flags, so there was nothing to "
                "confirm. How far apart two launches of the same flags lie, this study does not know."
            )
        return el("section", title, el("p", say), id="confirmation"), []
    verdict = confirmed.verdict
    drawn = confirmation_plot(facts.confirmation, verdict.level)
    lines = [
        el("p", verdict.sentence) if not facts.report.recommendation.confirmed else None,
        el(
            "p",
            "Each configuration was launched again on fresh servers, with prompts that the search never sent, taking "
            "turns with today's flags. Where an interval lies left of the dashed line the flags are better. What the "
            "search had believed stands beside it: the difference is luck.",
            class_="quiet",
        ),
        drawn.place,
        table(*confirmation_rows(verdict)),
        *(el("p", f"{line}.") for line in in_place_lines(facts.report)),
    ]
    if verdict.unusable:
        lines.append(el("p", f"{verdict.unusable} launches lack a metric of the objective and do not count."))
    return el("section", title, *lines, id="confirmation"), [drawn]


def costs(facts: Facts) -> tuple[Html, list[Plot]]:
    """The section on every metric, today's flags beside the recommended ones."""
    title, found = el("h2", "What it costs"), facts.costs
    if found is None or not found.changes:
        say = (
            "There are no other flags to compare with today's." if facts.report.baseline else "Nothing to compare yet."
        )
        return el("section", title, el("p", say), id="costs"), []
    drawn = costs_plot(found)
    return el(
        "section",
        title,
        _not_recommended(facts, found),
        el("p", _how(found), class_="quiet"),
        drawn.place,
        table(_head(found), [_row(one, found) for one in found.changes]),
        id="costs",
    ), [drawn]


def _not_recommended(facts: Facts, found: Costs) -> Html | None:
    recommendation = facts.report.recommendation
    if recommendation.number == found.of:
        return None
    if recommendation.verdict is Verdict.BETTER:
        return el("p", f"Of trial {found.of}, before gpu-memory-utilization was lowered to what is recommended.")
    return el("p", f"Trial {found.of} was the best candidate; its flags are not recommended.")


def _how(found: Costs) -> str:
    if found.confirmed:
        return (
            f"Today's flags against those of trial {found.of}, by the launches of the confirmation, with "
            f"{percent(found.level)} intervals from server to server. Less is better for latencies, more for rates."
        )
    return (
        f"Today's flags against those of trial {found.of}, by one launch each. Intervals say how well these requests "
        "know their percentile, not how much another server would differ: the changes themselves have none."
    )


def _head(found: Costs) -> list[str]:
    return ["metric", "today", f"trial {found.of}", "change", f"{percent(found.level)} interval of the change", "SLO"]


def _row(one: MetricChange, found: Costs) -> list[Html | str]:
    ratio = one.ratio_interval
    interval = "–" if ratio is None else f"{change(ratio.low)} to {change(ratio.high)}"
    mark = {True: "better", False: "worse", None: ""}[one.better]
    unsure = el("span", " may be chance", class_="quiet") if found.confirmed and one.better is None else None
    slo = "" if one.limit is None else f"{number(one.limit)}: {'kept' if one.keeps else 'BROKEN'}"
    name = metric_words(one.name) + (f", {one.unit}" if one.unit == "ms" else "")
    return [
        _name(name, thin=one.thin),
        _value(one.baseline, one.baseline_interval),
        _value(one.winner, one.winner_interval),
        el("span", f"{change(one.ratio)} {mark}".rstrip(), unsure, class_=mark or None),
        interval if found.confirmed else "–",
        el("span", slo, class_=None if one.keeps is not False else "worse"),
    ]


def _name(name: str, *, thin: bool) -> Html:
    """A metric's name, marked where too few requests stand behind it."""
    return el("span", name, el("span", " (few requests)", class_="quiet") if thin else None)


def _value(value: float, interval: Interval | None) -> Html:
    limits = "" if interval is None else f" ({number(interval.low)} to {number(interval.high)})"
    return el("span", number(value), el("span", limits, class_="quiet"))
