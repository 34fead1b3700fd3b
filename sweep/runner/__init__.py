"""`run_trial`: the one recipe of a trial. Needs no Ray."""

from __future__ import annotations

from sweep.runner.reports import Measured, RoundProgress, RoundReport
from sweep.runner.result import measured_result, thin_remarks
from sweep.runner.run import TrialOutcome, run_trial
from sweep.runner.setup import TrialSetup
from sweep.runner.stand_in import StandIn
from sweep.runner.telemetry import usual_of
from sweep.runner.warmup import warm_up_limit_s

__all__ = [
    "Measured",
    "RoundProgress",
    "RoundReport",
    "StandIn",
    "TrialOutcome",
    "TrialSetup",
    "measured_result",
    "run_trial",
    "thin_remarks",
    "usual_of",
    "warm_up_limit_s",
]
