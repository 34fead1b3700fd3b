"""From all the evidence to one diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from sweep.diagnosis.lines import Line
from sweep.diagnosis.reasons import CLIENT_CANNOT_RUN, CLIENT_KILLED, KILLED_BY_KERNEL, REASONS, SIGNALS, Reason
from sweep.diagnosis.resolve import Verdict, resolve
from sweep.diagnosis.rule import Tier
from sweep.diagnosis.scan import Match, Scan
from sweep.diagnosis.values import Diagnosis, Evidence, Phase, Policy, phase_of
from sweep.diagnosis.values import FailureClass as Class


@dataclass(frozen=True, slots=True)
class _Usual:
    """What a class means where nothing is said about it."""

    retryable: bool = False
    informative: bool = False
    at_once: bool = False


_TRANSIENT, _FLAGS, _AT_ONCE, _PLAIN = _Usual(True), _Usual(informative=True), _Usual(at_once=True), _Usual()
_USUAL: Mapping[Class, _Usual] = MappingProxyType(
    {
        Class.WEIGHTS_OOM: _FLAGS,
        Class.KV_CACHE_TOO_SMALL: _FLAGS,
        Class.STARTUP_OOM: _FLAGS,
        Class.LOAD_OOM: _FLAGS,
        Class.INVALID_FLAGS: _FLAGS,
        Class.UNSUPPORTED_BLOCK_SIZE: _FLAGS,
        Class.MEMORY_TAKEN_BY_OTHER: _TRANSIENT,
        Class.PORT_IN_USE: _TRANSIENT,
        Class.WORKER_INIT_FAILED: _TRANSIENT,
        Class.ENGINE_DIED: _TRANSIENT,
        Class.HEALTH_TIMEOUT: _TRANSIENT,
        Class.UNKNOWN: _TRANSIENT,
        Class.CLIENT_ERROR: _PLAIN,
        Class.OTHER: _PLAIN,
        Class.DATASET_MALFORMED: _AT_ONCE,
        Class.TOKENIZER_ERROR: _AT_ONCE,
        Class.DRIVER_ERROR: _AT_ONCE,
    }
)


_NO_DISK_GIB = 0.05
_NO_SHM_GIB = 0.004
_LAST_SIGNAL = 64


def diagnose(evidence: Evidence) -> Diagnosis:
    """The cause of a failure and its consequences, from the evidence of one attempt; reads the log once.

    Raises ValueError for a phase or reason that is not known.
    """
    phase = None if evidence.phase is None else phase_of(evidence.phase)
    if evidence.reason is not None and evidence.reason not in REASONS:
        raise ValueError(f"unknown reason {evidence.reason!r}")
    scan = Scan(phase)
    scan.read(evidence.log)
    if evidence.error and evidence.reason is None:
        scan.take(Line(evidence.error, source="tuner"))
    return _Decision(evidence, scan, phase).make()


@dataclass(frozen=True, slots=True)
class _Decision:
    """Weighs what the log, the exit code and our own checks say, strongest first."""

    evidence: Evidence
    scan: Scan
    phase: Phase | None

    def make(self) -> Diagnosis:
        reason = REASONS[self.evidence.reason] if self.evidence.reason else None
        if reason is not None and reason.certain:
            return self._of_reason(reason)
        if found := self._best(Tier.ROOT, Tier.CONSEQUENCE, Tier.GENERAL):
            return found
        if found := self._of_signal() or self._of_room():
            return found
        if reason is not None and self.evidence.reason == "timeout_ready":
            return self._of_reason(reason)
        if found := self._best(Tier.WORKER_WRAPPER, Tier.ENGINE_WRAPPER):
            return found
        if self.evidence.reason == "server_died" and reason is not None and self._serving():
            return self._of_reason(reason)
        if self.evidence.reason == "timeout_load" and reason is not None and self.scan.notes.crowded:
            return self._of_reason(reason)
        if found := self._of_own_end() or self._best(Tier.SYMPTOM, Tier.COUNT) or self._of_counts():
            return found
        if reason is not None and self.evidence.reason != "server_died":
            return self._of_reason(reason)
        return self._of_remarks() or self._unknown()

    def _best(self, *tiers: Tier) -> Diagnosis | None:
        match = next((self.scan.best[tier] for tier in tiers if tier in self.scan.best), None)
        if match is None:
            return None
        before = [m for m in (self.evidence.memory_before_gib, self.scan.notes.memory_before_gib) if m is not None]
        verdict = resolve(match, self.scan, max(before, default=None), self.evidence.memory_total_gib)
        return self._diagnosis(verdict, match)

    def _of_reason(self, reason: Reason) -> Diagnosis:
        failure_class, retryable, informative, advice = reason.failure_class, reason.retryable, None, reason.advice
        if self.evidence.reason == "timeout_load" and self.scan.notes.crowded:
            retryable, informative = False, True
            advice = "The server lives and cannot keep up: this configuration does not carry this load."
        if self.evidence.reason == "no_progress" and self.scan.notes.stalled:
            failure_class, advice = Class.ENGINE_DIED, "The engine hangs: requests run and no token comes. Tried again."
        return self._diagnosis(Verdict(failure_class, advice, retryable, informative), host=reason.host)

    def _of_signal(self) -> Diagnosis | None:
        """A process that was killed, unless we did it ourselves after a verdict of our own."""
        if self.evidence.reason not in (None, "server_died", "client_exit"):
            return None
        own, child = _signal(self.evidence.exit_code), _signal(self.scan.notes.exit_code)
        of_client = self.evidence.reason == "client_exit" or (not self.evidence.reason and self.phase is Phase.CLIENT)
        if own and of_client:
            if child is None:
                # The exit code is the client's; the server, which lives, has nothing to do with it.
                return replace(self._of_reason(CLIENT_CANNOT_RUN if own == 4 else CLIENT_KILLED), phase=Phase.CLIENT)
            own = None
        if self.phase is Phase.TEARDOWN or (own or child) not in SIGNALS:
            return None
        if child == 9 and not self._serving():
            return self._of_reason(KILLED_BY_KERNEL)
        wrapper = self._best(Tier.WORKER_WRAPPER, Tier.ENGINE_WRAPPER)
        reason = SIGNALS[own or child or 0]
        if wrapper is not None and reason.failure_class is Class.ENGINE_DIED:
            return wrapper  # says the same, with a line
        return self._of_reason(reason)

    def _of_room(self) -> Diagnosis | None:
        disk, shm = self.evidence.disk_free_gib, self.evidence.shm_free_gib
        if disk is not None and disk < _NO_DISK_GIB:
            return self._of_reason(REASONS["disk_full"])
        if shm is not None and shm < _NO_SHM_GIB and not self._serving():
            advice = "/dev/shm is full: remove what killed runs left there (nccl-*, psm_*), or give it more."
            return self._diagnosis(Verdict(Class.WORKER_INIT_FAILED, advice, retryable=False), host=True)
        return None

    def _of_own_end(self) -> Diagnosis | None:
        """Answers of 5xx and then a shutdown nobody asked for: what vLLM does when it finds its engine dead."""
        notes = self.scan.notes
        if not (self._serving() and notes.stopping and notes.failed_answers) or notes.told_to_stop:
            return None
        advice = "The server answered with errors and then shut itself down: cause not visible. Tried again."
        return self._diagnosis(Verdict(Class.ENGINE_DIED, advice), line=notes.failed_answers)

    def _of_counts(self) -> Diagnosis | None:
        """Requests that failed without a word, or that are missing from the count."""
        scan = self.scan
        lost = (
            scan.notes.succeeded is not None
            and scan.notes.total is not None
            and scan.notes.succeeded < scan.notes.total
        )
        if not lost and not scan.notes.failed:
            return None
        advice = "Requests failed and the client does not say why: the numbers of the others cannot be used."
        return self._diagnosis(Verdict(Class.CLIENT_ERROR, advice))

    def _of_remarks(self) -> Diagnosis | None:
        clean = self.evidence.exit_code in (None, 0)
        stopped = self.scan.notes.told_to_stop
        if self.phase is Phase.TEARDOWN or (self.phase is None and stopped and clean):
            return self._diagnosis(Verdict(Class.OTHER, "The normal end of a server that was told to stop."), keep=True)
        if stopped and self.phase in (Phase.LOAD, Phase.CLIENT):
            advice = (
                "The server was told to stop (SIGTERM), and not by this trial: somebody else ended it. Tried again."
            )
            return self._diagnosis(Verdict(Class.ENGINE_DIED, advice))
        if self.scan.notes.preemptions is not None and clean:
            advice = (
                "No failure: requests were preempted because the KV cache was full. The trial counts; more KV cache or "
                "fewer sequences would be faster."
            )
            verdict = Verdict(Class.OTHER, advice, informative=True)
            return self._diagnosis(verdict, keep=True, line=self.scan.notes.preemptions)
        return self._best(Tier.REMARK) if clean else None

    def _unknown(self) -> Diagnosis:
        code = self.evidence.exit_code
        ended = "" if code is None else f" The process ended with exit code {code}."
        first = self.scan.first_error
        if first is None and not code and not self.evidence.reason and not self.evidence.error:
            advice = f"No failure was found in this log; if there was one, its cause is unknown.{ended} Is it whole?"
            return replace(self._diagnosis(Verdict(Class.UNKNOWN, advice)), nothing_found=True)
        look = "Look at the log itself." if first is None else f"The first line logged as an error: {first[:200]}"
        advice = f"No known cause in the evidence: unknown.{ended} {look}"
        return self._diagnosis(Verdict(Class.UNKNOWN, advice))

    def _serving(self) -> bool:
        return self.phase in (Phase.LOAD, Phase.CLIENT) or self.scan.notes.serving

    def _diagnosis(
        self,
        verdict: Verdict,
        match: Match | None = None,
        *,
        host: bool = False,
        keep: bool = False,
        line: str | None = None,
    ) -> Diagnosis:
        usual = _USUAL[verdict.failure_class]
        informative = usual.informative if verdict.informative is None else verdict.informative
        retryable = usual.retryable and not informative if verdict.retryable is None else verdict.retryable
        at_once = usual.at_once
        if match is not None:
            host, keep, line = match.rule.host, match.rule.harmless, match.text
            at_once = at_once if match.rule.at_once is None else match.rule.at_once
        return Diagnosis(
            failure_class=verdict.failure_class,
            line=line,
            phase=self.phase or (match.phase if match is not None else self._inferred_phase()),
            retryable=retryable,
            informative_for_search=informative,
            policy=_policy(retryable, informative, host, keep),
            advice=verdict.advice,
            stop_at_once=at_once,
        )

    def _inferred_phase(self) -> Phase:
        if self.scan.notes.client:
            return Phase.CLIENT
        return Phase.LOAD if self.scan.notes.serving else Phase.STARTUP


def _signal(code: int | None) -> int | None:
    """The signal behind an exit code, in Python's (-9) or the shell's (137) way."""
    if code is None or 0 <= code <= 128:
        return None
    number = -code if code < 0 else code - 128
    return number if number <= _LAST_SIGNAL else None  # 255 is what exit(-1) leaves


def _policy(retryable: bool, informative: bool, host: bool, keep: bool) -> Policy:
    if keep:
        return Policy.KEEP
    if informative:
        return Policy.INFEASIBLE
    if host:
        return Policy.HOST
    return Policy.RETRY if retryable else Policy.STOP
