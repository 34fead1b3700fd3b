"""Everything a page shows of a study, from its record and its report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from sweep.journal import Progress, read_progress
from sweep.recommend import Verdict
from sweep.report.facts.brief import Brief, brief_of
from sweep.report.facts.clouds import Cloud, Parallel, clouds_of, parallel_of
from sweep.report.facts.confirmation import ConfirmedRow, confirmed_rows
from sweep.report.facts.costs import Costs, confirmed_costs, search_costs
from sweep.report.facts.flags import FlagFacts, flag_facts
from sweep.report.facts.ground import measured_on
from sweep.report.facts.history import Moment, history_of
from sweep.report.facts.sheets import Sheet, SheetReader, read_sheets
from sweep.report.facts.times import TimeTable, time_table
from sweep.report.facts.troubles import Disturbed, Trouble, disturbed_of, troubles_of
from sweep.report.shown import page_metrics
from sweep.report.source import Source
from sweep.report.values import Report
from sweep.searcher.importance import Importance, flag_importance
from sweep.trial import Finished


@dataclass(frozen=True, slots=True)
class Facts:
    """What a page shows beside the report itself, which it holds. For each part see its own type.

    `sheets` are those of all stored trials by number. `measured_on` are (name, text) of what
    the result holds for. `now` is what runs at the moment, None when nothing is known to.
    """

    report: Report
    brief: Brief
    confirmation: tuple[ConfirmedRow, ...]
    costs: Costs | None
    flags: tuple[FlagFacts, ...]
    importance: Importance
    clouds: tuple[Cloud, ...]
    parallel: Parallel | None
    history: tuple[Moment, ...]
    sheets: tuple[Sheet, ...]
    troubles: tuple[Trouble, ...]
    disturbed: tuple[Disturbed, ...]
    times: TimeTable | None
    measured_on: tuple[tuple[str, str], ...]
    now: Progress | None

    @property
    def unfinished(self) -> bool:
        """Whether fewer trials of the search are stored than were asked for."""
        return self.report.asked is not None and self.brief.searched < self.report.asked

    @property
    def settled(self) -> bool:
        """Whether there is a verdict that fresh servers confirmed."""
        return self.report.recommendation.confirmed


def make_facts(source: Source, report: Report, reader: SheetReader) -> Facts:
    """The facts of a record as it is now; `report` is that record's. What cannot be read is left out and noted."""
    known = report.known
    sheets = tuple(_with_known(one, known) for one in read_sheets(reader, source.trials, report.objective))
    by_number = {sheet.number: sheet for sheet in sheets}
    history = history_of(source.trials, known, by_number, report.objective)
    names = page_metrics(report.objective)
    confirmed = report.confirmed
    costs = None
    if confirmed is not None and report.recommendation.confirmed:
        costs = confirmed_costs(confirmed, report.objective, names)
    elif report.recommendation.verdict is Verdict.BETTER:
        costs = search_costs(source.folder, report.recommendation, source.trials, report.objective, names)
    troubles, disturbed = troubles_of(source.trials), disturbed_of(source.trials)
    notes = [f"trial {sheet.number}: {note}" for sheet in sheets for note in sheet.notes]
    return Facts(
        report=dataclasses.replace(report, notes=tuple(dict.fromkeys((*report.notes, *notes)))),
        brief=brief_of(report, source.trials, costs, troubles, disturbed, source.folder),
        confirmation=() if confirmed is None else confirmed_rows(confirmed, source.trials, history),
        costs=costs,
        flags=flag_facts(known),
        importance=flag_importance(tuple(known.values())),
        clouds=clouds_of(known, by_number, report.objective.front),
        parallel=parallel_of(known, by_number, report.objective.metrics_needed()),
        history=history,
        sheets=sheets,
        troubles=troubles,
        disturbed=disturbed,
        times=time_table([(one, by_number[one.number].spans) for one in source.trials]),
        measured_on=measured_on(source.folder),
        now=_now(source) if report.running is not None else None,
    )


def _with_known(sheet: Sheet, known: Mapping[int, Finished]) -> Sheet:
    """With what the objective was given of a measured trial where the sheet has no figure of that name."""
    more = known[sheet.number].metrics
    if not sheet.metrics or not more or more.keys() <= sheet.metrics.keys():
        return sheet
    return dataclasses.replace(sheet, metrics={**more, **sheet.metrics})


def _now(source: Source) -> Progress | None:
    """The trial of the highest number that is not stored yet."""
    stored = {one.number for one in source.trials}
    try:
        names = [entry.name for entry in (source.folder / "logs").iterdir() if entry.name.isdigit()]
    except OSError:
        return None
    running = max((int(name) for name in names if int(name) not in stored), default=None)
    return None if running is None else read_progress(source.folder / "logs" / f"{running:04d}")
