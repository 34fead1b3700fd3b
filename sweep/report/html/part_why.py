"""Why: what each flag did, what pulled against what, how the search went."""

from __future__ import annotations

import math

from sweep.equivalence import Findings, InertFlag
from sweep.report.facts import Facts
from sweep.report.html.figures_flags import flag_plot
from sweep.report.html.figures_why import cloud_plot, history_plot, importance_plot, parallel_plot
from sweep.report.html.markup import Html, Part, el, table
from sweep.report.html.plots import MEANT, RECOMMENDED, Plot
from sweep.report.html.words import change, counted, percent
from sweep.trial import TrialKind


def why(facts: Facts) -> tuple[Html, list[Plot]]:
    """The section with everything that explains the verdict."""
    parts: list[Part] = [el("h2", "Why")]
    plots: list[Plot] = []
    for made in (_flags, _inert, _importance, _clouds, _parallel, _history):
        more, drawn = made(facts)
        parts += more
        plots += drawn
    return el("section", *parts, id="why"), plots


def _flags(facts: Facts) -> tuple[list[Part], list[Plot]]:
    title = el("h3", "Score by flag")
    if not facts.flags:
        return [title, el("p", "No flag has two values among the trials yet.")], []
    plots = [flag_plot(place, flag, _chosen(facts), _ring(facts)) for place, flag in enumerate(facts.flags)]
    how = (
        "Every trial of the search by one flag; the others vary, too. The bars are means with 95 % intervals, from "
        "three trials on; shaded: every trial failed because of its flags. Touch a mark to see its trial."
    )
    return [title, el("p", how, class_="quiet"), el("div", *(one.place for one in plots), class_="grid")], plots


def _chosen(facts: Facts) -> int | None:
    """The trial whose flags are recommended, where these are not today's."""
    winner = facts.report.winner
    return None if winner is None or winner.kind is TrialKind.BASELINE else winner.number


def _ring(facts: Facts) -> str:
    return RECOMMENDED if _chosen(facts) == facts.report.recommendation.number else MEANT


def _inert(facts: Facts) -> tuple[list[Part], list[Plot]]:
    title, equal = el("h3", "Flags that made no difference"), facts.report.equal
    if not equal.flags:
        say = "Of none that is proved: the load reached every limit, or the engine told too little."
        return ([title, el("p", say)] if facts.flags else []), []
    how = (
        "Proved by the engine's own counters: a limit that the load never reached changes nothing. Such flags were not "
        "searched further, and candidates that differ in nothing else were not launched."
    )
    rows = [
        (
            el("code", one.name),
            _from_where(one),
            one.why,
            "–" if one.trial is None else el("a", str(one.trial), href=f"#trial-{one.trial}"),
        )
        for one in equal.flags
    ]
    parts: list[Part] = [title, el("p", how, class_="quiet")]
    parts.append(table(("flag", "no difference", "evidence", "trial"), rows, numbers=False, class_="text"))
    return [*parts, *_checks(equal)], []


def _from_where(one: InertFlag) -> str:
    if not one.inert:
        return "withdrawn: it may matter"
    return "at any value tried" if one.above is None else f"from {one.above} on"


def _checks(equal: Findings) -> list[Part]:
    """What repeats said that were launched although they were proved to be the same."""
    said = [
        f"trial {one.number} as trial {one.first}: "
        + ("it did not start" if one.log_ratio is None else f"score {change(math.exp(one.log_ratio))}")
        for one in equal.checks
    ]
    if not said:
        return []
    rule = "A flag is withdrawn where they differ by more than launches of the same flags do."
    return [el("p", f"Measured all the same, to check: {'; '.join(said)}. {rule}")]


def _importance(facts: Facts) -> tuple[list[Part], list[Plot]]:
    title, found = el("h3", "Which flags mattered"), facts.importance
    if found.trials < found.needed:
        say = (
            f"Not shown: it needs {found.needed} trials that were measured to their end, undisturbed, and there "
            f"{'is' if found.trials == 1 else 'are'} {found.trials}. From fewer it would be a guess."
        )
        return [title, el("p", say)], []
    if not found.flags:
        return [title, el("p", "No flag has two values among the measured trials.")], []
    drawn = importance_plot(found)
    noise = [one.name for one in found.flags if not one.beyond_chance]
    how = (
        f"How differently a flag's values are spread among the best quarter of {counted(found.trials, 'trial')} and "
        "among all of them (PED-ANOVA), as shares of 1. It knows only the values that were tried."
    )
    told = f"No more than chance gives: {', '.join(noise)}." if noise else "All are beyond what chance gives."
    rows = [
        (
            el("code", one.name),
            percent(one.share),
            f"{percent(one.low)} to {percent(one.high)}",
            percent(one.chance),
        )
        for one in found.flags
    ]
    head = ("flag", "share", "nine of ten halves of the trials", "chance stays below")
    return [title, el("p", how, class_="quiet"), drawn.place, el("p", told), table(head, rows)], [drawn]


def _clouds(facts: Facts) -> tuple[list[Part], list[Plot]]:
    title = el("h3", "What pulls apart")
    if not facts.clouds:
        return [title, el("p", "No trial was measured yet.")], []
    plots = [cloud_plot(place, cloud, _chosen(facts), _ring(facts)) for place, cloud in enumerate(facts.clouds)]
    how = (
        "Trials by two metrics, one measurement each. On the front no trial is better in both; only those that keep "
        "every SLO and were not disturbed can be on it."
    )
    return [title, el("p", how, class_="quiet"), el("div", *(one.place for one in plots), class_="grid")], plots


def _parallel(facts: Facts) -> tuple[list[Part], list[Plot]]:
    if facts.parallel is None:
        return [], []
    drawn = parallel_plot(facts.parallel)
    how = "Each line is a trial, from its flags on the left to its score on the right."
    return [el("h3", "All trials at once"), el("p", how, class_="quiet"), el("div", drawn.place, class_="wide")], [
        drawn
    ]


def _history(facts: Facts) -> tuple[list[Part], list[Plot]]:
    title = el("h3", "How the search went")
    if not facts.history:
        return [title, el("p", "No trial is stored yet.")], []
    drawn = history_plot(facts.history)
    how = (
        "Trials in their order. Today's flags are the dashed line; where they were measured again, the distance of the "
        "star from the line is what the machine drifted."
    )
    return [title, el("p", how, class_="quiet"), drawn.place], [drawn]
