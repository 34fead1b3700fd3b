"""The page as one file that needs nothing else: no network, no server, no other file."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib import metadata, resources
from pathlib import Path

from sweep.report.facts import Facts
from sweep.report.html.markup import Html, el, joined, json_script
from sweep.report.html.part_effect import confirmation, costs
from sweep.report.html.part_top import header, measured_on, use
from sweep.report.html.part_trials import trial_data, trials
from sweep.report.html.part_why import why
from sweep.report.html.part_wrong import about, wrong

_SECTIONS = (
    ("use", "What to set"),
    ("confirmation", "Confirmation"),
    ("costs", "What it costs"),
    ("why", "Why"),
    ("wrong", "What went wrong"),
    ("trials", "Trials"),
    ("remarks", "Remarks"),
)


def as_html(facts: Facts, *, version: str | None = None) -> str:
    """The whole page. With `version` it is one that a server of ours shows: it asks for another one and reloads itself.

    Everything that was measured, typed or logged is escaped; on top of that the page's own policy lets no script run
    but its own, and lets nothing be fetched.
    """
    plots = []
    sections = [use(facts)]
    for made in (confirmation, costs, why):
        section, drawn = made(facts)
        sections.append(section)
        plots += drawn
    sections += [wrong(facts), trials(facts), about(facts)]
    holds = measured_on(facts)
    links = [el("a", words, href=f"#{name}") for name, words in _SECTIONS]
    data = {
        "plots": {one.name: one.spec for one in plots},
        **trial_data(facts),
        "version": version,
    }
    body = el(
        "body",
        header(facts),
        el("nav", *links, aria_label="Sections"),
        el("main", *sections, holds),
        json_script("data", data),
        *(Html(f"<script>{script}</script>") for script in _scripts()),
    )
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", http_equiv="Content-Security-Policy", content=_policy(served=version is not None)),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{facts.report.study}: {facts.report.recommendation.verdict}"),
        Html(f"<style>{_own('report.css')}</style>"),
    )
    return f"<!doctype html>\n{el('html', joined((head, body)), lang='en')}\n"


def _own(name: str) -> str:
    return resources.files("sweep").joinpath("data", name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _scripts() -> tuple[str, ...]:
    """plotly.js as the plotly package ships it, then ours."""
    # Not through `plotly.offline`, whose import takes a second.
    path = metadata.distribution("plotly").locate_file("plotly/package_data/plotly.min.js")
    return Path(str(path)).read_text(encoding="utf-8"), _own("report.js")


@lru_cache(maxsize=2)
def _policy(*, served: bool) -> str:
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in _scripts())
    scripts = " ".join(f"'sha256-{one}'" for one in hashes)
    connect = "'self'" if served else "'none'"
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {connect}; form-action 'none'; base-uri 'none'"
    )
