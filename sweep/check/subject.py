"""What is checked: a study's recommendation, its baseline, and what the study said of both."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from sweep.config import StudyConfig, load, located
from sweep.confirm import Confirmed, recommended
from sweep.earlier import earlier_trials
from sweep.errors import HostError, UserError
from sweep.fingerprint import Differences, Fingerprint
from sweep.gpu import Gpus
from sweep.planned import jury_of
from sweep.prepare import Prepared, prepare
from sweep.proposals import best_of_search
from sweep.recommend import Recommendation, Verdict
from sweep.redact import REDACTED
from sweep.report.source import folder_of, results_of
from sweep.search_space import flags_key
from sweep.trial import Finished, Flags, TrialKind, TrialStatus

_SETTINGS = "study.json"


@dataclass(frozen=True, slots=True)
class Launches:
    """How often each is launched, at least and at most; None as the study file has it."""

    least: int | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """A study whose recommendation is measured again. `prepared` is the study as this machine has it today, `folder`
    its results. `said` is what it recommended, with `then` where that was confirmed. `changed` is how the fingerprint
    of today differs from the study's: an upgrade is the reason to check. `launch_s` is how long such a launch took in
    the study, None where none was measured to its end.
    """

    prepared: Prepared
    folder: Path
    baseline: Flags
    said: Recommendation
    then: Confirmed | None
    changed: Differences
    launch_s: float | None = None

    @property
    def recommended(self) -> Flags:
        """The flags to check."""
        assert self.said.flags is not None  # see `open_subject`
        return self.said.flags


def open_subject(study: str, gpus: Gpus, launches: Launches) -> Subject:
    """The study of that file, folder or name, prepared on this machine. Writes nothing.

    Raises UserError where there is nothing to check: no record, no servers in it, today's flags kept, no prompts held
    out.
    """
    path, config, folder = _located(study)
    if config.study.engine != "vllm":
        raise UserError(f"{study}: study.engine is {config.study.engine}, and what no server ran recommends nothing")
    config = _with_launches(config, launches)
    with located(path):
        prepared = prepare(config, path, folder, gpus)
    if prepared.rate_open:
        raise UserError(f"{study}: load.request_rate is auto and its calibration is not stored: run the study first")
    if not prepared.setup.confirmation:
        raise UserError(f"{study}: load.held_out_share is 0, so that no prompts are left to check with")
    known = {one.number: one for one in earlier_trials(prepared)}
    if 0 not in known:
        raise UserError(f"{study}: nothing is measured of it in {folder}: run the study first")
    then = jury_of(prepared).confirmed(known)
    said = best_of_search(prepared, known) if then is None else recommended(then)
    if said.verdict is not Verdict.BETTER or said.flags is None:
        raise UserError(f"{study}: nothing to check, the study recommends no other flags ({said.sentence})")
    unknown = [name for name in said.flags if name not in prepared.schema.flags]
    if unknown:
        raise UserError(
            f"{study}: {unknown[0]} is no longer searched by the study file; name the folder {folder} instead"
        )
    changed = _changed(folder, prepared.fingerprint)
    return Subject(prepared, folder, known[0].flags, said, then, changed, _launch_s(known.values(), said.flags))


def _launch_s(known: Collection[Finished], recommended: Flags) -> float | None:
    """What a launch of the baseline or of the recommendation took in the study: the median."""
    ours = {flags_key(recommended), *(flags_key(one.flags) for one in known if one.number == 0)}
    whole = [
        one.total_s
        for one in known
        if one.status is TrialStatus.COMPLETE
        and one.total_s
        and one.kind not in (TrialKind.CALIBRATION, TrialKind.SOAK)
        and flags_key(one.flags) in ours
    ]
    return statistics.median(whole) if whole else None


def _located(study: str) -> tuple[Path, StudyConfig, Path]:
    """The study file (or the settings of the last run), what it says, and the folder of its results."""
    path = Path(study).expanduser()
    if path.is_file() and path.name != _SETTINGS:
        config = load(path)
        return path, config, results_of(study, config)
    folder = folder_of(study)
    settings = folder / _SETTINGS
    try:
        text = settings.read_text(encoding="utf-8")
        config = StudyConfig.model_validate_json(text)
    except (OSError, UnicodeDecodeError, ValidationError):
        raise UserError(f"{settings} cannot be used: name the study file instead of its folder") from None
    if REDACTED in text:
        name = "" if config.resources.group_by is None else f", with {config.study.name} as its study.name"
        raise UserError(f"{settings} holds no secrets, and the study needs some: name the study file instead{name}")
    return settings, config, folder


def _with_launches(config: StudyConfig, launches: Launches) -> StudyConfig:
    """One candidate, whatever the study confirmed, and as many blocks of prompts as launches are asked for."""
    confirm = config.confirm
    least = confirm.launches if launches.least is None else launches.least
    most = max(least, confirm.max_launches) if launches.most is None else launches.most
    if most < least:
        raise UserError(f"--max-launches: {most} is below the {least} launches there are at least")
    changes = {"candidates": 1, "launches": least, "max_launches": most, "soak": False}
    return config.model_copy(update={"confirm": confirm.model_copy(update=changes)})


def _changed(folder: Path, now: Fingerprint) -> Differences:
    path = folder / "fingerprint.json"
    try:
        then = Fingerprint.from_json(path.read_text())
    except OSError as error:
        raise HostError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError):
        return Differences(remarks=(f"{path.name} is damaged, so that nobody knows what has changed",))
    return then.differences(now)


def in_folder(prepared: Prepared, folder: Path) -> Prepared:
    """The same study with everything measured going to `folder`."""
    return dataclasses.replace(prepared, setup=dataclasses.replace(prepared.setup, folder=folder.absolute()))


def metrics_then(subject: Subject) -> Mapping[str, tuple[float, float]]:
    """What the study's confirmation measured: baseline and recommended flags, by metric; empty without one."""
    if subject.then is None:
        return {}
    return {line.name: (line.baseline.value, line.leader.value) for line in subject.then.verdict.metrics}
