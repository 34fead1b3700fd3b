"""The page in a real browser, opened as a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import browser
from rich_night import HOSTILE, rich_night
from waiting import until

from sweep.report.page import write_page

pytestmark = pytest.mark.night  # a browser starts, and draws every plot


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(rich_night(tmp_path_factory.mktemp("rich")))


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    with browser() as found:
        yield found


class Seen:
    """A page that was opened, and everything it said or asked for."""

    def __init__(self, running: Any, path: Path, **options: Any) -> None:
        self.context = running.new_context(**options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready=yes]", timeout=30_000)


def until_it_holds(seen: Seen, condition: str) -> None:
    """Asked from outside: a wait within the page evaluates strings, which the page's own policy forbids."""
    until(lambda: seen.page.evaluate(condition), condition)


@pytest.fixture(scope="module")
def seen(running: Any, page_path: Path) -> Iterator[Seen]:
    found = Seen(running, page_path, viewport={"width": 1200, "height": 900})
    yield found
    found.context.close()


def test_every_plot_is_drawn_and_every_trial_opens(seen: Seen) -> None:
    drawn = seen.page.locator(".plot:not(.later) .main-svg").count()
    assert drawn >= seen.page.locator(".plot:not(.later)").count() >= 7
    for details in seen.page.locator("details.trial").all():
        details.evaluate("element => { element.open = true; }")
    until_it_holds(seen, "document.querySelectorAll('.plot:not([data-drawn])').length === 0")
    assert seen.page.locator("[data-timeline='40'] .scatterlayer .trace").count() >= 8


def test_it_complains_of_nothing_asks_for_nothing_and_runs_nothing_of_others(seen: Seen, page_path: Path) -> None:
    assert seen.complaints == []
    assert seen.requests == [page_path.as_uri()]
    assert seen.page.locator("img").count() == 0
    seen.page.locator("#trial-40").evaluate("element => { element.open = true; }")
    assert HOSTILE in seen.page.locator("#trial-40").inner_text()


def test_the_copy_button_copies_the_command(running: Any, page_path: Path) -> None:
    granted = Seen(running, page_path, permissions=["clipboard-read", "clipboard-write"])
    command = granted.page.locator("#command").inner_text()
    assert command.startswith("vllm serve m")
    granted.page.evaluate(  # it says "Copied" for two seconds, which a busy machine may let pass unseen
        "window.said = []; new MutationObserver(() => said.push(document.querySelector('button.copy').textContent))"
        ".observe(document.querySelector('button.copy'), {childList: true})"
    )
    granted.page.click("button.copy")
    until_it_holds(granted, "said[0] === 'Copied'")
    assert granted.page.evaluate("navigator.clipboard.readText()") == command
    granted.context.close()


def test_a_mark_leads_to_its_trial(seen: Seen) -> None:
    seen.page.evaluate("location.hash = '#trial-42'")
    until_it_holds(seen, "document.getElementById('trial-42').open")
    assert seen.page.locator("#trial-42").is_visible()


def test_a_phone_scrolls_in_one_direction_and_the_dark_is_dark(running: Any, page_path: Path) -> None:
    size = {"width": 390, "height": 844}
    phone = Seen(running, page_path, viewport=size, is_mobile=True, has_touch=True, color_scheme="dark")
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    ground = phone.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(18, 22, 26)"
    text = phone.page.evaluate("getComputedStyle(document.querySelector('.plot .xtick text')).fill")
    assert text == "rgb(232, 236, 240)"
    assert phone.complaints == []
    phone.context.close()


def test_it_prints(running: Any, page_path: Path, tmp_path: Path) -> None:
    printed = Seen(running, page_path)
    pdf = printed.page.pdf(path=str(tmp_path / "page.pdf"), format="A4")
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 3
    printed.context.close()
