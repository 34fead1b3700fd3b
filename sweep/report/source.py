"""Where a study's record lies and what it was asked for: a results folder, a study file or a name."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from sweep.config import ConfirmSection, ObjectiveSection, StudyConfig, load
from sweep.errors import HostError, UserError
from sweep.guide import PassedOver
from sweep.spent import gpu_hours, spent_lines
from sweep.store import StoredTrial, read_passed, read_trials
from sweep.study_folder import last_holder

_RESULTS = Path("results")
_SETTINGS = "study.json"
# Where a study's page lies in its folder.
PAGE = "report.html"
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Source:
    """A study's record. `objective` is that of the study file, None when it is not known, `seed` the study's,
    `rates` the several request rates of its load, if it has; `passed` are points that
    the search did not launch, or launched to check that; see `Report` for the rest."""

    study: str
    folder: Path
    trials: tuple[StoredTrial, ...]
    objective: ObjectiveSection | None
    confirm: ConfirmSection
    asked: int | None
    running: str | None
    notes: tuple[str, ...]
    passed: tuple[PassedOver, ...] = ()
    seed: int = 0
    rates: tuple[float | None, ...] = ()
    gpu_hours: float | None = None


def open_source(study: str) -> Source:
    """The record of `study`: the folder of its results, its study file, or its name under `results`. Writes nothing.

    From a study file come today's weights and SLOs, otherwise those of the last run. Raises UserError when there is no
    such study or its files cannot be used.
    """
    path = Path(study).expanduser()
    if path.is_file() and path.name != _SETTINGS:
        config = load(path)
        folder = results_of(study, config)
        found = _source(folder, config.objective, config.confirm, config.study.trials, (), config)
        return replace(found, seed=config.study.seed, rates=config.load.rates)
    path = folder_of(study)
    settings, notes = _settings(path)
    objective = _section(path, settings, "objective", ObjectiveSection)
    confirm = _section(path, settings, "confirm", ConfirmSection) or ConfirmSection()
    found = _source(path, objective, confirm, _of_study(settings, "trials"), notes, _config(settings))
    return replace(found, seed=_of_study(settings, "seed") or 0, rates=_rates(settings))


def results_of(study: str, config: StudyConfig) -> Path:
    """The folder of the results of the study file `study`, which says `config`.

    Raises UserError where there is none; of a study of groups, each of which has a folder of its own, it names those.
    """
    folder = config.study.folder / config.study.name
    if not _holds_study(folder):
        _refuse_groups(study, folder)
        raise UserError(f"{study}: nothing is stored of it yet; {folder} is where its results would be")
    return folder


def folder_of(study: str) -> Path:
    """The folder of results that `study` names: itself, its `study.json`, or its name under `results`.

    Raises UserError where there is none; in place of a folder of several studies it names theirs.
    """
    path = Path(study).expanduser()
    if path.name == _SETTINGS and path.is_file():
        path = path.parent
    if not path.is_dir():
        return _named(study)
    if not _holds_study(path):
        _refuse_groups(study, path)
        if inside := _studies_in(path):
            raise UserError(f"{study} holds no study itself; name one of {_listed(inside)}")
        raise UserError(f"{study} holds no study; name the folder of one, such as {_RESULTS}/NAME, or a study file")
    return path


def _source(
    folder: Path,
    objective: ObjectiveSection | None,
    confirm: ConfirmSection,
    asked: int | None,
    notes: tuple[str, ...],
    config: StudyConfig | None,
) -> Source:
    trials = read_trials(folder)
    running, more = _running(folder)
    spent = spent_lines(trials, (lambda _flags: 0) if config is None else config.gpus)
    try:
        passed = read_passed(folder)
    except HostError as error:
        passed, notes = (), (*notes, f"what the gate refused is left out: {error}")
    notes = (*notes, *more, *spent)
    hours = None if config is None else round(gpu_hours(trials, config.gpus), 4)
    return Source(
        folder.resolve().name, folder, trials, objective, confirm, asked, running, notes, passed, gpu_hours=hours
    )


def _holds_study(folder: Path) -> bool:
    return (folder / "trials").is_dir() or (folder / _SETTINGS).is_file()


def _studies_in(parent: Path) -> list[Path]:
    try:
        return sorted(entry for entry in parent.iterdir() if _holds_study(entry))
    except OSError:
        return []


def _refuse_groups(study: str, folder: Path) -> None:
    """Raise UserError where `folder`, which holds no study, is that of a study with `resources.group_by` whose groups
    of nodes have left theirs beside it."""
    beside = [one for one in _studies_in(folder.parent) if one.name.startswith(f"{folder.name}-")]
    if groups := [one for one in beside if _of_group(one)]:
        raise UserError(f"{study}: each group of nodes has a study of its own; name one of {_listed(groups)}")


def _of_group(folder: Path) -> bool:
    resources = _settings(folder)[0].get("resources")
    return isinstance(resources, dict) and resources.get("group_by") is not None


def _listed(folders: Sequence[Path]) -> str:
    return ", ".join(map(str, folders))


def _named(study: str) -> Path:
    folder = _RESULTS / study
    if "/" not in study and _holds_study(folder):
        return folder
    _refuse_groups(study, Path(study).expanduser() if "/" in study else folder)
    known = [entry.name for entry in _studies_in(_RESULTS)]
    near = difflib.get_close_matches(study, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}" if known else ""
    raise UserError(f"{study}: no folder of results, no study file, and no study of that name in {_RESULTS}{hint}")


def _settings(folder: Path) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The study as last run; empty with a note where the file is missing or damaged."""
    path = folder / _SETTINGS
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, (f"{path.name} is missing, so the study's own weights and SLOs are not known",)
    except (OSError, ValueError):
        found = None
    if isinstance(found, dict):
        return found, ()
    return {}, (f"{path.name} is damaged, so the study's own weights and SLOs are not known",)


def _section(folder: Path, settings: Mapping[str, Any], name: str, model: type[Model]) -> Model | None:
    if name not in settings:
        return None
    try:
        return model.model_validate(settings[name])
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join((name, *map(str, first["loc"])))
        raise UserError(
            f"{folder / _SETTINGS}: {where}: {first['msg']}; name the study file instead of its folder"
        ) from None


def _config(settings: Mapping[str, Any]) -> StudyConfig | None:
    """The whole study as last run, for what its trials took; None where today's sweep does not read it."""
    try:
        return StudyConfig.model_validate(settings, strict=False)
    except ValidationError:
        return None


def _of_study(settings: Mapping[str, Any], name: str) -> int | None:
    section = settings.get("study")
    number = section.get(name) if isinstance(section, dict) else None
    return number if isinstance(number, int) else None


def _rates(settings: Mapping[str, Any]) -> tuple[float | None, ...]:
    section = settings.get("load")
    rates = section.get("request_rate") if isinstance(section, dict) else None
    found = rates if isinstance(rates, list) else []
    return tuple(rate for rate in found if rate is None or isinstance(rate, (int, float)))


def _running(folder: Path) -> tuple[str | None, tuple[str, ...]]:
    holder, lives = last_holder(folder)
    if holder is None or lives is False:
        return None, ()
    if lives:
        return str(holder), ()
    return None, (f"the study was last run on {holder}; whether it still runs cannot be seen from here",)
