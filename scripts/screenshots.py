#!/usr/bin/env python3
"""The README's pictures of a report: the page of a study, in a headless Chromium.

    python scripts/screenshots.py results/cpu-demo docs/report

writes `docs/report-top.png`, `-why.png`, `-trial.png` and `-phone.png`. `--hide FOLDER` leaves a leading folder out of
the paths that the page shows. Needs playwright (`pip install '.[dev]'`) and a Chromium (`apt-get install
chromium`, or its path in SWEEP_CHROMIUM); nothing is fetched.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from sweep.report import open_source
from sweep.report.html import as_html
from sweep.report.page import facts_of

WIDE = {"width": 1100, "height": 900}
PHONE = {"width": 390, "height": 844}
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")


def main() -> int:
    """Take the pictures; returns 0, or 2 where there is no browser."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("study", help="folder of a study's results")
    parser.add_argument("prefix", type=Path, help="where the pictures go: PREFIX-top.png, ...")
    parser.add_argument("--hide", metavar="FOLDER", default="", help="leave this out of paths that are shown")
    given = parser.parse_args()
    program = os.environ.get("SWEEP_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        print(f"no browser: none of {', '.join(_NAMES)} is there (apt-get install chromium)", file=sys.stderr)
        return 2
    text = as_html(facts_of(open_source(given.study)))
    if given.hide:
        text = text.replace(given.hide.rstrip("/") + "/", "")
    given.prefix.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        page = Path(made) / "report.html"
        page.write_text(text, encoding="utf-8")
        _shoot(program, page, given.prefix)
    return 0


def _shoot(program: str, page: Path, prefix: Path) -> None:
    from playwright.sync_api import sync_playwright  # only here: the help needs none

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        wide = _open(browser, page, viewport=WIDE)
        _between(wide, prefix, "top", "header", "#confirmation")
        _between(wide, prefix, "why", "#why", "#plot-history")
        wide.evaluate("document.getElementById('trial-0').open = true")
        wide.wait_for_selector("#trial-0 .plot[data-timeline][data-drawn]")
        wide.wait_for_timeout(300)
        _between(wide, prefix, "trial", "#trial-0 > summary", "#trial-0 > dl")
        phone = _open(browser, page, viewport=PHONE, is_mobile=True, has_touch=True, color_scheme="dark")
        phone.screenshot(path=f"{prefix}-phone.png")
        browser.close()


def _open(browser: Any, page: Path, **options: Any) -> Any:
    context = browser.new_context(**options)
    opened = context.new_page()
    opened.goto(page.as_uri())
    opened.wait_for_selector("html[data-ready=yes]")
    opened.wait_for_timeout(300)
    return opened


def _between(opened: Any, prefix: Path, name: str, first: str, last: str) -> None:
    """The page from the top of one element to the end of another."""
    boxes = [
        opened.evaluate("s => { const b = document.querySelector(s).getBoundingClientRect();"
                        " return [b.top + scrollY, b.bottom + scrollY]; }", selector)
        for selector in (first, last)
    ]  # fmt: skip
    top, bottom = boxes[0][0], boxes[1][1]
    # The bar of links would stand in the middle of it.
    opened.add_style_tag(content="nav { position: static !important; }")
    clip = {"x": 0, "y": max(0.0, top - 12), "width": WIDE["width"], "height": bottom - top + 24}
    opened.screenshot(path=f"{prefix}-{name}.png", full_page=True, clip=clip)


if __name__ == "__main__":
    sys.exit(main())
