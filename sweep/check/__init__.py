"""Whether what a study recommended still holds: measured again, against the flags it was recommended over."""

from __future__ import annotations

from sweep.check.decide import Answer, Result, decide

__all__ = ["Answer", "Result", "decide"]
