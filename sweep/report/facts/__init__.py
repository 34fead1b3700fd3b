"""What a page shows, as values: computed here and tested, then drawn by `sweep.report.html`."""

from __future__ import annotations

from sweep.report.facts.build import Facts, make_facts
from sweep.report.facts.sheets import Sheet, SheetReader

__all__ = ["Facts", "Sheet", "SheetReader", "make_facts"]
