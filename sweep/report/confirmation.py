"""What the launches of a confirmation say under an objective, whichever it was they were run for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sweep.config import ConfirmSection
from sweep.confirm import Confirmed, Jury
from sweep.objective import Objective
from sweep.search_space import flags_key
from sweep.stages import ConfirmRules
from sweep.trial import Finished, TrialKind, TrialStatus


def confirmation_of(
    folder: Path,
    known: Mapping[int, Finished],
    objective: Objective,
    settings: ConfirmSection,
    seed: int,
    metric_names: tuple[str, ...] = (),
) -> Confirmed | None:
    """The confirmation that is stored, judged by `objective`; None where there are too few launches to judge any.

    `known` are all trials, those of the search with their scores by `objective`; `metric_names` are further metrics to
    give intervals for. `seed` is the study's: by its own objective the intervals are then those that the study itself
    gave. Raises HostError when the requests of a launch cannot be read.
    """
    rules = ConfirmRules.of(settings)
    return Jury(folder, objective, rules, settings.width, seed, metric_names).confirmed(known)


def failed_soaks(known: Mapping[int, Finished]) -> frozenset[int]:
    """The trials of the search whose flags did not survive their worst burst."""
    failed = {
        flags_key(one.flags)
        for one in known.values()
        if one.kind is TrialKind.SOAK and one.status is TrialStatus.INFEASIBLE
    }
    return frozenset(number for number, one in known.items() if flags_key(one.flags) in failed)
