"""A trial's own page: what is read of it, once, and its metrics under the report's objective."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweep.errors import HostError
from sweep.measured import parts_of
from sweep.metrics import summarize_parts
from sweep.objective import Objective
from sweep.records import EngineConfig
from sweep.report.facts.curves import Curve, curves_of
from sweep.report.facts.log_tail import LogTail, log_tails
from sweep.report.facts.timeline import TELEMETRY, Timeline, timeline_of
from sweep.report.facts.times import Spans, spans_of
from sweep.report.shown import page_metrics
from sweep.store import (
    StoredTrial,
    read_engine,
    read_events,
    read_request_columns,
    read_rounds,
    read_telemetry,
    trial_file,
)
from sweep.trial import Flags, TrialKind, TrialStatus


@dataclass(frozen=True, slots=True)
class Sheet:
    """What is known of one trial beside its place. `metrics` are those of `page_metrics`, empty where none were
    measured. `spans` says where its time went. `notes`: tables of it that cannot be read.
    """

    number: int
    kind: TrialKind
    status: TrialStatus
    flags: Flags
    metrics: Mapping[str, float | None]
    curves: Mapping[str, Curve]
    timeline: Timeline | None
    spans: Spans
    engine_config: EngineConfig
    engine_summary: Mapping[str, float | None]
    command: str
    remarks: tuple[str, ...]
    logs: tuple[LogTail, ...]
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class SheetReader:
    """Reads sheets of the study in `folder`. One that is asked for again is read again only if its files changed, so a
    page that is shown while a study runs costs what is new. `redact` goes over every line of a log.
    """

    folder: Path
    redact: Callable[[str], str]
    _known: dict[int, tuple[object, Sheet]] = field(default_factory=dict)

    def sheet(self, trial: StoredTrial, objective: Objective) -> Sheet:
        """The sheet of one stored trial; never raises for what cannot be read."""
        stamp = (_stamp(trial_file(self.folder, "trials", trial.number)), objective.describe(), page_metrics(objective))
        known = self._known.get(trial.number)
        if known is None or known[0] != stamp:
            known = (stamp, self._read(trial, objective))
            self._known[trial.number] = known
        return known[1]

    def _read(self, trial: StoredTrial, objective: Objective) -> Sheet:
        notes: list[str] = []
        metrics: Mapping[str, float | None] = {}
        curves: Mapping[str, Curve] = {}
        timeline = None
        spans = Spans(waiting_s=0.0, startup_s=0.0, load_s=0.0, other_s=trial.total_s, lost_s=0.0)
        try:
            if trial.metrics is not None:
                columns = read_request_columns(self.folder, trial.number)
                parts, _ = parts_of(self.folder, trial, columns, several=bool(objective.rates))
                metrics = summarize_parts(parts, page_metrics(objective), slo=objective.limits)
                curves = curves_of(columns)
        except HostError as error:
            notes.append(str(error))
        try:
            timeline = timeline_of(
                read_engine(self.folder, trial.number),
                read_telemetry(self.folder, trial.number, TELEMETRY),
                read_rounds(self.folder, trial.number),
            )
            spans = spans_of(read_events(self.folder, trial.number), trial)
        except HostError as error:
            notes.append(str(error))
        return Sheet(
            number=trial.number,
            kind=trial.kind,
            status=trial.status,
            flags=trial.flags,
            metrics=metrics,
            curves=curves,
            timeline=timeline,
            spans=spans,
            engine_config=trial.engine_config,
            engine_summary=trial.engine_summary,
            command=trial.command,
            remarks=trial.remarks,
            logs=log_tails(self.folder, trial.number, self.redact),
            notes=tuple(notes),
        )


def read_sheets(reader: SheetReader, trials: Sequence[StoredTrial], objective: Objective) -> tuple[Sheet, ...]:
    """The sheets of all trials in their order."""
    return tuple(reader.sheet(trial, objective) for trial in trials)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
