"""What went wrong, where the night went, and what the page rests on."""

from __future__ import annotations

from sweep.report.facts import Facts
from sweep.report.html.markup import Html, Part, el, joined, table
from sweep.report.html.words import counted, duration, percent
from sweep.report.terminal import remarks


def wrong(facts: Facts) -> Html:
    """Failures by cause with what to do, what was disturbed, and the time table."""
    parts: list[Part] = [el("h2", "What went wrong")]
    if facts.troubles:
        rows = [
            (
                el("span", one.failure_class, el("br"), el("span", one.phase, class_="quiet")),
                _numbers(one.trials),
                el("code", one.line) if one.line else "–",
                one.advice,
            )
            for one in facts.troubles
        ]
        failed = sum(len(one.trials) for one in facts.troubles)
        parts += [
            el("p", f"{counted(failed, 'trial')} of {len(facts.sheets)} failed."),
            table(("cause", "trials", "seen in the log", "what to do"), rows, numbers=False, class_="text"),
        ]
    else:
        parts.append(el("p", "No trial failed." if facts.sheets else "Nothing ran yet."))
    if facts.disturbed:
        rows_of = [(_numbers((one.number,)), str(one.kind), "; ".join(one.reasons)) for one in facts.disturbed]
        say = "Disturbed trials: measured while something held the machine back. They cannot win."
        parts += [el("h3", "Disturbed"), el("p", say), table(("trial", "kind", "why"), rows_of, numbers=False)]
    parts += _times(facts)
    return el("section", *parts, id="wrong")


def _numbers(numbers: tuple[int, ...]) -> Html:
    links = [el("a", str(number), href=f"#trial-{number}") for number in numbers]
    return el("span", *(part for link in links for part in (link, " ")))


def _times(facts: Facts) -> list[Part]:
    times = facts.times
    if times is None:
        return []
    rows = [
        (row.what, duration(row.seconds), percent(row.share), el("meter", value=f"{row.share:.3f}", max="1"))
        for row in times.rows
    ]
    total = f"{duration(times.wall_s)} by the clock"
    if times.total_s > 1.05 * times.wall_s:
        total += f", {duration(times.total_s)} of trials, some side by side"
    return [el("h3", "Where the night went"), el("p", total, "."), table(("", "time", "share", ""), rows)]


def about(facts: Facts) -> Html:
    """What limits the numbers, and how to read them."""
    lines = joined(el("li", line) for line in remarks(facts.report))
    return el("section", el("h2", "Remarks"), el("ul", lines), id="remarks")
