"""Whole studies that are hit: signals to the command and to its Ray worker, and one that is killed again and again."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_study
from fault_matrix import Row
from hits import PHASES, SIGNALS, aim, hit, lasting
from studies import Driver, Studies, kill_again_and_again, nothing_left

from sweep.store import StoredTrial, read_trials
from sweep.trial import TrialStatus

AT_ONCE = 4
SECONDS = 30.0  # after which nothing of ours may be left


def resume(home: Path, studies: Studies, *, trials: int, kills: int) -> int:
    """A study killed `kills` times beside one that was left alone. How many of its `kills` restarts had at their end,
    which for all but the last was the next kill, just what the other measured: all of it, and the same recommendation,
    in the last."""
    with ThreadPoolExecutor(2) as pool:
        whole_run = pool.submit(_end_of, home / "whole", studies, trials, 0)
        killed_run = pool.submit(_end_of, home / "killed", studies, trials, kills)
    whole, killed = whole_run.result(), killed_run.result()
    points = whole.points
    began = [cut == points[: len(cut)] for cut in killed.cuts[1:]]
    return sum(began) + (killed.points == points and killed.verdict == whole.verdict and len(points) == trials)


def signal_rows(home: Path, studies: Studies) -> list[Row]:
    """Each signal in each phase to the driver, each time of a study of its own, and to the worker of a trial."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        workers = [pool.submit(_worker_rows, home / f"worker-{phase}", studies, phase) for phase in PHASES]
        drivers = [
            pool.submit(_driver_row, home / f"driver-{phase}-{name}", studies, phase, name)
            for phase in PHASES
            for name in SIGNALS
        ]
    return [*(one.result() for one in drivers), *(row for rows in workers for row in rows.result())]


def _night(
    folder: Path, studies: Studies, fake: Mapping[str, Any], *options: str, trials: int, stop_timeout_s: float = 2.0
) -> Driver:
    """A study of the fake that has been started."""
    folder.mkdir()
    content = fake_study.study(
        folder, study={"trials": trials}, load={"num_prompts": 4}, serve={"stop_timeout_s": stop_timeout_s}
    )
    for section in ("serve", "load"):
        content[section]["env"]["FAKE_VLLM"] = json.dumps(fake)
    return studies.start(fake_study.write(folder / "night.yaml", content), folder / "results" / "night", *options)


def _driver_row(folder: Path, studies: Studies, phase: str, name: str) -> Row:
    """A study whose driver gets a signal in the first trial."""
    number = signal.Signals[name]
    killed = number is signal.SIGKILL
    driver = _night(folder, studies, lasting(phase, seconds=3.0), trials=2, stop_timeout_s=3.0)
    code: int | None = None
    gone: Callable[[], object] = driver.kill
    with contextlib.suppress(AssertionError):  # the study did not come to the phase, or did not end: a wrong cell
        gone = aim(driver.results, 0, phase).gone
        driver.send(number)
        code = driver.wait(SECONDS)
    left = _left(folder, gone)
    text = driver.text()
    stored = read_trials(driver.results)
    last = text.strip().splitlines()[-1] if text.strip() else ""
    said = killed or (last.startswith(f"sweep: stopped by {name};") and not any(_records(driver)))
    right = code == (-number if killed else 128 + number)
    return Row(
        fault=f"{name} to the driver",
        phase=phase,
        expected="stopped",
        found="stopped" if right else f"exit code {code}",
        policy="none",
        right_class=right,
        right_policy=said and "Traceback" not in text and [trial.number for trial in stored] in ([], [0]),
        attempts=1,
        orphans=left,
        lost_rows=max(0, text.count(" done: score") - len(stored)),
        wrong_winner=False,
        turnaround_s=None,
    )


def _worker_rows(folder: Path, studies: Studies, phase: str) -> list[Row]:
    """A study in which the worker of each trial but the baseline gets a signal; each trial must end complete."""
    fake = lasting(phase, seconds=0.6)
    driver = _night(folder, studies, fake, trials=len(SIGNALS) + 1, stop_timeout_s=0.6)
    left = []
    for number, name in enumerate(SIGNALS, start=1):
        gone: Callable[[], object] = driver.kill
        with contextlib.suppress(AssertionError, ProcessLookupError):
            gone = hit(driver.results, number, "worker", name, phase).gone
        left.append(_left(None, gone))
    code: int | None = None
    with contextlib.suppress(AssertionError):
        code = driver.wait(120.0)
    left[-1] += _left(folder, lambda: None)
    stored = {trial.number: trial for trial in read_trials(driver.results)}
    return [
        Row(
            fault=f"{name} to the worker",
            phase=phase,
            expected="complete",
            found="lost" if number not in stored else str(stored[number].status),
            policy="retry" if number in stored and stored[number].attempts > 1 else "none",
            right_class=code == 0 and number in stored and stored[number].status is TrialStatus.COMPLETE,
            right_policy="Traceback" not in driver.text() and number in stored and stored[number].attempts <= 2,
            attempts=stored[number].attempts if number in stored else 0,
            orphans=orphans,
            lost_rows=int(number not in stored),
            wrong_winner=False,
            turnaround_s=None,
        )
        for (number, name), orphans in zip(enumerate(SIGNALS, start=1), left, strict=True)
    ]


def _left(folder: Path | None, gone: Callable[[], object]) -> int:
    """How many are left: of what ran when the signal came, and of all that have `folder` on their command line."""
    try:
        gone()
        if folder is not None:
            nothing_left(folder, SECONDS)
    except AssertionError:
        return max(1, 0 if folder is None else len(fake_study.processes_with(str(folder))))
    return 0


def _records(driver: Driver) -> Sequence[Path]:
    return list((driver.results / "processes").iterdir())


@dataclass(frozen=True, slots=True)
class _End:
    """What a study measured, after each kill and at its end, and what it recommends."""

    points: list[tuple[object, ...]]
    cuts: list[list[tuple[object, ...]]]
    verdict: tuple[object, ...]


def _end_of(folder: Path, studies: Studies, trials: int, kills: int) -> _End:
    """A study that is killed so often."""
    fake = {
        "exact": {"ttft_ms": 50, "itl_ms": 5},
        "ttft_ms": 0.2,
        "itl_ms": 0.02,
        "rules": [{"if": {"max-num-seqs": [">", 200]}, "then": {"log": "@no_kv", "exit_code": 1}}],
    }
    folder.mkdir()
    content = fake_study.study(folder, fake=fake, study={"trials": trials}, load={"num_prompts": 4})
    study, results = fake_study.write(folder / "night.yaml", content), folder / "results" / "night"
    cuts = kill_again_and_again(studies, study, results, trials=trials, kills=kills, seed=5)
    driver = studies.start(study, results, "--json")
    driver.wait(600.0)
    nothing_left(folder)
    verdict = json.loads(driver.text().strip().splitlines()[-1])
    return _End(
        [_point(one) for one in read_trials(results)],
        [[_point(one) for one in cut] for cut in cuts],
        (verdict["trial"], verdict["score"]),
    )


def _point(trial: StoredTrial) -> tuple[object, ...]:
    return trial.number, tuple(trial.flags.items()), trial.status, trial.score
