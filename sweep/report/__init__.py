"""What a study's record says, now: `python -m sweep.report`. Reads Parquet alone: no Ray, no GPU, no vLLM."""

from __future__ import annotations

from sweep.report.build import Wishes, make_report
from sweep.report.source import Source, open_source
from sweep.report.values import RankedTrial, Report, ThinMetric

__all__ = [
    "RankedTrial",
    "Report",
    "Source",
    "ThinMetric",
    "Wishes",
    "make_report",
    "open_source",
]
