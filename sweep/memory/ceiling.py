"""How much of a device a server can really fill, as learned from launches that ran out of memory or did not.

A start checks the KV cache against its own budget only; what comes after (graphs, workspaces, fragments, other
processes) needs room beyond the budget. The ceiling is the largest budget that survives, one normal value per study,
narrowed by each launch like the errors in `belief`: a budget that survived is below it, one that ran out is above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sweep.memory.belief import normal, truncated
from sweep.memory.values import GIB, Device

# Share of the device, and what is beside it: a CUDA context is not counted in the budget. On the CPU build the rest of
# the machine lives in the same memory.
_GPU = (1.0, -0.3 * GIB, 0.02)
_CPU = (0.9, 0.0, 0.15)
_NOISE_SHARE = 0.003
_IMPOSSIBLE = 4.0


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Mean and standard deviation of the largest budget that survives, in bytes."""

    mean_bytes: float
    spread_bytes: float
    noise_bytes: float

    @classmethod
    def prior(cls, device: Device) -> Ceiling:
        """Before anything ran."""
        share, beside, spread = _CPU if device.kind == "cpu" else _GPU
        total = device.total_bytes
        return cls(share * total + beside, spread * total, _NOISE_SHARE * total)

    def learn(self, budget_bytes: float, *, survived: bool) -> Ceiling:
        """The ceiling after a launch with that budget. One that ran out far below it had another cause, and says
        nothing here."""
        spread = math.hypot(self.spread_bytes, self.noise_bytes)
        if not survived and (self.mean_bytes - budget_bytes) / spread > _IMPOSSIBLE:
            return self
        target, left = truncated(self.mean_bytes, spread, budget_bytes, above=survived)
        gain = self.spread_bytes**2 / spread**2
        variance = self.spread_bytes**2 * (1 - gain * (1 - left))
        return Ceiling(self.mean_bytes + gain * (target - self.mean_bytes), math.sqrt(variance), self.noise_bytes)

    def survives(self, budget_bytes: float) -> float:
        """The probability that a server with this budget does not run out of memory."""
        return normal((self.mean_bytes - budget_bytes) / math.hypot(self.spread_bytes, self.noise_bytes))
