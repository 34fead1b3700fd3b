"""The launches of a check: baseline and recommendation in turn, on fresh servers, each stored before the next begins.

No Ray in here: one launch at a time, by the one recipe of a trial. Which launch comes next follows from those that are
stored, so a check that was killed goes on where it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sweep.check.decide import BASELINE, RECOMMENDED
from sweep.check.subject import Subject, in_folder
from sweep.config import StudyConfig
from sweep.confirm import AfterSearch, Confirmed
from sweep.diagnosis import cause_of
from sweep.errors import HostError
from sweep.gpu import DeviceMemory, Gpus
from sweep.interrupts import Interrupts
from sweep.plan import NEEDS_A_PERSON
from sweep.planned import jury_of
from sweep.prepare import Prepared
from sweep.runner import TrialOutcome, run_trial, usual_of
from sweep.search_space import flags_key
from sweep.store import Store, read_trials
from sweep.study_folder import StudyFolder
from sweep.trial import Finished, Flags, TrialKind, TrialSpec, TrialStatus

_MARGIN = 1.1
# Above any score that may be a candidate's; only the order counts.
_BETTER = 0.5


@dataclass(slots=True)
class Session:
    """One check. `time_left_s` counts down, `say` hears what happens; `why_cut` is why it ended early, if it did."""

    subject: Subject
    folder: StudyFolder
    gpus: Gpus
    interrupts: Interrupts
    time_left_s: Callable[[], float]
    say: Callable[[str], None]
    why_cut: str | None = None

    def run(self) -> None:
        """Every launch that is still missing. What is measured is stored when this returns or raises."""
        prepared = in_folder(self.subject.prepared, self.folder.path)
        jury = jury_of(prepared)
        follow = AfterSearch(jury.rules, self.subject.baseline, jury)
        store = Store(
            prepared.setup.folder, prepared.schema, metadata=prepared.fingerprint.as_metadata(),
            redactor=prepared.redactor,
        )  # fmt: skip
        resting = self.gpus.baseline(self.gpus.devices if prepared.setup.uses_gpus else ())
        while self.why_cut is None:
            launches = self.launches()
            if (cut := self._cut(launches, prepared.config)) is not None:
                self.why_cut = cut
                return
            known = {**self._known(), **{one.number: one for one in launches}}
            spec = follow.next(max(known) + 1, known, None)
            if spec is None:
                return
            whose = (
                "the baseline" if flags_key(spec.flags) == flags_key(self.subject.baseline) else "the recommendation"
            )
            self.say(f"launch {spec.number - 1}, block {spec.block}: {whose}")
            store.check_room()  # what cannot be stored need not be measured
            outcome = self._measure(spec, prepared, resting)
            if outcome.dirty_devices and outcome.result.status is not TrialStatus.COMPLETE:
                failure = outcome.result.failure
                self.why_cut = f"a device is not free: {'' if failure is None else failure.line}"
                return
            with self.interrupts.held():
                store.append(outcome.result, engine_summary=outcome.engine_summary, telemetry=outcome.telemetry)
            self.say(f"  {_ended(outcome)}")

    def launches(self) -> list[Finished]:
        """Those that are stored, in the order of their numbers."""
        return [
            Finished.of(
                TrialSpec(one.number, one.kind, one.flags, block=one.block),
                one.status,
                None,
                one.metrics,
                one.failure,
                total_s=one.total_s,
                disturbed=bool(one.disturbances),
            )
            for one in read_trials(self.folder.path)
        ]

    def confirmed(self) -> Confirmed | None:
        """The verdict on the launches so far, by the study's own judge."""
        prepared = in_folder(self.subject.prepared, self.folder.path)
        return jury_of(prepared).confirmed({**self._known(), **{one.number: one for one in self.launches()}})

    def _known(self) -> Mapping[int, Finished]:
        """Baseline and recommendation as a search would have left them: what to launch, and nothing measured."""
        names = self.subject.prepared.setup.objective.metrics_needed()
        nothing: dict[str, float | None] = dict.fromkeys(names)
        return {
            number: Finished(number, kind, flags, TrialStatus.COMPLETE, score, metrics=nothing)
            for number, kind, flags, score in (
                (BASELINE, TrialKind.BASELINE, self.subject.baseline, 1.0),
                (RECOMMENDED, TrialKind.SEARCH, self.subject.recommended, _BETTER),
            )
        }

    def _measure(self, spec: TrialSpec, prepared: Prepared, resting: tuple[DeviceMemory, ...]) -> TrialOutcome:
        setup = prepared.setup
        with self._devices(spec.flags, prepared):
            return run_trial(
                spec,
                setup,
                redactor=prepared.redactor,
                gpus=self.gpus,
                resting=resting,
                usual=usual_of(self.subject.folder) if setup.uses_gpus else None,
            )

    @contextmanager
    def _devices(self, flags: Flags, prepared: Prepared) -> Iterator[None]:
        """As many of the visible devices as these flags need, as CUDA_VISIBLE_DEVICES; all of them in MIG mode."""
        if not prepared.setup.uses_gpus or not self.gpus.available:
            yield
            return
        before = os.environ.get("CUDA_VISIBLE_DEVICES")
        visible = self.gpus.visible(before)
        needed = prepared.config.gpus(flags)
        if len(visible) < needed:
            raise HostError(f"{needed} GPUs are needed, and {len(visible)} are visible here")
        names = [str(one.index) for one in visible] if before is None else before.split(",")
        if any(one.mig_index is not None for one in visible):
            yield
            return
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[:needed])
        try:
            yield
        finally:
            if before is None:
                del os.environ["CUDA_VISIBLE_DEVICES"]
            else:
                os.environ["CUDA_VISIBLE_DEVICES"] = before

    def _cut(self, launches: list[Finished], config: StudyConfig) -> str | None:
        """Why no further launch makes sense; None while one does."""
        whole = [one.total_s or 0.0 for one in launches if one.status is TrialStatus.COMPLETE]
        left_s, each_s = self.time_left_s(), max(whole, default=self.subject.launch_s or 0.0)
        if left_s <= 0 or each_s * _MARGIN > left_s:
            return "the time is out"
        last = launches[-config.study.stop_after_same_failure :]
        if launches and launches[-1].policy in NEEDS_A_PERSON:
            return launches[-1].line_of_cause()
        causes = {cause_of(one.failure_class, one.failure_line) for one in last if one.status is TrialStatus.FAILED}
        if (
            len(last) == config.study.stop_after_same_failure
            and len(causes) == 1
            and all(one.status is TrialStatus.FAILED for one in last)
        ):
            return f"{len(last)} launches in a row failed of one cause: {last[-1].line_of_cause()}"
        return None


def _ended(outcome: TrialOutcome) -> str:
    result = outcome.result
    if result.failure is not None:
        return f"{result.status}: {result.failure.failure_class}: {result.failure.line}"
    shown = [name for name in ("p95_ttft_ms", "p95_tpot_ms") if (result.metrics or {}).get(name) is not None]
    figures = ", ".join(f"{name} {(result.metrics or {})[name]:,.4g}" for name in shown)
    return "; ".join(filter(None, (f"measured in {result.total_s:.0f} s", figures, *result.disturbances)))


def clock(budget_s: float | None) -> Callable[[], float]:
    """Seconds left of a budget from now on; without end for None."""
    if budget_s is None:
        return lambda: float("inf")
    ends_s = time.monotonic() + budget_s
    return lambda: ends_s - time.monotonic()
