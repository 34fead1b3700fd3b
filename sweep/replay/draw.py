"""A trial out of a recording: one of the launches of its point, scored as if it had just been measured."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sweep.records import Event
from sweep.replay.recording import Rate, Recorded, Recording, read_recording
from sweep.runner import Measured, RoundReport, TrialOutcome, TrialSetup, measured_result, thin_remarks
from sweep.search_space import flags_key
from sweep.store import read_trials
from sweep.trial import Flags, Phase, TrialSpec, TrialStatus

WORD = "replayed"


@dataclass(slots=True)
class Replay:
    """Stands in for servers (see `sweep.runner.StandIn`): every trial is a launch of the recording in `folder`.

    Which one is drawn depends on `seed`, the point and how many trials of lower number had that point: all launches of
    a point are drawn in a random order before one comes again. Times are the recorded ones; nobody waits for them.
    `fixed`: flags that were recorded and that the study does not search.
    """

    folder: Path
    rates: tuple[Rate, ...]
    seed: int
    fixed: Flags = field(default_factory=dict)
    _recording: Recording | None = field(default=None, repr=False)

    @property
    def word(self) -> str:
        return WORD

    @property
    def described(self) -> str:
        found = self.recording
        return f"{WORD} from {found.folder.name} ({found.launches} launches of {len(found.points)} points)"

    @property
    def recording(self) -> Recording:
        """Read once a process. Raises HostError."""
        if self._recording is None:
            self._recording = read_recording(self.folder, self.rates)
        return self._recording

    def __getstate__(self) -> tuple[Path, tuple[Rate, ...], int, Flags]:
        return self.folder, self.rates, self.seed, dict(self.fixed)

    def __setstate__(self, state: tuple[Path, tuple[Rate, ...], int, Flags]) -> None:
        self.folder, self.rates, self.seed, self.fixed = state
        self._recording = None

    def run(
        self, spec: TrialSpec, setup: TrialSetup, *, after_round: Callable[[RoundReport], str | None] | None = None
    ) -> TrialOutcome:
        """The trial, at once. Raises ValueError for flags that were not recorded: the space holds no such point;
        HostError when the recording is gone."""
        setup.log_folder(spec.number).mkdir(parents=True, exist_ok=True)  # where verdicts of races lie
        before = [one.flags for one in read_trials(setup.folder) if one.number < spec.number]
        return self.replay(spec, setup, before, after_round=after_round)

    def replay(
        self,
        spec: TrialSpec,
        setup: TrialSetup,
        before: Iterable[Flags],
        *,
        after_round: Callable[[RoundReport], str | None] | None = None,
    ) -> TrialOutcome:
        """`run` where the flags of the trials of lower number are at hand."""
        key = flags_key(spec.flags)
        drawn, place = self.drawn(spec.flags, sum(flags_key(flags) == key for flags in before))
        return _outcome(spec, setup, drawn, place, self.described, after_round)

    def drawn(self, flags: Flags, times: int) -> tuple[Recorded, int]:
        """The launch for a point that was drawn `times` times before, and how often that launch was."""
        launches = self.recording.at({**self.fixed, **flags})
        if not launches:
            raise ValueError(f"not recorded: {dict(flags)}")
        cycle, place = divmod(times, len(launches))
        order = list(range(len(launches)))
        random.Random(f"{self.seed} {flags_key(launches[0].flags)} {cycle}").shuffle(order)
        return launches[order[place]], cycle


def _outcome(
    spec: TrialSpec,
    setup: TrialSetup,
    drawn: Recorded,
    cycle: int,
    described: str,
    after_round: Callable[[RoundReport], str | None] | None,
) -> TrialOutcome:
    trial = drawn.launch.trial
    load = None if drawn.failed else _load(spec, drawn, after_round)
    total_s = drawn.took_s(0 if load is None else len(load.rounds))
    remarks = [f"{described}: trial {trial.number} of the recording"]
    remarks += [f"that launch was drawn {cycle} times before"] if cycle else []
    result = measured_result(
        spec,
        setup,
        load,
        failure=trial.failure,
        infeasible=trial.status is TrialStatus.INFEASIBLE,
        engine_config=trial.engine_config,
        events=_events(drawn, load, total_s),
        command=f"({WORD}, not run) {trial.command}",
        attempts=trial.attempts,
        started_wall_s=time.time(),
        startup_s=trial.startup_s,
        total_s=total_s,
        remarks=(*remarks, *thin_remarks(spec, setup, load)),
        disturbances=() if load is None else trial.disturbances,
        stood_in=WORD,
    )
    return TrialOutcome(result, _summary(drawn, load), ())


def _load(spec: TrialSpec, drawn: Recorded, after_round: Callable[[RoundReport], str | None] | None) -> Measured:
    """The rounds one after the other, as far as they are let."""
    # Numbered anew: a replay at one of several rates has rounds of its own.
    rounds = tuple(dataclasses.replace(one, round=place) for place, one in enumerate(drawn.rounds))
    requests = tuple(
        tuple(dataclasses.replace(one, round=place) for one in part) for place, part in enumerate(drawn.requests)
    )
    for done in range(1, len(rounds)):
        if after_round is None:
            break
        last = rounds[done - 1]
        elapsed_s = last.began_at_s + last.duration_s
        report = RoundReport(spec.number, done - 1, len(rounds), requests[:done], rounds[:done], (), elapsed_s)
        if (why := after_round(report)) is not None:
            return Measured(requests[:done], rounds[:done], why)
    return Measured(requests, rounds)


def _summary(drawn: Recorded, load: Measured | None) -> dict[str, float | None]:
    """What the engine said in the rounds that were taken, as far as rounds tell. The rest is of all rounds of the
    launch, and bounds theirs from above."""
    recorded = dict(drawn.launch.trial.engine_summary)
    if load is None or len(load.rounds) == len(drawn.launch.rounds):
        return recorded
    for name in recorded:
        values = [getattr(one, name, None) for one in load.rounds]
        known = [value for value in values if value is not None]
        if len(known) == len(values) and known:
            recorded[name] = sum(known) if name == "preemptions" else max(known)
    return recorded


def _events(drawn: Recorded, load: Measured | None, total_s: float) -> tuple[Event, ...]:
    """The phases as far as the recorded times tell them, each marked."""
    startup_s, wall_s = drawn.launch.trial.startup_s, time.time()
    steps = [(0.0, Phase.START)]
    if load is not None:
        steps += [] if startup_s is None else [(startup_s, Phase.READY)]
        steps += [(load.rounds[0].began_at_s, Phase.LOAD)] if load.rounds else []
    steps.append((total_s, Phase.STOP))
    return tuple(Event(1, at_s, wall_s, "phase", str(phase), WORD) for at_s, phase in steps)
