"""Stored trials as the search, the verdict and a report see them: scored by an objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sweep.objective import Objective
from sweep.reference import block_reference, reference_metrics
from sweep.store import StoredTrial
from sweep.trial import SEARCHING, Finished, TrialKind, TrialSpec


def known_trials(
    stored: Sequence[StoredTrial],
    objective: Objective,
    measured: Mapping[int, Mapping[str, float | None] | None] | None = None,
) -> dict[int, Finished]:
    """All stored trials by number, in their order, scored by `objective`.

    Each against the baseline as it was last measured before it (see `sweep.reference`), a launch of the confirmation
    against the baseline's in its block; what ran another load has no score. `measured`: metrics by number that stand in
    place of the stored ones, None for a trial whose requests cannot be read.
    """
    anew = measured or {}
    trials = [replace(one, metrics=anew[one.number]) if one.number in anew else one for one in stored]
    known: dict[int, Finished] = {}
    for one in trials:
        score = None
        if one.metrics is not None:
            reference = _reference(one, trials, known)
            score = None if reference is None else objective.score(one.metrics, reference)
        known[one.number] = Finished.of(
            TrialSpec(one.number, one.kind, one.flags, block=one.block, node=one.node),
            one.status,
            score,
            one.metrics,
            one.failure,
            total_s=one.total_s,
            disturbed=bool(one.disturbances),
            engine_config=one.engine_config,
            engine=one.engine_figures(),
            round_scores=one.round_scores,
        )
    return known


def _reference(
    one: StoredTrial, trials: Sequence[StoredTrial], known: Mapping[int, Finished]
) -> Mapping[str, float | None] | None:
    """The metrics a trial is scored against, none of the baseline as empty; None where nothing measured its load."""
    if one.kind in (TrialKind.NODE, TrialKind.NEIGHBOUR):  # against trial 0: how its node, or a neighbour, differs
        return reference_metrics(known, one.number)
    if one.kind in (*SEARCHING, TrialKind.DRIFT):
        return one.metrics if one.number == 0 else reference_metrics(known, one.number, one.node) or {}
    return block_reference(trials, one.block) if one.kind is TrialKind.CONFIRM else None
