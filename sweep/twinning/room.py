"""KV cache of a launch not made yet, from one that was: the difference between the two by the memory model.

What the formulas are off by is mostly the same for both launches, so of their figures only differences are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sweep.fingerprint import Fingerprint
from sweep.memory import GIB, Device, Model, Unknown, parts_of, read_launch, read_model
from sweep.trial import Flags
from sweep.twin import card_of

# A difference is off by this share of itself; and launches of one setting differ: less on the first, which compiles.
_OFF, _LESS, _MORE = 0.15, 0.05, 0.02


@dataclass(frozen=True, slots=True)
class Room:
    """A model whose configuration is known on cards whose memory is."""

    model: Model
    device: Device

    def tokens(self, flags: Flags) -> float | None:
        """KV tokens of a server with all of these flags, below zero where there is no room; None: not understood."""
        launch = read_launch(flags, self.model, self.device)
        parts = launch if isinstance(launch, Unknown) else parts_of(self.model, launch, self.device)
        return None if isinstance(parts, Unknown) else parts.kv_bytes / parts.bytes_per_token

    def beside(self, flags: Flags, launched: Flags, tokens: int) -> tuple[float, float, float] | None:
        """KV tokens of `flags` - low, expected, high - beside a launch that had `tokens`; None: not understood."""
        mine, theirs = self.tokens(flags), self.tokens(launched)
        if mine is None or theirs is None:
            return None
        expected, off = tokens + mine - theirs, _OFF * abs(mine - theirs)
        return max(expected * (1.0 - _LESS) - off, 0.0), max(expected, 0.0), max(expected * (1.0 + _MORE) + off, 0.0)


def room_of(known: Fingerprint) -> Room | None:
    """Of a study's fingerprint; None where the model is not in a folder that can be read, or its card is not known."""
    card = card_of(known.gpus[0]) if known.gpus else None
    if card is None or known.model is None or not Path(known.model).is_dir():
        return None
    model = read_model(Path(known.model))
    return None if isinstance(model, Unknown) else Room(model, Device(card.memory_gib * GIB, name=card.name))
