"""What the launches of a confirmation say under an objective, whichever it was they were run for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweep.objective import Objective
from sweep.recommend import Recommendation
from sweep.recommend import Verdict as Word
from sweep.stages import Key, flags_key
from sweep.store import StoredTrial, read_requests, read_rounds
from sweep.trial import Flags, TrialKind, TrialStatus
from sweep.verdict import LaunchFigures, Verdict, figures_of, from_requests, judge

BASELINE = 0


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The verdict on the confirmation's launches, and the flags of each configuration that was judged.

    A configuration goes by the number of the search's trial, or where it has none (it was stepped down after a soak) by
    that of its first launch; 0 is the baseline.
    """

    verdict: Verdict
    flags: Mapping[int, Flags]

    def recommendation(self) -> Recommendation:
        """The verdict in the terms of the search's recommendation."""
        winner = None if self.verdict.winner is None else self.verdict.effect(self.verdict.winner)
        if winner is None:
            flags = self.flags.get(BASELINE)
            return Recommendation(Word.KEEP, BASELINE, flags, 1.0, 0.0, self.verdict.sentence)
        score = winner.score.value
        return Recommendation(Word.BETTER, winner.key, self.flags[winner.key], score, 1 - score, self.verdict.sentence)


def confirmation_of(
    folder: Path, trials: Sequence[StoredTrial], objective: Objective, search_scores: Mapping[int, float | None]
) -> Confirmation | None:
    """The confirmation that is stored, judged by `objective`; None where there are too few launches to judge any.

    Launches count that ended well and undisturbed, of several of one configuration and block the last; those of flags
    that did not survive their soak do not. Raises HostError when their requests cannot be read.
    """
    keys, soaks = _keys(trials), failed_soaks(trials)
    counting = {
        (keys[flags_key(trial.flags)], trial.block or 0): trial
        for trial in trials
        if trial.kind is TrialKind.CONFIRM and trial.status is TrialStatus.COMPLETE and not trial.disturbances
    }
    launches = {pair: trial for pair, trial in counting.items() if pair[0] not in soaks}
    if not launches:
        return None
    figures = [_figures(folder, trial, key, objective) for (key, _), trial in launches.items()]
    flags = {key: trial.flags for (key, _), trial in launches.items()}
    verdict = judge(figures, objective, baseline=BASELINE, flags=flags, search_scores=search_scores)
    if verdict.leader is None:
        return None
    judged = (BASELINE, *(effect.key for effect in verdict.effects))
    return Confirmation(verdict, {key: flags[key] for key in judged})


def failed_soaks(trials: Sequence[StoredTrial]) -> frozenset[int]:
    """The configurations whose flags did not survive their worst burst."""
    keys = _keys(trials)
    failed = [one for one in trials if one.kind is TrialKind.SOAK and one.status is TrialStatus.INFEASIBLE]
    return frozenset(keys[flags_key(trial.flags)] for trial in failed)


def _figures(folder: Path, trial: StoredTrial, key: int, objective: Objective) -> LaunchFigures:
    durations_s = {one.round: one.duration_s for one in read_rounds(folder, trial.number)}
    requests = read_requests(folder, trial.number)
    launch = from_requests(key, trial.block or 0, trial.number, requests, durations_s=durations_s or None)
    return figures_of(launch, objective.metrics_needed(), slo=objective.slo)


def _keys(trials: Sequence[StoredTrial]) -> dict[Key, int]:
    """The number a configuration goes by, see `Confirmation`."""
    keys: dict[Key, int] = {}
    for kinds in ((TrialKind.BASELINE, TrialKind.SEARCH), (TrialKind.CONFIRM,), tuple(TrialKind)):
        for trial in trials:
            if trial.kind in kinds:
                keys.setdefault(flags_key(trial.flags), trial.number)
    return keys
