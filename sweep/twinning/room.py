"""What a model on its cards cannot be otherwise: the KV cache of a launch beside another's, and the least of a step.

Of KV cache what the formulas are off by is mostly the same for two launches, so only their difference is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sweep.fingerprint import Fingerprint
from sweep.memory import GIB, Device, Model, Unknown, parts_of, read_bytes, read_launch, read_model
from sweep.trial import Flags
from sweep.twin import card_of

# A difference is off by this share of itself; and launches of one setting differ: less on the first, which compiles.
_OFF, _LESS, _MORE = 0.15, 0.05, 0.02
# Of the bandwidth that its maker states a card has so much at most: memory clocked up, and faster variants of a name.
_FASTEST = 1.1


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

    def least_step_s(self, flags: Flags) -> float:
        """What no step of a server with these flags can be faster than: each device reads the weights that work for a
        token once. 0 where that is not understood."""
        card = card_of(self.device.name)
        launch = read_launch(flags, self.model, self.device)
        every = launch if isinstance(launch, Unknown) else read_bytes(self.model, launch)
        return 0.0 if card is None or isinstance(every, Unknown) else every / (card.gb_per_s * 1e9 * _FASTEST)


def room_of(known: Fingerprint) -> Room | None:
    """Of a study's fingerprint; None where the model is not in a folder that can be read, or its card is not known."""
    card = card_of(known.gpus[0]) if known.gpus else None
    if card is None or known.model is None or not Path(known.model).is_dir():
        return None
    model = read_model(Path(known.model))
    return None if isinstance(model, Unknown) else Room(model, Device(card.memory_gib * GIB, name=card.name))
