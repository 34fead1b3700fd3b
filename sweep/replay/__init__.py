"""Launches of a recorded study in place of servers, on a virtual clock. Nothing of it is measured, and it is said."""

from __future__ import annotations

from sweep.replay.draw import Replay
from sweep.replay.recording import Recorded, Recording, read_recording

__all__ = ["Recorded", "Recording", "Replay", "read_recording"]
