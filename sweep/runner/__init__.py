"""`run_trial`: the one recipe of a trial. Needs no Ray."""

from __future__ import annotations

from sweep.runner.reports import RoundProgress, RoundReport
from sweep.runner.run import TrialOutcome, run_trial
from sweep.runner.setup import TrialSetup
from sweep.runner.telemetry import usual_of

__all__ = ["RoundProgress", "RoundReport", "TrialOutcome", "TrialSetup", "run_trial", "usual_of"]
