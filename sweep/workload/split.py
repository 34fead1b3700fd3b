"""Which prompts the search may send and which are kept to confirm what it found.

A search picks the flags that happen to suit its own prompts and their noise; only prompts that it never sent can tell
how much of a gain was luck. The split is by a hash of the text alone, so it is the same for every study of a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_HASHES = 2**64  # a prompt's id is 16 hexadecimal digits of its SHA-256


@dataclass(frozen=True, slots=True)
class Split:
    """One part of a prompt file: about `held_out_share` (0 <= x < 1) of all texts are held out, the rest is for tuning.

    The default takes everything for tuning. Raises ValueError for another share.
    """

    held_out_share: float = 0.0
    part: Literal["tuning", "held_out"] = "tuning"

    def __post_init__(self) -> None:
        if not 0 <= self.held_out_share < 1:
            raise ValueError(f"a held-out share lies from 0 to below 1, not at {self.held_out_share}")

    def takes(self, prompt_id: str) -> bool:
        """Whether the prompt of that id is in this part."""
        held_out = int(prompt_id, 16) < self.held_out_share * _HASHES
        return held_out is (self.part == "held_out")

    def describe(self) -> str:
        """What the part is, in a few words; empty without a split."""
        if self.part == "held_out":
            return f"held out to confirm the winner ({self.held_out_share:.0%} of the prompts, load.held_out_share)"
        if self.held_out_share:
            return f"for the search ({1 - self.held_out_share:.0%} of the prompts, load.held_out_share)"
        return ""
