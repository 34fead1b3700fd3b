"""The minute at the top of a page: how much, how sure, what it costs elsewhere, what went wrong, when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sweep.production import RECOMMENDED
from sweep.recommend import Verdict
from sweep.report.facts.costs import Costs, MetricChange
from sweep.report.facts.troubles import Disturbed, Trouble
from sweep.report.values import Report
from sweep.store import StoredTrial
from sweep.trial import SEARCHING, TrialKind

# A metric that looks this much worse is named even where its interval does not tell.
_LOOKS_WORSE = 0.1


@dataclass(frozen=True, slots=True)
class Brief:
    """What a reader takes away.

    `asked` are the metrics of the objective, `worse` those that are worse beyond their interval or break their SLO,
    `perhaps_worse` those that look at least 10 % worse where the interval cannot tell (or there is none). All three are
    empty where no other flags are recommended than today's. `closest` is the best trial of other flags and its score,
    where today's stay. `kinds` counts the stored trials: (kind, how many); `causes` are (class of failure, trials).
    `began_wall_s` and `ended_wall_s` are seconds since 1970, None before a trial is stored. `files` are those for
    production in the study's folder, of the flags that this report recommends.
    """

    asked: tuple[MetricChange, ...]
    worse: tuple[MetricChange, ...]
    perhaps_worse: tuple[MetricChange, ...]
    closest: tuple[int, float] | None
    kinds: tuple[tuple[TrialKind, int], ...]
    causes: tuple[tuple[str, int], ...]
    disturbed: int
    refused: int
    same: int
    began_wall_s: float | None
    ended_wall_s: float | None
    files: tuple[str, ...]

    @property
    def searched(self) -> int:
        """Trials of the search, the baseline included."""
        return sum(count for kind, count in self.kinds if kind in SEARCHING)

    @property
    def others(self) -> int:
        """Launches beside the search: to confirm, for drift, to calibrate, ..."""
        return sum(count for kind, count in self.kinds if kind not in SEARCHING)


def brief_of(
    report: Report,
    trials: Sequence[StoredTrial],
    costs: Costs | None,
    troubles: Sequence[Trouble],
    disturbed: Sequence[Disturbed],
    folder: Path,
) -> Brief:
    """The minute of a report; `trials` are all that are stored."""
    changes = costs.changes if costs is not None and report.recommendation.verdict is Verdict.BETTER else ()
    asked = tuple(one for one in changes if one.name in report.objective.metrics_needed())
    worse = tuple(one for one in changes if one.better is False or one.keeps is False)
    perhaps = tuple(one for one in changes if one not in worse and one.better is None and _looks_worse(one))
    causes: Counter[str] = Counter()
    for one in troubles:
        causes[one.failure_class] += len(one.trials)
    return Brief(
        asked=asked,
        worse=worse,
        perhaps_worse=perhaps,
        closest=_closest(report),
        kinds=tuple(Counter(one.kind for one in trials).items()),
        causes=tuple(causes.most_common()),
        disturbed=len(disturbed),
        refused=report.gate.count,
        same=len(report.not_launched.same),
        began_wall_s=min((one.started_wall_s for one in trials), default=None),
        ended_wall_s=max((one.started_wall_s + one.total_s for one in trials), default=None),
        files=_files(report, folder),
    )


def _closest(report: Report) -> tuple[int, float] | None:
    if report.recommendation.verdict is not Verdict.KEEP:
        return None
    ranked = sorted((one for one in report.trials if one.place is not None), key=lambda one: one.place or 0)
    scores = ((one.number, one.score.value) for one in ranked if one.kind is not TrialKind.BASELINE and one.score)
    return next(((number, score) for number, score in scores if score is not None), None)


def _looks_worse(change: MetricChange) -> bool:
    return change.ratio > 1 + _LOOKS_WORSE if change.lower_is_better else change.ratio < 1 / (1 + _LOOKS_WORSE)


def _files(report: Report, folder: Path) -> tuple[str, ...]:
    """Those of `recommended/`, which were made by the study's own objective: none where this report asks by another."""
    if not report.recommendation.confirmed or report.own_winner is not None or not report.changed:
        return ()
    place = folder / RECOMMENDED
    try:
        return tuple(sorted(f"{place.name}/{entry.name}" for entry in place.iterdir() if entry.is_file()))
    except OSError:
        return ()
