"""What of a study can be found wrong before anything is launched: its flags, commands, baseline, objective.

Every error is a ConfigError with the key it is about; who reads the study file adds the line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from sweep.config import Boolean, Choice, FloatRange, IntRange, StudyConfig
from sweep.errors import ConfigError, FlagError, HostNotReady
from sweep.flags import Dialect, check_flags, render
from sweep.loadgen import check_load_flags
from sweep.metric_table import parse_metric
from sweep.objective import Objective
from sweep.runner import TrialSetup
from sweep.search_space import Parameter, Range, SearchSpace
from sweep.trial import Flag, TrialKind, TrialSpec


def check_computable(config: StudyConfig, objective: Objective) -> None:
    """A reply of one token has no second one to wait for."""
    undefined = [n for n in objective.metrics_needed() if parse_metric(n).stem in ("tpot", "itl")]
    if config.load.output_tokens == 1 and undefined:
        raise ConfigError(
            f"replies of 1 token have no {undefined[0]}; raise it, or choose other metrics under objective",
            key="load.output_tokens",
        )


def check_program(command: tuple[str, ...], env: Mapping[str, str], key: str) -> None:
    """The first word must be a program that can be run; what follows is its own business."""
    if shutil.which(command[0], path=env.get("PATH") or os.environ.get("PATH")) is None:
        raise ConfigError(f"{command[0]!r} is no program on this machine", key=key)


def check_host(host: str) -> None:
    """An address or name that can be listened on, as far as this machine can tell."""
    try:
        socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise ConfigError(
            f"{host!r} is no address or name that this machine knows; 127.0.0.1 is the usual one", key="serve.host"
        ) from None


def check_client_file(setup: TrialSetup) -> None:
    """The prompts can be written as this load client reads them; older ones know fewer formats."""
    with TemporaryDirectory() as folder, contextlib.suppress(OSError, HostNotReady):
        try:
            dataclasses.replace(setup, folder=Path(folder)).write_round(0, TrialSpec(0, TrialKind.BASELINE, {}))
        except FlagError as error:
            raise FlagError(error.message, key="load") from None


def check_baseline(config: StudyConfig, space: SearchSpace) -> None:
    """Today's flags keep the constraints."""
    try:
        broken = space.violated(config.baseline_flags())
    except ConfigError as error:  # a value of a kind that a constraint cannot compare
        raise ConfigError(error.message, key="baseline") from None
    if broken is not None:
        raise ConfigError(f"today's flags break the constraint {broken!r}", key="baseline")


def check_sampler(config: StudyConfig, space: SearchSpace) -> None:
    """The sampler can propose points of this space for this objective, and what it needs is installed."""
    name, front = config.study.sampler, bool(config.objective.front)
    key = "study.sampler"
    if name == "nsga2" and not front:
        raise ConfigError("nsga2 looks for a front: give objective.front two or three metrics, or take tpe", key=key)
    if name == "cmaes" and front:
        raise ConfigError("cmaes follows one score, not a front: take tpe, gp or nsga2", key=key)
    if name == "cmaes" and (odd := next((one.name for one in space.parameters if not _numeric(one)), None)):
        raise ConfigError(f"cmaes proposes numbers, and {odd} is a choice or may be null: take tpe or gp", key=key)
    if name == "grid" and space.size() is None:
        endless = next(one.name for one in space.parameters if one.size is None)
        raise ConfigError(f"a grid needs a step, and {endless} has none: give it one, or take tpe", key=key)
    if name == "gp" and importlib.util.find_spec("torch") is None:
        raise ConfigError(
            "gp needs torch, which vLLM brings along: install vLLM beside sweep (pip install '.[gpu]'), or take tpe",
            key=key,
        )


def _numeric(parameter: Parameter) -> bool:
    """Whether its values are numbers in an order, as `searcher.axes` has it."""
    if isinstance(parameter, Range):
        return not parameter.or_null
    numbers = [one for one in parameter.options if isinstance(one, (int, float)) and not isinstance(one, bool)]
    return len(numbers) == parameter.size and parameter.size != 2


def check_study_flags(config: StudyConfig, dialect: Dialect) -> None:
    """Every flag is one that server or client knows, can be typed, and is not set elsewhere."""
    check_flags(config.serve.flags, dialect.server, what="serve.flags")
    check_flags(config.baseline, dialect.server, what="baseline")
    for name, spec in config.search_space.parameters.items():
        for value in bounds(spec):
            check_flags({name: value}, dialect.server, what="search_space.parameters")
    check_flags(config.load.flags, dialect.client, what="load.flags")
    check_load_flags(config.load.flags, what="load.flags")
    for what, flags, help_ in (
        ("serve.flags", config.serve.flags, dialect.server),
        ("load.flags", config.load.flags, dialect.client),
    ):
        for name, given in flags.items():
            try:
                render({name: given}, help_)
            except FlagError as error:
                raise FlagError(error.message, key=f"{what}.{name}") from None


def bounds(spec: IntRange | FloatRange | Choice | Boolean) -> tuple[Flag, ...]:
    """The values that stand for a range: all of a choice, both ends of an interval."""
    if isinstance(spec, Choice):
        return spec.values
    return (True, False) if isinstance(spec, Boolean) else (spec.low, spec.high)
