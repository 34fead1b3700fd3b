"""What the twin of a study rests on, as plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Basis:
    """What the costs were learnt from: these trials, so many of their requests."""

    trials: tuple[int, ...]
    requests: int


@dataclass(frozen=True, slots=True)
class KvTokens:
    """KV tokens of a launch with these flags, from launches that were; `launched`: some had these very flags."""

    low: int
    expected: int
    high: int
    launched: bool
