"""Configurations that the search measured more than once, as one each; and which of them deserve a second look.

The best of many single measurements are the lucky ones. Measured once more, on a fresh server, a mean of two has lost
half of that: `scripts/bench_decision.py` shows how much oftener the truly best is then among those that are confirmed.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from statistics import fmean

from sweep.recommend import rank_key
from sweep.search_space import flags_key
from sweep.trial import SEARCHING, Finished, Flags, TrialKind, TrialStatus
from sweep.verdict import finalists


def configurations(finished: Iterable[Finished]) -> dict[int, list[Finished]]:
    """What the search measured to its end and undisturbed, by the number of the first trial with the same flags."""
    first: dict[object, int] = {}
    found: dict[int, list[Finished]] = {}
    for one in sorted(finished, key=lambda one: one.number):
        if one.kind in SEARCHING and one.status is TrialStatus.COMPLETE and one.score is not None and not one.disturbed:
            found.setdefault(first.setdefault(flags_key(one.flags), one.number), []).append(one)
    return found


def pooled(looks: list[Finished]) -> Finished:
    """Looks at one configuration as one: means of score and of what the SLOs are missed by."""
    names = looks[0].violations
    return dataclasses.replace(
        looks[0],
        score=fmean(one.score for one in looks if one.score is not None),
        violations={name: fmean(one.violations.get(name, 0.0) for one in looks) for name in names},
    )


def ranked(finished: Iterable[Finished], count: int | None = None) -> list[Finished]:
    """The best configurations of the search, best first, pooled and without the baseline.

    Those that keep every SLO go first, then those measured twice (see `finalists`).
    """
    found = configurations(finished)
    one_each = {key: pooled(looks) for key, looks in found.items() if looks[0].kind is TrialKind.SEARCH}
    kept = {key: one for key, one in one_each.items() if rank_key(one)[1] == 0}
    scores = {key: [one.score for one in found[key] if one.score is not None] for key in kept}
    order = [one_each[key] for key in finalists(scores, len(scores))]
    order += sorted((one for key, one in one_each.items() if key not in kept), key=lambda one: rank_key(one))
    return order[:count]


def second_look(finished: Iterable[Finished], live: Iterable[Flags], looks: int) -> Flags | None:
    """The best configuration tried once, while fewer than `looks` were tried twice; None when none is left."""
    every = list(finished)
    # A second look that failed or was disturbed was one, too: it is not asked for again.
    tries = Counter(flags_key(one.flags) for one in every if one.kind is TrialKind.SEARCH)
    tries.update(flags_key(flags) for flags in live)
    if sum(count > 1 for count in tries.values()) >= looks:
        return None
    return next((one.flags for one in ranked(every) if tries[flags_key(one.flags)] == 1), None)
