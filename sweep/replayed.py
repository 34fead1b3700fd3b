"""A study on a recording, prepared: its space is what was recorded, its load what was sent then."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from pathlib import Path

from sweep.checks import check_baseline
from sweep.config import StudyConfig, located
from sweep.errors import ConfigError, HostError
from sweep.fingerprint import Fingerprint
from sweep.gate import NOTHING, Knowledge
from sweep.loads import Loads
from sweep.places import find_folder
from sweep.prepare import Prepared, objective_of, schema_of, settings_of
from sweep.redact import Redactor
from sweep.replay import Recording, Replay, read_recording
from sweep.search_space import Options, Parameter, SearchSpace, flags_key
from sweep.trial import Flag, Flags
from sweep.workload import LoadPlan, Prompt, Round


def prepare_replay(config: StudyConfig, study_path: Path, folder: Path) -> Prepared:
    """A study of `engine: replay`, checked. `folder` is the study's; nothing is written there.

    Its space holds the recorded points that the study file's ranges and constraints allow, and no other. Of `load`
    only `request_rate` and `percentiles` count, since the rest was settled when the recording was made. Raises
    UserError for what cannot be replayed: a baseline, a rate or a flag that was not recorded.
    """
    with located(study_path):
        return _prepare(config, study_path, folder)


def _prepare(config: StudyConfig, study_path: Path, folder: Path) -> Prepared:
    assert config.replay.path is not None  # the study file was checked
    if config.load.calibrate:
        raise ConfigError("a recording has the rates it was made with; set it to false", key="load.calibrate")
    place = find_folder(config.replay.path, study_path, "replay.path")
    rates = config.load.rates if "request_rate" in config.load.model_fields_set else ()
    recording = read_recording(place, rates)
    space = _space(config, recording)
    config = _alone(config)
    check_baseline(config, space)
    objective = objective_of(config)
    plan = load_of(recording)
    blocks = (plan,) if config.confirm.candidates else ()
    setup = settings_of(config, study_path, folder, objective, Loads(plan, blocks, ()))
    fingerprint = _fingerprint(recording)
    knowledge = _knowledge(config, recording, fingerprint)
    setup = dataclasses.replace(setup, model=fingerprint.model or setup.model, uses_gpus=bool(fingerprint.gpus))
    stand_in = Replay(place, recording.rates, config.study.seed, _fixed(recording, space))
    return Prepared(
        config,
        setup,
        space,
        schema_of(config, objective, setup.percentiles),
        fingerprint,
        Redactor(dict(os.environ)),
        tuple(_notices(config, recording, space, stand_in)),
        stand_in=stand_in,
        knowledge=knowledge,
    )


def _alone(config: StudyConfig) -> StudyConfig:
    """What has no meaning where nothing is launched: devices, a soak, trials side by side."""
    resources = type(config.resources)(gpus=0, concurrent_trials=1)
    confirm = config.confirm.model_copy(update={"soak": False})
    return config.model_copy(update={"resources": resources, "confirm": confirm})


def _space(config: StudyConfig, recording: Recording) -> SearchSpace:
    """The recorded points within the study's ranges. Raises ConfigError where there are none."""
    asked = SearchSpace.from_config(config.search_space, config.serve.flags)
    points = [_searched(flags, asked, config) for flags in recording.all_flags]
    inside = [point for point in points if point is not None and asked.violated(point) is None]
    if not inside:
        raise ConfigError(
            f"none of the {len(points)} recorded points lies in these ranges; recorded: {_ranges(recording)}",
            key="search_space.parameters",
        )
    parameters: list[Parameter] = []
    for name in asked.names:
        values = dict.fromkeys(point[name] for point in inside)
        parameters.append(Options(name, tuple(sorted(values, key=_order))))
    only = frozenset(flags_key(point) for point in inside)
    return dataclasses.replace(asked, parameters=tuple(parameters), only=only)


def _searched(flags: Flags, asked: SearchSpace, config: StudyConfig) -> dict[str, Flag] | None:
    """A recorded point in the terms of the study; None for one outside its ranges or with other fixed flags."""
    for name, value in flags.items():
        if name not in asked.names and config.serve.flags.get(name) != value:
            return None
    point = {name: flags.get(name) for name in asked.names}
    return point if set(asked.names) <= set(flags) and asked.contains(point) else None


def _fixed(recording: Recording, space: SearchSpace) -> Flags:
    """The recorded flags that the study does not search, as its fixed flags have them."""
    names = dict.fromkeys(name for flags in recording.all_flags for name in flags)
    known = ((name, flags[name]) for name in names for flags in recording.all_flags if name in flags)
    return {name: value for name, value in known if name not in space.names and space.fixed.get(name) == value}


def _order(value: Flag) -> tuple[bool, bool, float, str]:
    number = isinstance(value, (int, float))
    return (value is None, not number, float(value) if isinstance(value, (int, float)) else 0.0, str(value))


def _ranges(recording: Recording) -> str:
    names = dict.fromkeys(name for flags in recording.all_flags for name in flags)
    parts = []
    for name in names:
        values = sorted({flags.get(name) for flags in recording.all_flags}, key=_order)
        parts.append(f"{name} {', '.join(map(str, values))}")
    return "; ".join(parts)


def load_of(recording: Recording) -> LoadPlan:
    """The load as it was sent, without its texts and its warm-up, which were not recorded."""
    whole = recording.whole()
    rounds = []
    for record, requests in zip(whole.rounds, whole.requests, strict=True):
        prompts = tuple(
            Prompt(one.prompt_id, "", one.input_tokens or 0, one.asked_output_tokens or one.output_tokens or 0)
            for one in requests
        )
        rounds.append(
            Round(
                prompts=prompts,
                arrivals_s=tuple(one.scheduled_s or 0.0 for one in requests),
                lead_s=0.0,
                seed=0,
                request_rate=record.request_rate_per_s,
                burstiness=1.0,
                output_tokens=None,
                client_format="custom",
            )
        )
    return LoadPlan(warmup=None, rounds=tuple(rounds))


def _fingerprint(recording: Recording) -> Fingerprint:
    """That of the recording, so marked that its trials are never compared with measured ones."""
    text = _fingerprint_text(recording)
    try:
        known = Fingerprint.from_json(text)
    except (ValueError, TypeError) as error:
        raise HostError(f"the fingerprint of {recording.folder} cannot be read: {error}") from error
    return dataclasses.replace(known, vllm=f"replayed, recording {recording.digest} of vLLM {known.vllm or 'unknown'}")


def _fingerprint_text(recording: Recording) -> str:
    """From `fingerprint.json`, from `recording.json` of a packed one, or nothing known."""
    for name in ("fingerprint.json", "recording.json"):
        try:
            content = json.loads((recording.folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise HostError(f"cannot read {recording.folder / name}: {error}") from error
        return json.dumps(content.get("fingerprint", {}) if name == "recording.json" else content)
    return "{}"


def _knowledge(config: StudyConfig, recording: Recording, fingerprint: Fingerprint) -> Knowledge:
    """What a gate may rest on: nothing of the machine that was recorded, but the rules that every vLLM has."""
    fixed: dict[str, object] = dict(config.serve.flags)
    for name, text in fingerprint.fixed_flags or ():
        with contextlib.suppress(ValueError):  # redacted, perhaps
            fixed.setdefault(name, json.loads(text))
    return dataclasses.replace(NOTHING, rules="vllm" in recording.metadata, fixed=fixed)


def _notices(config: StudyConfig, recording: Recording, space: SearchSpace, stand_in: Replay) -> list[str]:
    size = space.feasible_size()
    lines = [
        f"{stand_in.word}: nothing is launched and nothing here is measured. Trials are launches recorded in "
        f"{recording.folder}: {recording.launches} of {len(recording.points)} points, {size} of them in this space",
        f"objective: {objective_of(config).describe()}",
        "replay: model, serve, and load but for request_rate and percentiles, are the recording's, whatever this file "
        "says; a confirmation draws further launches under the same load",
    ]
    if recording.left_out:
        counts = ", ".join(f"{count} {why}" for why, count in sorted(recording.left_out.items()))
        lines.append(f"replay: recorded launches that are left out: {counts}")
    return lines
