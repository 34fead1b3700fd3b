"""All attempts at a trial and what they come to. A failure becomes a status, never an exception that escapes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from sweep.diagnosis import Diagnosis, Policy
from sweep.gpu import DeviceMemory, Findings, Gpus, judge
from sweep.journal import Journal
from sweep.knee import describe, find_knee
from sweep.metrics import summarize_engine, with_client_view
from sweep.records import EngineSummary
from sweep.redact import Redactor
from sweep.runner.attempt import Attempt, AttemptOutcome
from sweep.runner.reports import Hooks, RoundProgress, RoundReport
from sweep.runner.result import measured_result, thin_remarks
from sweep.runner.round_checks import cold_start, unexpected_hits, with_telemetry
from sweep.runner.setup import TrialSetup
from sweep.runner.soak import soak_remark
from sweep.runner.telemetry import load_readings, telemetry_rows
from sweep.server import new_api_key
from sweep.store import TelemetryRow
from sweep.trial import Failure, Finished, Phase, TrialKind, TrialResult, TrialSpec

# A worker that Ray ends lives on for seconds after its children were killed. An attempt begun or a failure reported in
# them would count, although nothing but the end of this worker was the cause.
OWN_END_S = 10.0


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """A result with the rows that stand beside it in the store."""

    result: TrialResult
    engine_summary: Mapping[str, float | None]
    telemetry: tuple[TelemetryRow, ...]
    dirty_devices: tuple[str, ...] = ()

    def finished(self) -> Finished:
        """What the plan needs to know of it."""
        result = self.result
        return Finished.of(
            result.spec,
            result.status,
            result.score,
            result.metrics,
            result.failure,
            total_s=result.total_s,
            disturbed=bool(result.disturbances),
            dirty_devices=self.dirty_devices,
            engine_config=result.engine_config,
            engine=EngineSummary(**self.engine_summary),
            round_scores=result.round_scores,
        )


def run_trial(
    spec: TrialSpec,
    setup: TrialSetup,
    *,
    redactor: Redactor,
    gpus: Gpus,
    resting: tuple[DeviceMemory, ...] = (),
    usual: Mapping[str, float] | None = None,
    first_attempt: int = 1,
    after_round: Callable[[RoundReport], str | None] | None = None,
    during_round: Callable[[RoundProgress], str | None] | None = None,
    own_end_s: float = OWN_END_S,
) -> TrialOutcome:
    """Run a trial to its end. `resting` is the devices' memory before the study, `usual` how much they throttled in
    its baseline (see `runner.telemetry.usual_of`).

    Passing faults are tried again at the same flags, `setup.max_retries` times; everything else is decided by the first
    attempt. Attempts that were killed before count on and stay in the events, but use up no retry; `first_attempt` is
    for those of them that left no trace.

    `after_round` is asked after each round but the last, `during_round` about once a second while the requests of a
    round are sent and answered: a text that one of them returns is why this trial is hopeless, and ends it as CENSORED
    with the rounds it finished.

    `own_end_s` is how long an attempt that ended because somebody killed this process's children waits for the end of
    this process itself, before anything follows from it.
    """
    began_wall_s, began_s = time.time(), time.monotonic()
    api_key = new_api_key()
    redactor = redactor.also(api_key)
    journal = _journal(spec, setup, redactor)
    telemetry: list[TelemetryRow] = []
    disturbed_before = False
    attempt = first_attempt = max(first_attempt, journal.attempts_before + 1)
    while True:
        journal.begin_attempt(attempt)
        one = Attempt(spec, setup, journal, gpus, resting, api_key, Hooks(after_round, during_round))
        outcome = one.run()
        for log in (one.server_log, one.client_log):
            redactor.file(log)  # servers print their arguments, and some their environment
        rows = telemetry_rows(outcome.telemetry, journal)
        telemetry += rows
        findings = _judged(spec, outcome, rows, journal, attempt, usual)
        if outcome.abandoned and (outcome.load is None or findings.disturbances):
            journal.note("abandoned", f"its processes were killed; waiting {own_end_s:g} s for the end of this one")
            time.sleep(own_end_s)
        once_more = not (disturbed_before or outcome.dirty_devices or spec.kind is TrialKind.CALIBRATION)
        if outcome.load is not None and findings.disturbances and once_more:
            disturbed_before = True
            journal.note("disturbed", "; ".join(findings.disturbances))
        elif not _again(outcome.failure, attempt - first_attempt + 1, setup.max_retries):
            break
        else:
            journal.note("retry", f"waiting {setup.retry_wait_s:g} s")
            time.sleep(setup.retry_wait_s)
        attempt += 1
    summary = _engine_summary(outcome)
    outcome.remarks += _closing_remarks(spec, setup, outcome, rows, gpus, summary)
    result = _result(spec, setup, outcome, findings, journal, attempt, began_wall_s, time.monotonic() - began_s)
    return TrialOutcome(result, summary, tuple(telemetry), outcome.dirty_devices)


def _journal(spec: TrialSpec, setup: TrialSetup, redactor: Redactor) -> Journal:
    """The trial's journal; where an attempt was cut short it says so, and what that one logged is redacted."""
    folder = setup.log_folder(spec.number)
    journal = Journal(folder, spec.number, redact=redactor.text)
    if journal.attempts_before:
        for log in folder.glob("*.log"):
            redactor.file(log)
        journal.note("cut short", f"attempt {journal.attempts_before} did not end as it should; once more")
    return journal


def _judged(
    spec: TrialSpec,
    outcome: AttemptOutcome,
    rows: Sequence[TelemetryRow],
    journal: Journal,
    attempt: int,
    usual: Mapping[str, float] | None,
) -> Findings:
    """What devices, host and rounds say of an attempt; the journal has the remarks on devices."""
    xids = () if outcome.telemetry is None else outcome.telemetry.xids or ()
    findings = judge(load_readings(rows, attempt), xids, usual=usual)
    for remark in findings.remarks:
        journal.note("device", remark)
    return _with_rounds(spec, findings, outcome, rows, usual)


def _with_rounds(
    spec: TrialSpec,
    findings: Findings,
    outcome: AttemptOutcome,
    rows: Sequence[TelemetryRow],
    usual: Mapping[str, float] | None,
) -> Findings:
    """The findings with those on each round, which get what devices and host said while they ran."""
    load = outcome.load
    if load is None:
        return findings
    late = [f"round {one.round + 1}: {reason}" for one in load.rounds for reason in one.disturbed]
    looked = [with_telemetry(one, rows, usual) for one in load.rounds]
    outcome.load = replace(load, rounds=tuple(one for one, _ in looked))
    if spec.kind is TrialKind.CALIBRATION:  # beyond the knee all may be late, and the knee says so
        return findings
    found = (*unexpected_hits(load.rounds), *cold_start(load.rounds))
    remarks = (*(remark for _, remark in looked if remark is not None), *found)
    return Findings((*findings.disturbances, *late), (*findings.remarks, *remarks))


def _engine_summary(outcome: AttemptOutcome) -> dict[str, float | None]:
    seen = summarize_engine([sample for sample in outcome.engine if sample.phase == Phase.LOAD])
    return asdict(seen if outcome.load is None else with_client_view(seen, outcome.load.pooled))


def _closing_remarks(
    spec: TrialSpec,
    setup: TrialSetup,
    outcome: AttemptOutcome,
    rows: Sequence[TelemetryRow],
    gpus: Gpus,
    summary: Mapping[str, float | None],
) -> Sequence[str]:
    """What a soak or a calibration has to say of its load, once no attempt follows."""
    if outcome.load is None:
        return ()
    if spec.kind is TrialKind.SOAK:
        return (soak_remark(rows, gpus.devices, summary),)
    if spec.kind is TrialKind.CALIBRATION and (knee := find_knee(outcome.load.rounds)):
        return describe(knee, setup.plan.rates, share=setup.knee_share)
    return ()


def _again(failure: Diagnosis | None, tries: int, max_retries: int) -> bool:
    return failure is not None and failure.policy is Policy.RETRY and tries <= max_retries


def _result(
    spec: TrialSpec,
    setup: TrialSetup,
    outcome: AttemptOutcome,
    findings: Findings,
    journal: Journal,
    attempts: int,
    began_wall_s: float,
    total_s: float,
) -> TrialResult:
    failure = None if outcome.failure is None else _failure(outcome.failure, outcome.exit_code, journal.redact)
    load = outcome.load
    if load is not None and load.stopped_because is not None:
        load = replace(load, stopped_because=journal.redact(load.stopped_because))
    return measured_result(
        spec,
        setup,
        load,
        failure=failure,
        infeasible=failure is not None and failure.policy == Policy.INFEASIBLE,
        engine=outcome.engine,
        engine_config=outcome.engine_config,
        events=tuple(journal.events),
        command=setup.command_line(spec.flags),
        attempts=attempts,
        started_wall_s=began_wall_s,
        startup_s=outcome.startup_s,
        total_s=total_s,
        remarks=(*outcome.remarks, *thin_remarks(spec, setup, load), *findings.remarks),
        disturbances=findings.disturbances,
    )


def _failure(diagnosis: Diagnosis, exit_code: int | None, redact: Callable[[str], str]) -> Failure:
    at_once = diagnosis.policy is Policy.STOP and diagnosis.stop_at_once
    return Failure(
        failure_class=str(diagnosis.failure_class),
        phase=str(diagnosis.phase),
        line=None if diagnosis.line is None else redact(diagnosis.line),
        advice=redact(diagnosis.advice),
        retryable=diagnosis.retryable,
        informative_for_search=diagnosis.informative_for_search,
        policy="stop_now" if at_once else str(diagnosis.policy),
        exit_code=exit_code,
    )
