"""What runs trials where no server is to be started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sweep.runner.reports import RoundReport
from sweep.runner.run import TrialOutcome
from sweep.runner.setup import TrialSetup
from sweep.trial import TrialSpec


class StandIn(Protocol):
    """Takes the place of `run_trial` in a study whose trials are not measured. Travels to a Ray worker.

    `word` marks each of its trials wherever one is shown or stored, such as "replayed"; `described` says in one line
    what stands in.
    """

    @property
    def word(self) -> str: ...

    @property
    def described(self) -> str: ...

    def run(
        self, spec: TrialSpec, setup: TrialSetup, *, after_round: Callable[[RoundReport], str | None] | None = None
    ) -> TrialOutcome:
        """The outcome of a trial, at once, as `run_trial` gives it, with `TrialResult.stood_in` set to `word`.

        It depends on the spec, the setup and what the study's folder holds of trials of lower number, on nothing else.
        `after_round` as in `run_trial`.
        """
        ...
