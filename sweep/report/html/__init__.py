"""The report as a page: `sweep.report.facts` drawn."""

from __future__ import annotations

from sweep.report.html.document import as_html

__all__ = ["as_html"]
