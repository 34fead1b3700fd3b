"""What a page shows, as values: computed here and tested, then drawn by `sweep.report.html`."""

from __future__ import annotations

from sweep.report.facts.build import ChangedFlag, Facts, make_facts
from sweep.report.facts.sheets import Sheet, SheetReader, confirm_metrics, page_metrics

__all__ = ["ChangedFlag", "Facts", "Sheet", "SheetReader", "confirm_metrics", "make_facts", "page_metrics"]
