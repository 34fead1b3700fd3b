"""The result folders of `vllm bench sweep`: which flags and loads were run, and what each run measured.

A run's file holds the result of `vllm bench serve` with the varied parameters among its own keys. Which of them were
the server's is read from the folder's name (`SERVE--a=1-BENCH--b=2`), or from the parameter files where it cannot be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweep.errors import UserError
from sweep.exchange.params import NAME, Record

_FOLDER = re.compile(r"(?:SERVE--(?P<serve>.*?))?(?:-?BENCH--(?P<bench>.*?))?(?:-?WL--(?P<load>.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Combination:
    """One combination of a sweep: the server's parameters, those of the load, each run's file as it stands, and what
    went wrong where nothing was measured.
    """

    serve: Record
    bench: Record
    runs: tuple[Mapping[str, Any], ...]
    failure: str | None


def read_results(folder: Path, serve: Sequence[Record] = (), bench: Sequence[Record] = ()) -> tuple[Combination, ...]:
    """Every combination under a folder of results, in the order they were run. `serve` and `bench` are the parameter
    files, needed only where their entries have names. Raises UserError where there is none, or one cannot be read.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    found = [
        _combination(path, serve, bench)
        for path in (folder, *sorted(folder.iterdir()))  # nothing was varied: the runs lie in the folder itself
        if path.is_dir() and any(path.glob("run=*.json"))
    ]
    found.sort(key=_when)
    found += [_failed(path) for path in sorted(folder.glob("SERVE-*-failure.json"))]
    if not found and (folder / "summary.csv").exists():
        raise UserError(f"{folder}: its runs (run=0.json, ...) are gone; summary.csv alone is not enough")
    if not found:
        raise UserError(f"{folder}: holds no results of vllm bench sweep serve (folders with run=0.json in them)")
    return tuple(found)


def _combination(path: Path, serve: Sequence[Record], bench: Sequence[Record]) -> Combination:
    failures = [_json(one) for one in sorted(path.glob("run=*.failure.json"))]
    runs = [_json(one) for one in sorted(path.glob("run=*.json"), key=_number) if ".failure." not in one.name]
    match = _FOLDER.fullmatch(path.name)
    parts: dict[str, str | None] = {} if match is None else match.groupdict()
    if runs:
        split = _split(path, runs[0], parts, serve, bench)
    else:
        split = (_record(failures[0].get("serve_overrides")), _record(failures[0].get("bench_overrides")))
    failure = None if runs else f"{failures[0].get('error_type')}: {failures[0].get('error')}"
    return Combination(*split, tuple(runs), failure)


def _split(
    path: Path,
    run: Mapping[str, Any],
    parts: Mapping[str, str | None],
    serve: Sequence[Record],
    bench: Sequence[Record],
) -> tuple[Record, Record]:
    """The parameters of server and load that a run was made with."""
    found = []
    for part, records in (("serve", serve), ("bench", bench)):
        text = parts.get(part)
        if text is None:
            found.append(Record("", {}))
        elif (known := next((one for one in records if _plain(one.text) == text), None)) is not None:
            found.append(known)
        else:
            keys = {key: value for key, value in run.items() if key != NAME and _stands(f"{key}={value}", text)}
            if not keys:
                raise UserError(
                    f"{path}: which {part} parameters {text!r} stands for is not known: give --{part}-params"
                )
            found.append(Record("", keys))
    workload = parts.get("load")
    load = {key: value for key, value in run.items() if workload and _stands(f"{key}={value}", workload)}
    return found[0], Record(found[1].name, {**found[1].keys, **load})


def _when(one: Combination) -> tuple[str, list[tuple[int, str]]]:
    """When a combination was run; of one second by its numbers."""
    parts = re.findall(r"\d+|\D+", f"{one.serve.text} {one.bench.text}")
    dates = (str(run.get("date", "")) for run in one.runs)
    return min(dates, default=""), [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _stands(pair: str, text: str) -> bool:
    """Whether `pair` is one of the parameters of a folder's name, which are joined by hyphens."""
    return re.search(rf"(?:^|-){re.escape(_plain(pair))}(?:-|$)", text) is not None


def _plain(text: str) -> str:
    """As vLLM makes a name of it."""
    return text.replace("/", "_").replace("..", "__").strip("'").strip('"')


def _failed(path: Path) -> Combination:
    content = _json(path)
    return Combination(
        _record(content.get("serve_overrides")),
        Record("", {}),
        (),
        f"{content.get('error_type')}: {content.get('error')}",
    )


def _record(keys: Any) -> Record:
    found = dict(keys) if isinstance(keys, dict) else {}
    return Record(str(found.pop(NAME, "")), found)


def _json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, ValueError):
        raise UserError(
            f"{path}: is no JSON; remove the run, or let --resume of vllm bench sweep make it again"
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds no result of vllm bench serve")
    return content


def _number(path: Path) -> int:
    digits = re.sub(r"\D", "", path.name)
    return int(digits) if digits else 0
