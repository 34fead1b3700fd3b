"""A headless Chromium, for the tests of the page: Debian's, or the one named in SWEEP_CHROMIUM."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")


def chromium() -> str | None:
    """The program, None where there is none."""
    named = os.environ.get("SWEEP_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


@contextmanager
def browser() -> Iterator[Any]:
    """A running one; skips the test with the reason where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[dev]'")
    program = chromium()
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is there (apt-get install chromium)")
    with api.sync_playwright() as playwright:
        # Its own sandbox needs what containers run by root do not have; it opens one file of ours.
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield running
        finally:
            running.close()
