"""When to stop a trial before its end: decisions only, on plain values. Nothing here knows Ray, Optuna or a server."""

from __future__ import annotations

from sweep.racing.live import LiveLimits, live_verdict
from sweep.racing.noise import CPU_NOISE, GPU_NOISE, Noise, estimate_noise, subset_margin
from sweep.racing.packed import pack, unpack
from sweep.racing.race import Evidence, Incumbent, RaceDecision, Rule, race
from sweep.racing.rounds import Round, measure, split
from sweep.racing.slo import Planned, least_violations
from sweep.racing.trace import LiveTrace

__all__ = [
    "CPU_NOISE",
    "GPU_NOISE",
    "Evidence",
    "Incumbent",
    "LiveLimits",
    "LiveTrace",
    "Noise",
    "Planned",
    "RaceDecision",
    "Round",
    "Rule",
    "estimate_noise",
    "least_violations",
    "live_verdict",
    "measure",
    "pack",
    "race",
    "split",
    "subset_margin",
    "unpack",
]
