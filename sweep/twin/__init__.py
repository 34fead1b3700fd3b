"""vLLM's scheduler in virtual time: what a setting would give, from costs fitted to what was measured.

Nothing in here is a measurement, and every record says so.
"""

from __future__ import annotations

from sweep.twin.calibrate import Calibration, calibrate, kv_tokens_for
from sweep.twin.cards import Card, card_of
from sweep.twin.fit import Fitted, fit
from sweep.twin.observation import Observation
from sweep.twin.predict import Interval, Prediction, predict
from sweep.twin.prior import Shape, prior, shape_of_size, weights_in_name
from sweep.twin.simulate import SimulatedRequest, Simulation, simulate
from sweep.twin.values import Costs, Engine, Load, TwinError

__all__ = [
    "Calibration",
    "Card",
    "Costs",
    "Engine",
    "Fitted",
    "Interval",
    "Load",
    "Observation",
    "Prediction",
    "Shape",
    "SimulatedRequest",
    "Simulation",
    "TwinError",
    "calibrate",
    "card_of",
    "fit",
    "kv_tokens_for",
    "predict",
    "prior",
    "shape_of_size",
    "simulate",
    "weights_in_name",
]
