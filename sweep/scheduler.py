"""The scheduler of Ray Tune: hears of every round of a trial and decides, paired with the best trial so far.

It never answers STOP: Ray would end the trainable in the middle of its work, and of the trial nothing would be stored.
A function that reports is held by Ray until the scheduler has seen the result (`synchronous_result_reporting` of its
session), so the verdict is written to the trial's log folder first, and the trial stops itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from sweep.desk import FAULTS, Desk
from sweep.racing import RaceDecision, unpack
from sweep.wire import ATTEMPT, COLUMNS, ROUND, SPEC, Verdict, rival_from_config, spec_from_config, write_verdict


class RaceScheduler(FIFOScheduler):
    """Starts trials in the order they come and judges them after each round. `log_folder`: that of a trial's number.

    A trial that cannot be judged goes on; without `desk` none is judged. `stranded` says of a config whether its trial
    can never start any more, for want of a node: it is then taken back, as if its worker had died.
    """

    # A worker that reports several results at once would not wait for the verdict on each.
    _supports_buffered_results = False

    def __init__(
        self,
        desk: Desk | None,
        log_folder: Callable[[int], Path],
        stranded: Callable[[dict[str, Any]], bool] = lambda _config: False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Ray's is
        self._desk, self._log_folder, self._stranded = desk, log_folder, stranded

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """The waiting trial of lowest number, after those that wait for nothing were taken back.

        Only the few live ones are looked at: Ray's own goes through all trials of the study, many times a second.
        """
        waiting = [one for one in tune_controller.get_live_trials() if one.status == Trial.PENDING]
        for one in waiting:
            if self._stranded(one.config):
                tune_controller.stop_trial(one)
        left = [one for one in waiting if one.status == Trial.PENDING]
        return min(left, key=lambda one: int(one.config[SPEC]["number"]), default=None)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Judge what a round showed; final results, and those that Ray repeats at the end, are none of ours."""
        del tune_controller
        if COLUMNS in result and not result.get("done"):
            self.judge(trial.config[SPEC], result)
        return TrialScheduler.CONTINUE

    def judge(self, config: dict[str, Any], result: Mapping[str, Any]) -> None:
        """Write the verdict on a result after a round of the trial of `config`."""
        with contextlib.suppress(OSError):
            decision = self._decided(config, result)
            verdict = Verdict(result[ATTEMPT], result[ROUND], decision.stop, decision.rule, decision.reason)
            write_verdict(self._log_folder(config["number"]), verdict)

    def _decided(self, config: dict[str, Any], result: Mapping[str, Any]) -> RaceDecision:
        try:
            spec, _ = spec_from_config(config)
            rival = rival_from_config(config)
            if rival is None or self._desk is None:
                return RaceDecision(False, "nothing to compare with")
            return self._desk.judge(spec, rival, unpack(result[COLUMNS]))
        except FAULTS as error:
            return RaceDecision(False, f"not judged: {type(error).__name__}: {error}")

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Ray pickles the scheduler into its own experiment state, which is never restored."""
        return {}

    def __deepcopy__(self, memo: dict[int, Any]) -> RaceScheduler:
        """The scheduler itself: there is one record."""
        return self
