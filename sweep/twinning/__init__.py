"""The twin of a study: from its stored trials to what its settings cost, and which of them to measure next.

Nothing in here is a measurement, and nothing is told to a study as one.
"""

from __future__ import annotations

from sweep.twinning.advice import Advice, advise
from sweep.twinning.adviser import Adviser
from sweep.twinning.record import Ledger
from sweep.twinning.values import Basis, KvTokens

__all__ = ["Advice", "Adviser", "Basis", "KvTokens", "Ledger", "advise"]
