"""What earlier runs of a study stored, as the search of today sees it, and whether today's study file goes with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sweep.errors import ConfigError
from sweep.known import known_trials
from sweep.measured import lacking
from sweep.plan import NEEDS_A_PERSON
from sweep.prepare import Prepared
from sweep.search_space import flags_key
from sweep.store import StoredTrial, read_trials, set_aside_trial
from sweep.store.read import DamagedFile
from sweep.study_folder import StudyFolder
from sweep.trial import CUT, SEARCHING, Finished, Flags, TrialKind


def earlier_trials(prepared: Prepared) -> tuple[Finished, ...]:
    """The stored trials, scored by today's weights and SLOs (see `sweep.known`).

    What was not stored because nothing asked for it then is computed from the stored requests. Raises HostError when
    these cannot be read.
    """
    folder, objective = prepared.setup.folder, prepared.setup.objective
    stored = read_trials(folder)
    return tuple(known_trials(stored, objective, lacking(folder, stored, objective)).values())


def check_record(prepared: Prepared) -> Iterator[str]:
    """What the fingerprint does not see of a study that goes on: today's flags and the names that are searched.

    Whoever types the command once more has mended what needed a person: a baseline that failed and trials that stopped
    the study are set aside and measured again, and so are those that the end of the time cut. Scores are ratios to
    trial 0, so one that was measured must be that of today's flags. Yields a line for each trial that is set aside.
    Raises ConfigError.
    """
    folder = prepared.setup.folder
    stored = read_trials(folder)
    again = _measured_again(stored, prepared.config.baseline_flags())
    for number, why in again.items():
        set_aside_trial(folder, number, "")
        yield f"trial {number} {why}; set aside to be measured again"
    _refuse_other_flags(prepared, [one for one in stored if one.number not in again])


def look_at_record(prepared: Prepared) -> Iterator[str]:
    """`check_record` and the folder's `adopt` with nothing touched: the same refusals, and what would be set aside."""
    folder = prepared.setup.folder
    StudyFolder.look(folder)
    try:
        stored = read_trials(folder)
    except DamagedFile as error:
        yield f"what is stored cannot be compared: {error}"
        return
    again = _measured_again(stored, prepared.config.baseline_flags())
    for number, why in again.items():
        yield f"trial {number} {why}; it would be set aside and measured again"
    kept = [one for one in stored if one.number not in again]
    _refuse_other_flags(prepared, kept)
    if kept:
        searched = sum(one.kind in SEARCHING for one in kept)
        yield from StudyFolder.compare(folder, prepared.fingerprint)
        yield f"going on: {searched} of {prepared.config.study.trials} trials are stored in {folder}"


def _measured_again(stored: Sequence[StoredTrial], baseline: Flags) -> dict[int, str]:
    """The trials that do not count when the command is typed again, and why."""
    again = {}
    begun = any(one.number == 0 and one.failure is None for one in stored)
    for one in stored:
        calibrates = one.kind is TrialKind.CALIBRATION and not begun
        if calibrates and flags_key(one.flags) != flags_key(baseline):
            again[one.number] = "calibrates other flags than those of today's baseline"
            continue
        first = one.number == 0 or calibrates
        if one.failure is not None and (first or one.failure.policy in (*NEEDS_A_PERSON, CUT)):
            cut = one.failure.policy == CUT
            again[one.number] = "was cut" if cut else f"failed ({one.failure.failure_class})"
    return again


def _refuse_other_flags(prepared: Prepared, stored: Sequence[StoredTrial]) -> None:
    folder = prepared.setup.folder
    baseline = next((one for one in stored if one.number == 0), None)
    today = prepared.config.baseline_flags()
    for one in reversed(stored):
        gone = [n for n, value in one.flags.items() if n not in today and value is not None]
        if gone:
            raise ConfigError(
                f"{gone[0]} is no longer searched, but trial {one.number} of {folder} sets it. "
                "Put it back (with one value, if you like), or take another study name",
                key="search_space",
            )
    known = {} if baseline is None else baseline.flags
    changed = [n for n, value in today.items() if baseline and not same_flag(value, known.get(n))]
    if changed:
        was = ", ".join(f"{n}: was {known.get(n)}, is now {today[n]}" for n in changed)
        raise ConfigError(
            f"{was}; every score of {folder} is a ratio to the flags of trial 0. "
            "Put it back, or take another study name",
            key="baseline",
        )


def same_flag(one: object, other: object) -> bool:
    """Whether two values of a flag are the same on a command line: 1 is not true, but 8 is 8.0."""
    return isinstance(one, bool) is isinstance(other, bool) and one == other
