"""What the live view shows, as plain values: computed here, drawn in `sweep.console.draw`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweep.console.words import score_text
from sweep.journal import Progress
from sweep.metrics import enough_samples
from sweep.recommend import recommend
from sweep.trial import SEARCHING, Finished, Flags, Phase, TrialKind, TrialSpec, TrialStatus

if TYPE_CHECKING:  # a report, which also prints with this package, asks no device
    from sweep.gpu import DeviceReading

_P95 = 95.0
P95 = ("p95_ttft_ms", "p95_tpot_ms")


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the live view looks, each asked at every look. `left_s`: seconds to the end of the search, and from there
    to the end, None before anything is known. `devices`: one reading a device, none without. `redact` is for lines
    of a running server's log; `requests` are those of a whole load, None where that is not known.
    """

    finished: Callable[[], Sequence[Finished]]
    left_s: Callable[[], tuple[float, float] | None]
    devices: Callable[[], Sequence[DeviceReading]] = lambda: ()
    redact: Callable[[str], str] = str
    startup_timeout_s: float | None = None
    requests: int | None = None


@dataclass(frozen=True, slots=True)
class EndedTrial:
    """A trial that ended. `gap`: its score against the best one of its time, None without a score."""

    number: int
    kind: TrialKind
    how: str
    score: float | None
    is_best: bool
    p95_ms: tuple[float | None, ...]
    flags: Flags


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """A trial that runs. `p95_ms` pool the requests of the rounds that ended, None before one has; `for_s` is the time
    in its phase. `waits` says what it waits for, in words; `few`: too few requests stand behind the p95 so far.
    """

    number: int
    kind: TrialKind
    phase: str
    for_s: float | None
    attempt: int
    done: int | None
    total: int | None
    p95_ms: tuple[float | None, ...]
    waits: str
    flags: Flags
    few: bool = False


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything on the screen. `best_so_far` has one entry for each scored trial of the search, in the order they
    ended. `incumbent` is the trial that the running ones are held against. `few`: a whole load has too few requests
    for a p95.
    """

    ended: int
    asked: int
    sentence: str
    best_so_far: tuple[float, ...]
    last: tuple[EndedTrial, ...]
    incumbent: int | None
    incumbent_p95_ms: tuple[float | None, ...]
    running: tuple[RunningTrial, ...]
    left_s: tuple[float, float] | None
    devices: tuple[DeviceReading, ...]
    few: bool = False


def make_scene(
    finished: Sequence[Finished],
    running: Sequence[tuple[TrialSpec, Progress | None, str]],
    *,
    asked: int,
    left_s: tuple[float, float] | None,
    devices: Sequence[DeviceReading] = (),
    now_wall_s: float,
    startup_timeout_s: float | None = None,
    requests: int | None = None,
    most: int = 8,
) -> Scene:
    """The scene of a moment. `running` are the live trials with what their workers last said and the last line of the
    server's log; `most` is how many of the ended ones are shown, `requests` how many a whole load has.
    """
    best = recommend(finished)
    incumbent = next((one for one in finished if one.number == best.number), None)
    return Scene(
        ended=sum(one.kind in SEARCHING for one in finished),
        asked=asked,
        sentence=best.sentence if finished else "Measuring the baseline.",
        best_so_far=best_so_far(finished),
        last=tuple(_ended(one, best.number) for one in finished[len(finished) - min(most, len(finished)) :]),
        incumbent=None if incumbent is None else incumbent.number,
        incumbent_p95_ms=_p95(incumbent),
        running=tuple(
            _running(spec, progress, line, now_wall_s, startup_timeout_s) for spec, progress, line in running
        ),
        left_s=left_s,
        devices=tuple(devices),
        few=requests is not None and not enough_samples(_P95, requests),
    )


def best_so_far(finished: Sequence[Finished]) -> tuple[float, ...]:
    """The best score after each trial of the search that may win and has one, in the order they ended."""
    best: list[float] = []
    for one in finished:
        kept = all(excess <= 0 for excess in one.violations.values()) or one.kind is TrialKind.BASELINE
        may_win = one.kind in SEARCHING and one.status is TrialStatus.COMPLETE and not one.disturbed and kept
        if may_win and one.score is not None:
            best.append(min(one.score, best[-1]) if best else one.score)
    return tuple(best)


def _ended(one: Finished, best: int | None) -> EndedTrial:
    return EndedTrial(one.number, one.kind, score_text(one), one.score, one.number == best, _p95(one), one.flags)


def _p95(one: Finished | None) -> tuple[float | None, ...]:
    metrics = {} if one is None or one.metrics is None else one.metrics
    return tuple(metrics.get(name) for name in P95)


def _running(
    spec: TrialSpec, progress: Progress | None, line: str, now_wall_s: float, startup_timeout_s: float | None
) -> RunningTrial:
    if progress is None:
        waits = "a worker of Ray"
        return RunningTrial(spec.number, spec.kind, "queued", None, 1, None, None, (None, None), waits, spec.flags)
    for_s = max(0.0, now_wall_s - progress.since_wall_s)
    return RunningTrial(
        spec.number,
        spec.kind,
        progress.phase,
        for_s,
        progress.attempt,
        progress.done,
        progress.total,
        (progress.p95_ttft_ms, progress.p95_tpot_ms),
        _waits(progress, line, startup_timeout_s),
        spec.flags,
        few=not enough_samples(_P95, progress.done or 0),
    )


def _waits(progress: Progress, line: str, startup_timeout_s: float | None) -> str:
    if progress.phase == Phase.HOST:
        return "devices to be free of other processes and their memory"
    if progress.phase == Phase.START:
        limit = "" if startup_timeout_s is None else f" (at most {startup_timeout_s:.0f} s)"
        return f"its server{limit}{': ' + line if line else ''}"
    if progress.phase == Phase.WARMUP:
        return "the warm-up"
    if progress.phase == Phase.LOAD and progress.total is None:
        return "the calibration's rates, one after the other"
    if progress.phase == Phase.LOAD:
        first = " (the load client starts)" if not progress.done else ""
        return f"{(progress.total or 0) - (progress.done or 0)} answers{first}"
    return "its server to end" if progress.phase == Phase.STOP else "the engine's first answer"
