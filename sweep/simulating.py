"""A study without servers, prepared: its own prompts and space, on cards that are named and not there."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from sweep.calibrated import auto_rate, calibration_lines
from sweep.checks import check_baseline, check_computable
from sweep.config import StudyConfig, located
from sweep.errors import ConfigError, HostError
from sweep.gpu import Gpus
from sweep.loads import load_notices
from sweep.memory import Unknown
from sweep.places import find_model
from sweep.prepare import (
    Prepared,
    at_rate,
    conversations_of,
    fingerprint_of,
    loads_of,
    max_model_lens,
    objective_of,
    schema_of,
    settings_of,
)
from sweep.redact import Redactor
from sweep.search_space import SearchSpace
from sweep.simulated import WORD, Simulated
from sweep.twin import card_of
from sweep.twin.cards import CARDS
from sweep.twinning.hardware import Hardware, hardware_of
from sweep.workload import token_counter

# Without a tokenizer: characters a token, as of English text.
_CHARACTERS = 4


def prepare_simulated(
    config: StudyConfig, study_path: Path, folder: Path, gpus: Gpus, *, salvage: bool = False
) -> Prepared:
    """A study of `engine: simulated`, checked as one on servers is, but for vLLM, the model's files and the devices.

    Raises UserError as `prepare` does, and where nothing tells how large the model is.
    """
    with located(study_path):
        return _prepare(config, study_path, folder, gpus, salvage=salvage)


def _prepare(config: StudyConfig, study_path: Path, folder: Path, gpus: Gpus, *, salvage: bool) -> Prepared:
    config = _alone(config)
    space = SearchSpace.from_config(config.search_space, config.serve.flags)
    check_baseline(config, space)
    objective = objective_of(config)
    check_computable(config, objective)
    model = _model(config, study_path)
    stand_in = Simulated(_hardware(config, model), config.study.seed)
    counter, how = _counter(config, model)
    conversations = conversations_of(config, study_path, salvage=salvage)
    loads = loads_of(config, conversations, counter)
    notices = [
        f"{WORD}: nothing is launched and nothing here is measured. Trials are {stand_in.described}, as its size and "
        "the card suggest: they show how a study goes, and nothing of any server",
        f"objective: {objective.describe()}",
        *how,
        conversations.describe(),
        *(selection.describe() for selection in loads.selections),
        *load_notices(config.load, loads.plan, objective, max_model_lens(config)),
        *calibration_lines(folder, config.load, config.baseline_flags()),
    ]
    setup = settings_of(config, study_path, folder, objective, loads)
    setup = dataclasses.replace(setup, model=model, uses_gpus=False)
    redactor = Redactor({**os.environ, **config.serve.env, **config.load.env})
    known = fingerprint_of(config, setup, conversations, None, redactor, gpus)
    cards = (stand_in.hardware.card.name,) * stand_in.hardware.cards
    # So marked that its trials are never taken for measured ones, nor go on in a study that measures.
    fingerprint = dataclasses.replace(known, vllm=f"{WORD}, no server", gpus=cards, driver=None, cuda=None)
    auto = config.load.request_rate == "auto"
    schema = schema_of(config, objective, setup.percentiles)
    prepared = Prepared(
        config, setup, space, schema, fingerprint, redactor, tuple(notices), rate_open=auto, stand_in=stand_in
    )
    rate_per_s = auto_rate(folder, config.load, config.baseline_flags())
    return prepared if rate_per_s is None else at_rate(prepared, rate_per_s)


def _alone(config: StudyConfig) -> StudyConfig:
    """What has no meaning where nothing is launched: devices, a soak, trials side by side."""
    resources = config.resources.model_copy(update={"gpus": 0, "concurrent_trials": 1})
    confirm = config.confirm.model_copy(update={"soak": False})
    return config.model_copy(update={"resources": resources, "confirm": confirm})


def _model(config: StudyConfig, study_path: Path) -> str:
    """The model's folder, or its name as written where there is none: it need not be here."""
    try:
        return find_model(config.model.path, study_path, "model.path")
    except ConfigError:
        return config.model.path


def _hardware(config: StudyConfig, model: str) -> Hardware:
    card = card_of(config.simulated.card)
    if card is None:
        known = ", ".join(one.name for one in CARDS)
        raise ConfigError(f"{config.simulated.card!r} is not in the table; there are {known}", key="simulated.card")
    found = hardware_of(model, config.serve.flags, card, billions=config.simulated.billions)
    if isinstance(found, Unknown):
        raise ConfigError(f"{found.reason}; say it in billions", key="simulated.billions")
    return found


def _counter(config: StudyConfig, model: str) -> tuple[Callable[[str], int], tuple[str, ...]]:
    """Counts tokens as the model's tokenizer does where that is at hand; and what to say where it is not."""
    name = config.model.tokenizer or model
    if Path(name).is_dir():
        try:
            return token_counter(name), ()
        except HostError:
            pass
    line = f"{WORD}: there is no tokenizer of {name} here, so a token is taken for {_CHARACTERS} characters"
    return lambda text: max(1, len(text) // _CHARACTERS), (line,)
