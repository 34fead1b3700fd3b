"""A grid of `vllm bench sweep` as a study file: its points, and nothing but them, with its load."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from sweep.config import loads
from sweep.errors import UserError
from sweep.exchange.params import Record, flag_of, names_of
from sweep.trial import Flag

# Each point of the grid that is not asked for takes a constraint; more than these nobody reads.
_MOST_EXCLUDED = 200
# Flags of the load client that a study file has a key for, and what it is called there.
_LOAD = {
    "num-prompts": "num_prompts",
    "request-rate": "request_rate",
    "burstiness": "burstiness",
    "max-concurrency": "max_concurrency",
    "seed": "seed",
    "sharegpt-output-len": "output_tokens",
    "custom-output-len": "output_tokens",
    "dataset-path": "path",
    "dataset-name": "dataset",
    "num-warmups": "warmup_prompts",
    "ignore-eos": "ignore_eos",
}
_DATASETS = ("sharegpt", "custom")


def study_text(
    serve: Sequence[Record],
    bench: Sequence[Record],
    *,
    name: str,
    model: str,
    baseline: int = 0,
    source: str = "vllm bench sweep",
) -> tuple[str, tuple[str, ...]]:
    """A study file whose search space is the grid of `serve`, with record `baseline` (from 0) as today's flags, and the
    load of `bench`; and remarks on what it cannot say. Raises UserError for what is no study.
    """
    names = names_of(serve)
    if not names:
        raise UserError("the serve parameters set no flag, so there is nothing to search")
    points = [{flag: flag_of(record.flags.get(flag)) for flag in names} for record in serve]
    values = {flag: _distinct(point[flag] for point in points) for flag in names}
    remarks: list[str] = []
    constraints = _excluding(points, values, remarks)
    load, more = _load(bench)
    remarks += more
    content: dict[str, Any] = {
        "study": {"name": name, "trials": len(_distinct_points(points))},
        "model": {"path": model},
        "search_space": {
            "parameters": {flag: {"type": "choice", "values": found} for flag, found in values.items()},
            **({"constraints": constraints} if constraints else {}),
        },
        **({"load": load} if load else {}),
        "baseline": {flag: value for flag, value in points[baseline].items() if value is not None},
    }
    head = [
        f"From {source}: each point of its grid is one trial. Today's flags are its entry {baseline + 1}.",
        *remarks,
    ]
    comment = "".join(f"# {' '.join(line.splitlines())}\n" for line in head)
    text = comment + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    loads(text, Path(f"{name}.yaml"))  # what cannot be read back is refused here, with its key
    return text, tuple(remarks)


def bench_records(settings: Mapping[str, Any], rate_per_s: float | None) -> dict[str, dict[str, Any]]:
    """The load of a study as bench parameters, one entry a request rate. `settings` are its `study.json`, `rate_per_s`
    what `request_rate: auto` came to. A study sends its prompts in rounds, of which these files know nothing.

    Raises UserError where the load is not known.
    """
    load = settings.get("load")
    if not isinstance(load, dict):
        raise UserError("study.json says nothing of the load")
    lengths = "custom-output-len" if load.get("dataset") == "custom" else "sharegpt-output-len"
    names = {key: flag for flag, key in _LOAD.items() if key not in ("request_rate", "output_tokens")}
    record: dict[str, Any] = {flag: load.get(key) for key, flag in names.items()} | {lengths: load.get("output_tokens")}
    if record["seed"] is None and isinstance(study := settings.get("study"), dict):
        record["seed"] = study.get("seed")
    record |= load.get("flags") or {}
    rates = load.get("request_rate")
    if rates == "auto":
        rates = rate_per_s
    every = rates if isinstance(rates, list) else [rates]
    return {_rate_name(rate): {**record, "request-rate": "inf" if rate is None else rate} for rate in every}


def _rate_name(rate: float | None) -> str:
    return "all at once" if rate is None else f"{rate:g} per s"


def _excluding(
    points: Sequence[Mapping[str, Flag]], values: Mapping[str, Sequence[Flag]], remarks: list[str]
) -> list[str]:
    """A constraint for each point of the full grid that nobody asked for."""
    asked = {_key(point.values()) for point in points}
    size = 1
    for one in values.values():
        size *= len(one)
    if size - len(asked) > _MOST_EXCLUDED:
        remarks.append(
            f"The full grid has {size} points, {len(asked)} of them were asked for: others may be tried, too."
        )
        return []
    found, open_ends = [], 0
    for point in itertools.product(*values.values()):
        if _key(point) in asked:
            continue
        if any(value is None for value in point):
            open_ends += 1  # a constraint on a flag that is left to vLLM is taken to hold
            continue
        same = " and ".join(f"{flag} == {_word(value)}" for flag, value in zip(values, point, strict=True))
        found.append(f"not ({same})")
    if open_ends:
        remarks.append(f"{open_ends} points that leave a flag to vLLM cannot be excluded: they may be tried, too.")
    return found


def _load(bench: Sequence[Record]) -> tuple[dict[str, Any], list[str]]:
    """The load section. Several records may differ in their request rate alone."""
    records = [record.flags for record in bench]
    if not records:
        return {}, ["No bench parameters: the load is the default one of sweep."]
    first, *others = ({k: v for k, v in one.items() if k != "request-rate"} for one in records)
    if varied := sorted({key for one in others for key in {*one, *first} if one.get(key) != first.get(key)}):
        raise UserError(
            f"the bench parameters vary {', '.join(varied)}, and a study has one load: choose one with --bench-entry N"
        )
    rates = _distinct(one.get("request-rate") for one in records)
    load: dict[str, Any] = {}
    flags: dict[str, Any] = {}
    for flag, value in first.items():
        if flag in _LOAD:
            load[_LOAD[flag]] = value
        else:
            flags[flag] = value
    if (dataset := load.get("dataset")) is not None and dataset not in _DATASETS:
        raise UserError(f"dataset-name {dataset}: a study sends {' or '.join(_DATASETS)} prompts")
    if known := [rate for rate in rates if rate is not None]:
        load["request_rate"] = known[0] if len(known) == 1 else known
    if isinstance(load.get("num_prompts"), int) and load["num_prompts"] < 3:
        load["rounds"] = 1
    return ({**load, "flags": flags} if flags else load), []


def _word(value: Flag) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"'{value}'" if isinstance(value, str) else f"{value}"


def _distinct(values: Any) -> list[Any]:
    found: dict[object, Any] = {}
    for value in values:
        found.setdefault((type(value) is bool, str(value), value is None), value)
    return list(found.values())


def _key(values: Any) -> tuple[tuple[bool, str], ...]:
    return tuple((type(value) is bool, str(value)) for value in values)


def _distinct_points(points: Sequence[Mapping[str, Flag]]) -> set[tuple[tuple[bool, str], ...]]:
    return {_key(point.values()) for point in points}
