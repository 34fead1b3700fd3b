"""From a study file to everything a night needs, checked before anything is launched.

Whatever a user can get wrong is found here: paths, prompts, flags, constraints. One line says what, where, how to mend.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweep.calibrated import auto_rate, calibration_lines
from sweep.checks import (
    bounds,
    check_baseline,
    check_client_file,
    check_computable,
    check_host,
    check_program,
    check_sampler,
    check_study_flags,
)
from sweep.config import StudyConfig, count_of, located
from sweep.errors import ConfigError, DatasetError, HostError, UserError
from sweep.fingerprint import Fingerprint, cached_model, installed_version, take_fingerprint
from sweep.flags import Dialect, FlagValue, discover
from sweep.gate import NOTHING, Knowledge, gather
from sweep.gpu import Gpus
from sweep.loads import Loads, load_notices, make_loads
from sweep.metrics import metric_names
from sweep.notify import check_notify
from sweep.objective import Objective
from sweep.places import find_file, find_folder, find_model, find_tokenizer
from sweep.redact import Redactor
from sweep.runner import StandIn, TrialSetup
from sweep.search_space import SearchSpace
from sweep.start_points import StartPoint, enqueued, warm_points
from sweep.store import Schema, flag_type
from sweep.vllm_cpu import Installed, installed
from sweep.workload import (
    DEMO_FILE,
    Conversations,
    SelectionRules,
    check_custom,
    check_sharegpt,
    refuse_output_length,
    token_counter,
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A study ready to run. `notices` are lines for the person. `rate_open`: the request rate is that of a calibration
    which is still to come; until then the load of `setup` goes out all at once (see `at_rate`). `stand_in`: what
    runs the trials in place of servers, None for a study that measures. `knowledge` is what the gate before a launch
    rests on. `first`: the points that the search begins with.
    """

    config: StudyConfig
    setup: TrialSetup
    space: SearchSpace
    schema: Schema
    fingerprint: Fingerprint
    redactor: Redactor
    notices: tuple[str, ...]
    rate_open: bool = False
    stand_in: StandIn | None = None
    knowledge: Knowledge = NOTHING
    first: tuple[StartPoint, ...] = ()


def prepare(config: StudyConfig, study_path: Path, folder: Path, gpus: Gpus, *, salvage: bool = False) -> Prepared:
    """Check everything and put it together. `folder` is the study's; nothing is written there.

    Raises UserError for the first thing wrong: ConfigError with file, line and key, DatasetError, HostError.
    """
    with located(study_path):
        return _prepare(config, study_path, folder, gpus, salvage=salvage)


def at_rate(prepared: Prepared, rate_per_s: float) -> Prepared:
    """The same study, now that `load.request_rate: auto` is known to stand for this rate."""
    setup = prepared.setup
    confirmation = tuple(plan.at(rate_per_s) for plan in setup.confirmation)
    return dataclasses.replace(
        prepared,
        setup=dataclasses.replace(setup, plan=setup.plan.at(rate_per_s), confirmation=confirmation),
        fingerprint=dataclasses.replace(prepared.fingerprint, request_rate_per_s=rate_per_s),
        rate_open=False,
    )


def _prepare(config: StudyConfig, study_path: Path, folder: Path, gpus: Gpus, *, salvage: bool) -> Prepared:
    notices: list[str] = []
    space = SearchSpace.from_config(config.search_space, config.serve.flags)
    check_baseline(config, space)
    check_sampler(config, space)
    first = enqueued(config, space)
    objective = objective_of(config)
    notices.append(f"objective: {objective.describe()}")
    found = installed()
    server_command = config.serve.command or _default(found, "server_command")
    client_command = config.load.command or _default(found, "client_command")
    check_computable(config, objective)
    check_program(server_command, config.serve.env, "serve.command")
    check_program(client_command, config.load.env, "load.command")
    check_host(config.serve.host)
    check_notify(config.notify)
    dialect = _dialect(config, server_command, client_command, found)
    if dialect.notice:
        notices.append(dialect.notice)
    check_study_flags(config, dialect)
    model = find_model(config.model.path, study_path, "model.path")
    tokenizer = find_tokenizer(config.model.tokenizer or config.model.path, study_path, _tokenizer_key(config))
    conversations = conversations_of(config, study_path, salvage=salvage)
    loads = loads_of(config, conversations, _token_counter(config, tokenizer))
    notices += [conversations.describe(), *(selection.describe() for selection in loads.selections)]
    if config.confirm.candidates and not config.load.held_out_share:
        notices.append("warning: load.held_out_share is 0, so that nothing is left to confirm the winner with")
    notices += load_notices(config.load, loads.plan, objective, max_model_lens(config))
    notices += calibration_lines(folder, config.load, config.baseline_flags())
    setup = dataclasses.replace(
        settings_of(config, study_path, folder, objective, loads),
        server_command=server_command,
        client_command=client_command,
        dialect=dialect,
        model=model,
        tokenizer=tokenizer,
    )
    check_client_file(setup)
    redactor = Redactor({**os.environ, **config.serve.env, **config.load.env})
    fingerprint = fingerprint_of(config, setup, conversations, found, redactor, gpus)
    schema = schema_of(config, objective, setup.percentiles)
    auto = config.load.request_rate == "auto"
    knowledge = _knowledge(config, setup, found, gpus)
    if config.study.gate and knowledge.nothing is not None:
        notices.append(f"gate: no flags are refused for the memory they need: {knowledge.nothing}")
    if config.study.warm_start is not None:
        other = find_folder(config.study.warm_start, study_path, "study.warm_start")
        warm, line = warm_points(other, space, config.baseline_flags(), fingerprint)
        first, notices = (*first, *warm), [*notices, line]
    said = tuple(notices)
    prepared = Prepared(
        config, setup, space, schema, fingerprint, redactor, said, rate_open=auto, knowledge=knowledge, first=first
    )
    rate_per_s = auto_rate(folder, config.load, config.baseline_flags())
    return prepared if rate_per_s is None else at_rate(prepared, rate_per_s)


def _knowledge(config: StudyConfig, setup: TrialSetup, found: Installed | None, gpus: Gpus) -> Knowledge:
    """What the gate may rest on: the devices that this process sees are those the trials get."""
    place = Path(setup.model)
    visible = gpus.visible(os.environ.get("CUDA_VISIBLE_DEVICES")) if gpus.available and setup.uses_gpus else ()
    return gather(
        own_command=config.serve.command is not None,
        build=None if found is None else found.device,
        model_folder=place if place.is_dir() else cached_model(setup.model),
        model_name=config.model.path,
        devices=visible,
        fixed=config.serve.flags,
        env={**os.environ, **config.serve.env},
    )


def objective_of(config: StudyConfig) -> Objective:
    asked = config.objective
    return Objective.of(asked.preset, asked.weights, asked.slo, asked.aggregate, asked.front, rates=config.load.rates)


def settings_of(config: StudyConfig, study_path: Path, folder: Path, objective: Objective, loads: Loads) -> TrialSetup:
    """What the study file says by itself; commands, model and tokenizer are looked up by the caller."""
    template = config.model.chat_template
    if template is not None:
        template = str(find_file(template, study_path, "model.chat_template"))
    return TrialSetup(
        folder=folder.absolute(),
        server_command=(),
        client_command=(),
        dialect=Dialect(None, None, None),
        model=config.model.path,
        served_name=config.served_name,
        tokenizer="",
        chat_template=template,
        content_format=config.model.chat_template_content_format,
        fixed_flags=config.serve.flags,
        server_env=config.serve.env,
        client_env=config.load.env,
        host=config.serve.host,
        startup_timeout_s=config.serve.startup_timeout_s,
        stop_timeout_s=config.serve.stop_timeout_s,
        clean_timeout_s=config.serve.clean_timeout_s,
        plan=loads.plan,
        confirmation=loads.confirmation,
        soak=loads.soak,
        calibration=loads.calibration,
        knee_share=config.load.knee_share if config.load.request_rate == "auto" else None,
        max_concurrency=config.load.max_concurrency,
        ignore_eos=config.load.ignore_eos,
        percentiles=tuple(sorted({*config.load.percentiles, *objective.percentiles_needed()})),
        request_timeout_s=config.load.request_timeout_s,
        min_success_share=config.load.min_success_share,
        max_lag_ms=config.load.max_lag_ms,
        client_startup_timeout_s=config.load.startup_timeout_s,
        client_flags=config.load.flags,
        objective=objective,
        uses_gpus=config.gpus(config.baseline_flags()) > 0,
        max_retries=config.study.max_retries,
        retry_wait_s=config.study.retry_wait_s,
        cpu_shares=(config.resources.concurrent_trials or 1) if config.resources.pin_cpus else None,
    )


def _default(found: Installed | None, name: str) -> tuple[str, ...]:
    if found is None:
        raise HostError(
            "vLLM is not installed beside sweep: pip install '.[gpu]' (or '.[cpu]'), or name another environment's "
            "under serve.command and load.command"
        )
    command: tuple[str, ...] = getattr(found, name)
    return command


def _dialect(config: StudyConfig, server: tuple[str, ...], client: tuple[str, ...], found: Installed | None) -> Dialect:
    ours = found is not None and config.serve.command is None and config.load.command is None
    env = {**os.environ, **config.serve.env}
    return discover(server, client, env=env, version=found.version if ours and found is not None else None)


def _tokenizer_key(config: StudyConfig) -> str:
    return "model.path" if config.model.tokenizer is None else "model.tokenizer"


def conversations_of(config: StudyConfig, study_path: Path, *, salvage: bool) -> Conversations:
    path = DEMO_FILE if config.load.path is None else _prompt_file(config.load.path, study_path)
    if config.load.dataset == "custom":
        if salvage:
            raise UserError(
                "--salvage is for ShareGPT files; each line of a custom file stands for itself: leave it out"
            )
        return check_custom(path)
    return check_sharegpt(path, salvage=salvage or config.load.salvage)


def _prompt_file(name: str, study_path: Path) -> Path:
    try:
        return find_file(name, study_path, "load.path")
    except ConfigError as error:
        # The files that ship with sweep name one that everybody fetches once.
        hint = "; README, 'The ShareGPT file', says where it comes from" if "sharegpt" in name.lower() else ""
        raise ConfigError(f"{error.message}{hint}", key="load.path") from None


def loads_of(config: StudyConfig, conversations: Conversations, counter: Callable[[str], int]) -> Loads:
    """The loads of a study; `counter` counts the tokens of a text. Raises DatasetError and ConfigError."""
    load = config.load
    rules = SelectionRules(
        dataset=load.dataset,
        output_tokens=load.output_tokens,
        max_prompt_tokens=load.longest_prompt_tokens,
        max_model_len=min(max_model_lens(config), default=None),
    )
    try:
        refuse_output_length(rules, conversations.path)
    except DatasetError as error:  # what the study file asks for, not what the prompt file has
        raise ConfigError(error.message, key="load.output_tokens") from None
    blocks = config.confirm.max_launches if config.confirm.candidates else 0
    seqs = {**config.serve.flags, **config.baseline}.get("max-num-seqs")
    batch = seqs if isinstance(seqs, int) and not isinstance(seqs, bool) else None
    return make_loads(load, conversations, rules, counter, seed=config.load_seed, blocks=blocks, batch=batch)


def _token_counter(config: StudyConfig, tokenizer: str) -> Callable[[str], int]:
    try:
        return token_counter(tokenizer, trust_remote_code=config.serve.flags.get("trust-remote-code") is True)
    except HostError as error:
        looked = "" if Path(tokenizer).is_dir() else "; there is no such folder beside the study file or here, either"
        raise ConfigError(f"{error}{looked}", key=_tokenizer_key(config)) from None


def max_model_lens(config: StudyConfig) -> list[int]:
    """Every one the study may serve with, its ends if it is a range; none where vLLM decides."""
    name = "max-model-len"
    spec = config.search_space.parameters.get(name)
    values = [config.serve.flags.get(name), config.baseline.get(name), *(bounds(spec) if spec is not None else ())]
    return [length for value in values if (length := count_of(value)) is not None and length > 0]


def schema_of(config: StudyConfig, objective: Objective, percentiles: tuple[float, ...]) -> Schema:
    flags = {}
    for name, spec in config.search_space.parameters.items():
        kind: type = {"int": int, "float": float, "bool": bool}.get(spec.type, str)
        if spec.type == "choice":
            kind = flag_type(spec.values)
        flags[name] = flag_type([kind(), config.baseline.get(name)]) if config.baseline.get(name) is not None else kind
    return Schema(
        flags, metric_names(percentiles, objective.rates, objective.metrics_needed()), tuple(objective.limits)
    )


def fingerprint_of(
    config: StudyConfig,
    setup: TrialSetup,
    conversations: Conversations,
    found: Installed | None,
    redactor: Redactor,
    gpus: Gpus,
) -> Fingerprint:
    devices = gpus.visible(os.environ.get("CUDA_VISIBLE_DEVICES"))
    ours = config.serve.command is None
    skipped = {"command", "path", "salvage", "env", "percentiles", "min_success_share", "max_lag_ms", "calibrate",
               "startup_timeout_s"}  # fmt: skip
    if config.load.request_rate != "auto":
        skipped.add("knee_share")
    load: Mapping[str, Any] = {k: v for k, v in config.load.model_dump(mode="json").items() if k not in skipped}
    fixed: dict[str, FlagValue] = {**config.serve.flags, "served-model-name": setup.served_name}
    return take_fingerprint(
        vllm=found.version if ours and found is not None else setup.dialect.version,
        torch=installed_version("torch") if ours else None,
        model=setup.model,
        tokenizer=setup.tokenizer,
        server_command=setup.server_command,
        fixed_flags=fixed,
        server_env=config.serve.env,
        load={**load, "seed": config.load_seed},
        dataset_sha256=conversations.sha256,
        redactor=redactor,
        gpus=[device.name or "unknown GPU" for device in devices] if gpus.available else [],
        driver=devices[0].driver_version if devices else None,
        cuda=devices[0].cuda_version if devices else None,
        chat_template=None if setup.chat_template is None else Path(setup.chat_template),
        pin_cpus=config.resources.pin_cpus,
    )
