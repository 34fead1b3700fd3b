"""How long a trial may take before one was run: today's flags by the twin, from the model's size and the card."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sweep.memory import Unknown
from sweep.runner import TrialSetup
from sweep.trial import Flags
from sweep.twin import TwinError, card_of, simulate
from sweep.twinning.hardware import hardware_of
from sweep.twinning.load import planned

# Costs from so many draws of what is not known; nine in ten lie between the ends.
_MEMBERS, _ENDS = 12, (5.0, 50.0, 95.0)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of one trial of today's flags, its start included: between the ends nine times in ten, if all is right.

    `hardware` says what it was computed for. Nothing of it is measured.
    """

    low_s: float
    expected_s: float
    high_s: float
    hardware: str


def estimate(setup: TrialSetup, baseline: Flags, card_name: str) -> Estimate | Unknown:
    """The time of a trial on cards of this name; Unknown, with the reason, where the twin has nothing to go by."""
    card = card_of(card_name)
    if card is None:
        return Unknown(f"nothing is known of a {card_name}")
    flags = setup.server_flags(baseline)
    hardware = hardware_of(setup.model, flags, card)
    if isinstance(hardware, Unknown):
        return hardware
    engine = hardware.engine(flags)
    loads = [planned(one) for one in setup.plan.rounds]
    try:
        times = [
            sum(simulate(load, engine, costs, max_concurrency=setup.max_concurrency).duration_s for load in loads)
            for costs in hardware.costs(members=_MEMBERS).members
        ]
    except TwinError as error:
        return Unknown(str(error))
    low, middle, high = np.percentile(times, _ENDS).tolist()
    start_s = hardware.startup_s
    return Estimate(low + start_s / 2, middle + start_s, high + start_s * 2, hardware.described)
