"""`--dry-run`: what a study would do, without doing it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console

from sweep.calibrated import stored_knee
from sweep.earlier import earlier_trials
from sweep.errors import HostError
from sweep.estimate import Estimate, estimate
from sweep.gate import Outlook, Sums, learn, outlook
from sweep.knee import LOAD_IN_BURSTS, ROUNDS_AT_MOST
from sweep.loadgen import time_limit_s
from sweep.memory import Forecast, Unknown
from sweep.prepare import Prepared
from sweep.proposals import first_points
from sweep.runner import warm_up_limit_s
from sweep.searcher.proposer import Proposer
from sweep.trial import Finished, Flags, TrialKind, TrialStatus

_SHOWN = 3


def print_dry_run(prepared: Prepared, console: Console) -> None:
    """The first commands, the size of the space, and the longest a trial can take."""
    size, feasible = prepared.space.size(), prepared.space.feasible_size()
    counted = "endless: a range has no step" if size is None else f"{size:,} combination{'' if size == 1 else 's'}"
    if feasible is not None and size is not None and feasible != size:
        counted += f", {feasible:,} of them within the constraints"
    console.print(f"search space: {counted}; {prepared.config.study.trials} trials are asked for")
    for number, command in enumerate(_commands(prepared)):
        what = f"trial {number}, one that the search would start with" if number else "trial 0, the baseline"
        console.print(f"{what}:")
        console.print(f"  {command}")
    if (line := calibration_line(prepared)) is not None:
        console.print(line)
    for line in _outlook_lines(prepared):
        console.print(line)
    if prepared.stand_in is not None:
        console.print(f"every trial is {prepared.stand_in.described}, at once")
    else:
        if (expected := expected_trial(prepared)) is not None:
            console.print(expected_line(prepared, expected))
        console.print(_limits_line(prepared))
    console.print("nothing was launched")


def dry_run_json(prepared: Prepared) -> dict[str, Any]:
    """The same as one object for `--json`; `combinations` is None for an endless space or one too large to count."""
    expected = expected_trial(prepared)
    return {
        "study": prepared.config.study.name,
        "trials": prepared.config.study.trials,
        "combinations": prepared.space.feasible_size(),
        "commands": _commands(prepared),
        "longest_attempt_s": longest_attempt_s(prepared) if prepared.stand_in is None else 0.0,
        "longest_trial_s": longest_trial_s(prepared) if prepared.stand_in is None else 0.0,
        "expected_trial_s": None if expected is None else _expected_json(expected),
        "calibration": calibration_line(prepared),
        "gate": _outlook_json(prepared),
        "notices": list(prepared.notices),
    }


def _outlook(prepared: Prepared) -> Outlook | None:
    """What the gate expects, by what is stored already; None for a study without one."""
    if not prepared.config.study.gate:
        return None
    try:
        record = earlier_trials(prepared)
    except HostError:  # said where the record is looked at
        record = ()
    learned = learn(Sums(prepared.knowledge), record)
    return outlook(learned, prepared.space, prepared.config.baseline_flags(), seed=prepared.config.study.seed)


def _outlook_lines(prepared: Prepared) -> list[str]:
    found = _outlook(prepared)
    return ["no gate: study.gate is false"] if found is None else found.lines()


def _outlook_json(prepared: Prepared) -> dict[str, Any] | None:
    found = _outlook(prepared)
    if found is None:
        return None

    def forecast(one: Forecast | None) -> dict[str, Any] | None:
        return None if one is None else asdict(one)

    def corner(one: tuple[Flags, Forecast] | None) -> dict[str, Any] | None:
        return None if one is None else {"flags": dict(one[0]), "forecast": forecast(one[1])}

    return {
        "nothing_known": found.nothing,
        "baseline": forecast(found.baseline),
        "most_kv_cache": corner(found.most),
        "least_kv_cache": corner(found.least),
        "points_judged": found.judged,
        "refused_share": found.refused_share,
        "refused_by": dict(found.refused_by),
    }


def calibration_line(prepared: Prepared) -> str | None:
    """How many launches a calibration costs, and how much load; None where none is to come."""
    ladder, load = prepared.setup.calibration, prepared.config.load
    if ladder is None or stored_knee(prepared.setup.folder, prepared.config.baseline_flags()) is not None:
        return None
    count = len(ladder.rounds[0].prompts)
    line = (
        f"calibration: 1 more launch of the baseline before the search, {count} requests all at once and then at up to "
        f"{ROUNDS_AT_MOST - 1} rates around what that gives: in all about {LOAD_IN_BURSTS} times as long as the first "
        "round"
    )
    if load.request_rate == "auto":
        return f"{line}; it says what load.request_rate: auto is, and how long a trial then sends"
    rate = max((rate for rate in load.rates if rate is not None), default=None)
    if rate is None:
        return line
    about_s = LOAD_IN_BURSTS * count / rate
    return f"{line}, {about_s / 60:.0f} minutes if today's flags can just answer {rate:g} requests/s"


def expected_trial(prepared: Prepared) -> Estimate | None:
    """How long a trial of today's flags may take, by the model's size and the card; None where nothing tells."""
    cards = prepared.fingerprint.gpus or ()
    if prepared.stand_in is not None or prepared.rate_open or not prepared.setup.uses_gpus or not cards:
        return None
    found = estimate(prepared.setup, prepared.config.baseline_flags(), cards[0])
    return None if isinstance(found, Unknown) else found


def expected_line(prepared: Prepared, expected: Estimate) -> str:
    """The same in words, with what that makes of the whole search."""
    low, middle, high = (seconds / 60.0 for seconds in (expected.low_s, expected.expected_s, expected.high_s))
    trials = prepared.config.study.trials
    return (
        f"a trial of today's flags may take about {middle:.0f} minutes ({low:.0f} to {high:.0f}), {trials} of them "
        f"{middle * trials / 60.0:.1f} hours: simulated for {expected.hardware}, not measured"
    )


def _expected_json(expected: Estimate) -> dict[str, float | str | bool]:
    return {
        "low": expected.low_s,
        "expected": expected.expected_s,
        "high": expected.high_s,
        "simulated": True,
        "hardware": expected.hardware,
    }


def _commands(prepared: Prepared) -> list[str]:
    """Of the baseline and a few that the search would start with; none where nothing is launched."""
    if prepared.stand_in is not None:
        return []
    flags = [prepared.config.baseline_flags(), *_first_proposals(prepared)]
    return [prepared.redactor.text(prepared.setup.command_line(one)) for one in flags]


def _first_proposals(prepared: Prepared) -> list[Flags]:
    first = [point.flags for point in first_points(prepared)]
    proposer = Proposer(prepared.space, seed=prepared.config.study.seed, sampler="random", first=first)
    baseline = prepared.config.baseline_flags()
    proposer.hear(Finished(0, TrialKind.BASELINE, baseline, TrialStatus.COMPLETE, score=1.0))
    shown: list[Flags] = []
    for number in range(1, min(_SHOWN, prepared.config.study.trials)):
        flags = proposer.propose(number, shown)
        if flags is not None:
            shown.append(flags)
    return shown


def _limits_line(prepared: Prepared) -> str:
    attempt, trial = longest_attempt_s(prepared) / 60, longest_trial_s(prepared) / 60
    return (
        f"an attempt at a trial takes at most {attempt:,.0f} minutes, a trial with all {_attempts(prepared)} that it "
        f"may have {trial:,.0f}: every wait has a limit"
    )


def _attempts(prepared: Prepared) -> int:
    """As many as a trial can have: the first, its retries, and a disturbed measurement once more."""
    return 2 + prepared.setup.max_retries


def longest_attempt_s(prepared: Prepared) -> float:
    """The longest a single attempt can take, in seconds: the sum of the limits of all its waits."""
    setup = prepared.setup
    warmup = 0 if setup.plan.warmup is None else len(setup.plan.warmup.prompts)
    warmup_s = warm_up_limit_s(warmup, setup.request_timeout_s, max_concurrency=setup.max_concurrency)
    load_s = sum(
        time_limit_s(
            one,
            request_timeout_s=setup.request_timeout_s,
            max_concurrency=setup.max_concurrency,
            startup_allowance_s=setup.client_startup_timeout_s,
        )
        for one in setup.plan.rounds
    )
    return setup.clean_timeout_s + setup.startup_timeout_s + warmup_s + load_s + 2 * setup.stop_timeout_s


def longest_trial_s(prepared: Prepared) -> float:
    """The longest a trial can take, in seconds: all the attempts that it may have, and the waits between them."""
    setup = prepared.setup
    return _attempts(prepared) * longest_attempt_s(prepared) + setup.max_retries * setup.retry_wait_s
