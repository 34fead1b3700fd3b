"""What went wrong, where the night went, and what the page rests on."""

from __future__ import annotations

from sweep.report.facts import Facts
from sweep.report.html.markup import Html, Part, el, joined, table
from sweep.report.html.words import counted, duration, flag_word, percent
from sweep.report.terminal import remarks
from sweep.trial import Flags

_MOST_ROWS = 25


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
    parts += _refused(facts)
    parts += _same(facts)
    parts += _times(facts)
    return el("section", *parts, id="wrong")


def _refused(facts: Facts) -> list[Part]:
    """Candidates that cannot work, by what is known of them, and how often that was right."""
    found = facts.report.not_launched
    if not found.refused and not found.checked:
        return []
    say = (
        "Refused before a launch, since they cannot work: by the memory they need, or by a rule that vLLM has or "
        "named. No trial was spent on them."
    )
    rows = [
        (_flags(one.flags), el("span", one.reason, el("br"), el("span", one.rule, class_="quiet")),
         percent(one.confidence, 1), str(one.before))
        for one in found.refused[:_MOST_ROWS]
    ]  # fmt: skip
    head = ("flags", "why", "sure to fail", "before trial")
    parts: list[Part] = [el("h3", "Refused candidates"), el("p", say)]
    parts += [table(head, rows, numbers=False, class_="text")] if rows else []
    parts += _left_out(len(found.refused))
    if found.checked:
        words = {True: "failed as foreseen", False: "worked, so the refusal was wrong", None: "told nothing"}
        parts.append(el("p", "Launched all the same, to check:"))
        parts.append(
            el(
                "ul",
                *(
                    el(
                        "li",
                        "trial ",
                        _number(facts, one.number),
                        f"{words[one.failed]} ({one.rule}: {one.reason})",
                    )
                    for one in found.checked
                ),
            )
        )
    return parts


def _same(facts: Facts) -> list[Part]:
    """Candidates whose measurement is known, by the trial that has it."""
    found = facts.report.not_launched.same
    if not found:
        return []
    say = "Not launched, since only flags differ that made no difference: their measurement is that of another trial."
    rows = [(_flags(one.flags), _number(facts, one.trial), str(one.before)) for one in found[:_MOST_ROWS]]
    head = ("flags", "the same as trial", "before trial")
    return [el("h3", "Known already"), el("p", say), table(head, rows, numbers=False, class_="text"),
            *_left_out(len(found))]  # fmt: skip


def _left_out(count: int) -> list[Part]:
    more = count - _MOST_ROWS
    return [el("p", f"And {more:,} more, in the table passed_over.", class_="quiet")] if more > 0 else []


def _flags(flags: Flags) -> Html:
    return el("code", ", ".join(f"{name} {flag_word(value)}" for name, value in flags.items()))


def _number(facts: Facts, number: int) -> Html:
    """A trial that may not be stored: it was set aside, or has not ended."""
    stored = any(sheet.number == number for sheet in facts.sheets)
    return _numbers((number,)) if stored else el("span", f"{number} ")


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
    if facts.report.gpu_hours:
        total += f", {facts.report.gpu_hours:.1f} GPU hours"
    if times.total_s > 1.05 * times.wall_s:
        total += f", {duration(times.total_s)} of trials, some side by side"
    return [el("h3", "Where the night went"), el("p", total, "."), table(("", "time", "share", ""), rows)]


def about(facts: Facts) -> Html:
    """What limits the numbers, and how to read them."""
    lines = joined(el("li", line) for line in remarks(facts.report, tables=True))
    return el("section", el("h2", "Remarks"), el("ul", lines), id="remarks")
