"""What a finished night says of settings and loads nobody measured: `python -m sweep.predict`.

Everything in here is simulated, not measured, and says so. Reads Parquet alone: no Ray, no GPU, no vLLM.
"""

from __future__ import annotations

from sweep.predict.answer import answer
from sweep.predict.values import LABEL, Answer, Capacity, Nearest, Question

__all__ = ["LABEL", "Answer", "Capacity", "Nearest", "Question", "answer"]
