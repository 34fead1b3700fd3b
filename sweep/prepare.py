"""From a study file to everything a night needs, checked before anything is launched.

Whatever a user can get wrong is found here: paths, prompts, flags, constraints. One line says what, where, how to mend.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweep.config import Boolean, Choice, FloatRange, IntRange, StudyConfig
from sweep.errors import ConfigError, HostError
from sweep.fingerprint import Fingerprint, installed_version, take_fingerprint
from sweep.flags import Dialect, FlagValue, check_flags, discover
from sweep.gpu import Gpus
from sweep.loadgen import check_load_flags
from sweep.metric_table import LATENCIES, RATES, parse_metric
from sweep.metrics import samples_needed
from sweep.objective import Objective
from sweep.redact import Redactor
from sweep.runner import TrialSetup
from sweep.search_space import SearchSpace
from sweep.store import Schema, flag_type
from sweep.trial import Flag
from sweep.vllm_cpu import Installed, installed
from sweep.workload import (
    DEMO_FILE,
    Conversations,
    LoadPlan,
    Selection,
    SelectionRules,
    check_custom,
    check_sharegpt,
    plan_load,
    select,
    token_counter,
    window_warning,
)

_STATS = ("mean", "median", "std")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A study ready to run. `notices` are lines for the person."""

    config: StudyConfig
    setup: TrialSetup
    space: SearchSpace
    schema: Schema
    fingerprint: Fingerprint
    redactor: Redactor
    notices: tuple[str, ...]


def prepare(config: StudyConfig, study_path: Path, folder: Path, gpus: Gpus, *, salvage: bool = False) -> Prepared:
    """Check everything and put it together. `folder` is the study's; nothing is written there.

    Raises UserError (ConfigError, DatasetError, FlagError, HostError) for the first thing wrong.
    """
    notices: list[str] = []
    space = _space(config, study_path)
    _check_baseline(config, space, study_path)
    objective = _objective(config)
    notices.append(f"objective: {objective.describe()}")
    found = installed()
    server_command = config.serve.command or _default(found, "server_command")
    client_command = config.load.command or _default(found, "client_command")
    _check_computable(config, objective, study_path)
    _check_program(server_command, config.serve.env, "serve.command", study_path)
    _check_program(client_command, config.load.env, "load.command", study_path)
    dialect = _dialect(config, server_command, client_command, found)
    if dialect.notice:
        notices.append(dialect.notice)
    _check_flags(config, dialect)
    model = _model(config.model.path, study_path)
    tokenizer = _model(config.model.tokenizer or config.model.path, study_path)
    conversations = _conversations(config, study_path, salvage=salvage)
    selection = _select(config, conversations, tokenizer)
    notices += [conversations.describe(), selection.describe()]
    plan = plan_load(
        selection,
        warmup_prompts=config.load.warmup_prompts,
        num_prompts=config.load.num_prompts,
        request_rate=config.load.request_rate,
        burstiness=config.load.burstiness,
        seed=config.load_seed,
    )
    notices += _load_notices(config, plan, objective)
    setup = dataclasses.replace(
        _settings(config, study_path, folder, objective, plan),
        server_command=server_command,
        client_command=client_command,
        dialect=dialect,
        model=model,
        tokenizer=tokenizer,
    )
    redactor = Redactor({**os.environ, **config.serve.env, **config.load.env})
    fingerprint = _fingerprint(config, setup, conversations, found, redactor, gpus)
    schema = _schema(config, objective, setup.percentiles)
    return Prepared(config, setup, space, schema, fingerprint, redactor, tuple(notices))


def _check_computable(config: StudyConfig, objective: Objective, study_path: Path) -> None:
    """A reply of one token has no second one to wait for."""
    undefined = [n for n in objective.metrics_needed() if parse_metric(n).stem in ("tpot", "itl")]
    if config.load.output_tokens == 1 and undefined:
        raise ConfigError(
            f"replies of 1 token have no {undefined[0]}; raise it, or choose other metrics under objective",
            path=study_path,
            key="load.output_tokens",
        )


def _check_program(command: tuple[str, ...], env: Mapping[str, str], key: str, study_path: Path) -> None:
    """The first word must be a program that can be run; what follows is its own business."""
    if shutil.which(command[0], path=env.get("PATH") or os.environ.get("PATH")) is None:
        raise ConfigError(f"{command[0]!r} is no program on this machine", path=study_path, key=key)


def _objective(config: StudyConfig) -> Objective:
    asked = config.objective
    return Objective.of(asked.preset, asked.weights, asked.slo, asked.aggregate, asked.front)


def _settings(config: StudyConfig, study_path: Path, folder: Path, objective: Objective, plan: LoadPlan) -> TrialSetup:
    """What the study file says by itself; commands, model and tokenizer are looked up by the caller."""
    template = None if config.model.chat_template is None else _file(config.model.chat_template, study_path)
    return TrialSetup(
        folder=folder.absolute(),
        server_command=(),
        client_command=(),
        dialect=Dialect(None, None, None),
        model=config.model.path,
        served_name=config.served_name,
        tokenizer="",
        chat_template=None if template is None else str(template),
        content_format=config.model.chat_template_content_format,
        fixed_flags=config.serve.flags,
        server_env=config.serve.env,
        client_env=config.load.env,
        host=config.serve.host,
        startup_timeout_s=config.serve.startup_timeout_s,
        stop_timeout_s=config.serve.stop_timeout_s,
        clean_timeout_s=config.serve.clean_timeout_s,
        plan=plan,
        max_concurrency=config.load.max_concurrency,
        ignore_eos=config.load.ignore_eos,
        percentiles=tuple(sorted({*config.load.percentiles, *objective.percentiles_needed()})),
        request_timeout_s=config.load.request_timeout_s,
        min_success_share=config.load.min_success_share,
        client_flags=config.load.flags,
        objective=objective,
        uses_gpus=config.gpus(config.baseline_flags()) > 0,
        max_retries=config.study.max_retries,
        retry_wait_s=config.study.retry_wait_s,
    )


def _default(found: Installed | None, name: str) -> tuple[str, ...]:
    if found is None:
        raise HostError(
            "vLLM is not installed beside sweep: pip install '.[gpu]' (or '.[cpu]'), or name another environment's "
            "under serve.command and load.command"
        )
    command: tuple[str, ...] = getattr(found, name)
    return command


def _space(config: StudyConfig, study_path: Path) -> SearchSpace:
    try:
        return SearchSpace.from_config(config.search_space, config.serve.flags)
    except ConfigError as error:
        raise ConfigError(error.message, path=study_path, key=error.key) from None


def _check_baseline(config: StudyConfig, space: SearchSpace, study_path: Path) -> None:
    broken = space.violated(config.baseline_flags())
    if broken is not None:
        raise ConfigError(f"today's flags break the constraint {broken!r}", path=study_path, key="baseline")


def _dialect(config: StudyConfig, server: tuple[str, ...], client: tuple[str, ...], found: Installed | None) -> Dialect:
    ours = found is not None and config.serve.command is None and config.load.command is None
    env = {**os.environ, **config.serve.env}
    return discover(server, client, env=env, version=found.version if ours and found is not None else None)


def _check_flags(config: StudyConfig, dialect: Dialect) -> None:
    check_flags(config.serve.flags, dialect.server, what="serve.flags")
    check_flags(config.baseline, dialect.server, what="baseline")
    for name, spec in config.search_space.parameters.items():
        for value in _bounds(spec):
            check_flags({name: value}, dialect.server, what="search_space.parameters")
    check_flags(config.load.flags, dialect.client, what="load.flags")
    check_load_flags(config.load.flags, what="load.flags")


def _bounds(spec: IntRange | FloatRange | Choice | Boolean) -> tuple[Flag, ...]:
    """The values that stand for a range: all of a choice, both ends of an interval."""
    if isinstance(spec, Choice):
        return spec.values
    return (True, False) if isinstance(spec, Boolean) else (spec.low, spec.high)


def _model(name: str, study_path: Path) -> str:
    """A folder beside the study file or here, or a hub id as it stands."""
    for base in (study_path.parent, Path()):
        candidate = base / Path(name).expanduser()
        if candidate.is_dir():
            return str(candidate.resolve())
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ConfigError(f"no folder {name!r} beside the study file or here", path=study_path, key="model")
    return name


def _file(name: str, study_path: Path) -> Path:
    for base in (study_path.parent, Path()):
        candidate = base / Path(name).expanduser()
        if candidate.is_file():
            return candidate.resolve()
    raise ConfigError(f"no file {name!r} beside the study file or where the command is typed", path=study_path)


def _conversations(config: StudyConfig, study_path: Path, *, salvage: bool) -> Conversations:
    path = DEMO_FILE if config.load.path is None else _file(config.load.path, study_path)
    if config.load.dataset == "custom":
        return check_custom(path)
    return check_sharegpt(path, salvage=salvage or config.load.salvage)


def _select(config: StudyConfig, conversations: Conversations, tokenizer: str) -> Selection:
    load = config.load
    rules = SelectionRules(
        dataset=load.dataset,
        output_tokens=load.output_tokens,
        max_prompt_tokens=load.longest_prompt_tokens,
        max_model_len=min(_max_model_lens(config), default=None),
    )
    return select(
        conversations,
        rules,
        token_counter(tokenizer, trust_remote_code=config.serve.flags.get("trust-remote-code") is True),
        needed=load.num_prompts + load.warmup_prompts,
        seed=config.load_seed,
    )


def _max_model_lens(config: StudyConfig) -> list[int]:
    """Every one the study may serve with, its ends if it is a range; none where vLLM decides."""
    name = "max-model-len"
    spec = config.search_space.parameters.get(name)
    values = [config.serve.flags.get(name), config.baseline.get(name), *(_bounds(spec) if spec is not None else ())]
    return [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value > 0]


def _load_notices(config: StudyConfig, plan: LoadPlan, objective: Objective) -> list[str]:
    notices = []
    window = max(_max_model_lens(config), default=None)
    if window is not None and (warning := window_warning(plan, window)) is not None:
        notices.append(f"warning: {warning}")
    wanted = [p for p in map(parse_metric, objective.metrics_needed()) if p.percentile is not None]
    for percentile in sorted({p.percentile for p in wanted if p.percentile is not None}):
        needed = samples_needed(percentile)
        if config.load.num_prompts < needed:
            notices.append(
                f"warning: the objective uses p{percentile:g}, which {config.load.num_prompts} prompts do not carry; "
                f"load.num_prompts of {needed} and more do"
            )
    return notices


def _schema(config: StudyConfig, objective: Objective, percentiles: tuple[float, ...]) -> Schema:
    flags = {}
    for name, spec in config.search_space.parameters.items():
        kind: type = {"int": int, "float": float, "bool": bool}.get(spec.type, str)
        if spec.type == "choice":
            kind = flag_type(spec.values)
        flags[name] = flag_type([kind(), config.baseline.get(name)]) if config.baseline.get(name) is not None else kind
    stats = [*_STATS, *(f"p{p:g}" for p in percentiles)]
    names = [f"{stat}_{stem}_ms" for stem in LATENCIES for stat in stats]
    return Schema(flags, tuple(dict.fromkeys([*names, *RATES, *objective.metrics_needed()])), tuple(objective.slo))


def _fingerprint(
    config: StudyConfig,
    setup: TrialSetup,
    conversations: Conversations,
    found: Installed | None,
    redactor: Redactor,
    gpus: Gpus,
) -> Fingerprint:
    devices = gpus.visible(os.environ.get("CUDA_VISIBLE_DEVICES"))
    ours = config.serve.command is None
    skipped = {"command", "path", "salvage", "env", "percentiles", "min_success_share"}
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
    )
