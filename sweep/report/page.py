"""A study's page: made of its record as it is now, and written beside it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from sweep.atomic_file import WriteFailed, write_atomically
from sweep.errors import UserError
from sweep.redact import Redactor
from sweep.report.build import Wishes, make_report
from sweep.report.facts import Facts, SheetReader, make_facts
from sweep.report.html import as_html
from sweep.report.shown import confirm_metrics
from sweep.report.source import PAGE, Source, open_source


def sheet_reader(source: Source) -> SheetReader:
    """A reader of that study's trials; what this machine's environment calls a secret is shown nowhere."""
    return SheetReader(source.folder, Redactor(os.environ).text)


def facts_of(source: Source, wishes: Wishes | None = None, reader: SheetReader | None = None) -> Facts:
    """Everything a page shows. `reader` keeps what it has read from call to call. Raises UserError as `make_report`."""
    report = make_report(source, wishes or Wishes(), confirm_names=confirm_metrics(source))
    return make_facts(source, report, reader or sheet_reader(source))


def write_page(folder: Path, *, ended: bool = False, redact: Callable[[str], str] | None = None) -> Path:
    """Write the page of the study in `folder` to its `report.html`.

    `ended`: whoever has the study is at its end. `redact` goes over every line of a log, by default with what this
    machine's environment calls a secret. Raises UserError for a record that cannot be read, and WriteFailed for a file
    that cannot be written.
    """
    page = folder / PAGE
    source = open_source(str(folder))
    if ended:
        source = dataclasses.replace(source, running=None)
    reader = sheet_reader(source) if redact is None else SheetReader(source.folder, redact)
    write_atomically(page, as_html(facts_of(source, reader=reader)).encode())
    return page


def page_trouble(folder: Path, redact: Callable[[str], str]) -> str | None:
    """Write the page of a study that ends; the line that says why there is none, None where there is one."""
    try:
        write_page(folder, ended=True, redact=redact)
    except (UserError, WriteFailed) as error:
        return f"the report could not be written: {error}"
    return None
