"""The top of the page: the verdict, the command, the diff, what it holds for."""

from __future__ import annotations

from sweep.recommend import Verdict
from sweep.report.facts import Facts
from sweep.report.html.markup import Html, el, joined, table
from sweep.report.html.part_short import in_short
from sweep.report.html.words import duration, flag_word
from sweep.report.terminal import progress_text
from sweep.report.values import ChangedFlag
from sweep.trial import Flag


def header(facts: Facts) -> Html:
    """The study, its verdict in one sentence, and how far to trust it."""
    report = facts.report
    return el(
        "header",
        el("p", el("b", report.study), " · sweep report", class_="study"),
        el("h1", report.recommendation.sentence),
        el("p", *(el("span", text, class_=f"badge {kind}") for kind, text in _badges(facts)), class_="badges"),
        in_short(facts),
        el("p", progress_text(report), ".", class_="quiet") if report.running is not None or facts.unfinished else None,
        _now(facts),
    )


def _badges(facts: Facts) -> list[tuple[str, str]]:
    recommendation, stood_in = facts.report.recommendation, facts.report.stood_in
    badges = []
    if stood_in is not None:  # whatever it came to, no server ran
        badges.append(("bad", f"× {stood_in}, not measured: no recommendation for production"))
    elif recommendation.confirmed:
        badges.append(("good", "✓ confirmed on fresh servers"))
    elif recommendation.verdict is Verdict.BETTER:
        badges.append(("warn", "! unconfirmed: one measurement each, mostly luck among many trials"))
    elif recommendation.verdict is Verdict.KEEP:
        badges.append(("warn", "! by the search alone, nothing was launched again"))
    elif recommendation.verdict is not Verdict.NO_CLEAR_WINNER:
        badges.append(("bad", f"× {recommendation.verdict}"))
    if facts.report.running is not None:
        badges.append(("warn", "… still running: this may change"))
    return badges


def _now(facts: Facts) -> Html | None:
    now = facts.now
    if now is None:
        return None
    done = "" if now.total is None else f", {now.done or 0:,} of {now.total:,} requests answered"
    return el("p", f"Now: trial {now.number}, attempt {now.attempt}, {now.phase}{done}.", class_="quiet", id="now")


def use(facts: Facts) -> Html:
    """What to set: the command to copy and what it changes."""
    report = facts.report
    if report.recommendation.flags is None:
        return el("section", el("h2", "What to set"), el("p", _nothing_to_set(facts)), id="use")
    parts: list[Html | None] = [el("h2", "What to set")]
    if report.command is not None:
        parts.append(
            el(
                "div",
                el("pre", el("code", report.command, id="command"), tabindex="0"),
                el("button", "Copy", type="button", class_="copy", data_copy="command", aria_label="Copy the command"),
                class_="command",
            )
        )
    else:
        parts.append(el("p", "These flags were not launched as they stand, so no command of theirs is stored."))
    parts += [_files(facts), el("h3", "Against today's flags"), _diff(facts)]
    return el("section", *parts, id="use")


def _nothing_to_set(facts: Facts) -> str:
    if facts.report.running is not None:
        return "Nothing yet: the study is running."
    verdict = facts.report.recommendation.verdict
    if verdict is Verdict.ALL_FAILED:
        return "Nothing: no trial could be measured. “What went wrong” below has the causes and what to do."
    if verdict is Verdict.NO_BASELINE:
        return "Nothing: today's flags could not be measured, and every score is a ratio to them."
    return "Nothing: nothing was measured. Type the command of the study again, and it goes on."


def _files(facts: Facts) -> Html | None:
    files = facts.brief.files
    if not files:
        return None
    names = joined(part for name in files for part in (el("code", name), " "))
    return el("p", "The same as files, in the study's folder: ", names, "and back again: ", el("code", "rollback/"))


def _diff(facts: Facts) -> Html:
    if not facts.report.changed:
        return el("p", "No difference: today's flags stay.")
    rows = [
        (
            el("span", el("code", f"--{one.name}"), _no_matter(facts, one)),
            el("del", flag_word(one.today)),
            el("ins", flag_word(one.then)),
        )
        for one in facts.report.changed
    ]
    return table(("flag", "today", "recommended"), rows, numbers=False, class_="diff")


def _no_matter(facts: Facts, changed: ChangedFlag) -> Html | None:
    """That a flag which changes is one that changes nothing, where that is proved for both values."""
    inert = next((one for one in facts.report.equal.flags if one.name == changed.name and one.inert), None)
    if inert is None or any(not _covers(inert.above, value) for value in (changed.today, changed.then)):
        return None
    return el("span", el("br"), "makes no difference at this load", class_="quiet")


def _covers(above: Flag, value: Flag) -> bool:
    return isinstance(value, (int, float)) and (not isinstance(above, (int, float)) or value >= above)


def measured_on(facts: Facts) -> Html | None:
    """What the result holds for."""
    if not facts.measured_on:
        return None
    items = joined(joined((el("dt", name), el("dd", value))) for name, value in facts.measured_on)
    wall = "" if facts.times is None else f" The night took {duration(facts.times.wall_s)}."
    return el(
        "section",
        el("h2", "What it holds for"),
        el("p", f"This model under this load on this machine. Anything else has to be measured.{wall}"),
        el("dl", items),
        id="holds",
    )
