"""The user's own prompts: one JSON object a line, with `prompt` and, if wanted, `output_tokens`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from sweep.errors import DatasetError
from sweep.workload.exchanges import Conversations, Exchange, kind_of, open_prompt_file

_KEYS = ("prompt", "output_tokens")


def check_custom(path: Path) -> Conversations:
    """Read the JSON Lines file at `path` in full. Empty lines are skipped, as the load client does.

    Raises DatasetError with the row (from 0) and line (from 1) of the first thing wrong: not UTF-8, not JSON, not an
    object, no `prompt`, a prompt that is not a string or is empty, `output_tokens` that is not a whole number above 0.
    """
    exchanges: list[Exchange] = []
    ignored: dict[str, None] = {}
    digest = hashlib.sha256()
    with open_prompt_file(path) as file:
        for number, line in enumerate(file, start=1):
            digest.update(line)
            if not line.strip():
                continue
            row = len(exchanges)
            value = _object(line, row, number, path)
            exchanges.append(_exchange(value, row, number, path))
            ignored.update(dict.fromkeys(key for key in value if key not in _KEYS))
    if not exchanges:
        raise DatasetError("the file holds no prompt, only empty lines", path=path)
    return Conversations(path, digest.hexdigest(), len(exchanges), tuple(exchanges), ignored_keys=tuple(ignored))


def _object(line: bytes, row: int, number: int, path: Path) -> dict[str, object]:
    if number == 1 and line.lstrip().startswith(b"["):
        raise DatasetError(
            "is a JSON list; load.dataset: custom reads one object a line: jq -c '.[]' FILE > NEW.jsonl "
            "(or is it a ShareGPT file, load.dataset: sharegpt?)",
            path=path,
            position=0,
        )
    try:
        value = json.loads(line.decode("utf-8").strip())
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"(line {number}) is not UTF-8 at byte {error.start} of the line", path=path, row=row
        ) from None
    except (ValueError, RecursionError) as error:
        at = f" at column {error.colno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else ""
        raise DatasetError(
            f"(line {number}) is not JSON{at}; each line must be one whole object", path=path, row=row
        ) from None
    if not isinstance(value, dict):
        raise DatasetError(f"(line {number}) is {kind_of(value)}, not an object with `prompt`", path=path, row=row)
    return value


def _exchange(value: dict[str, object], row: int, number: int, path: Path) -> Exchange:
    if "prompt" not in value:
        hint = " but `conversations`: set load.dataset: sharegpt" if "conversations" in value else ""
        raise DatasetError(f"(line {number}) has no `prompt`{hint}", path=path, row=row)
    prompt, output_tokens = value["prompt"], value.get("output_tokens")
    if not isinstance(prompt, str):
        raise DatasetError(f"(line {number}): `prompt` is {kind_of(prompt)}, not a string", path=path, row=row)
    if not prompt.strip():
        raise DatasetError(f"(line {number}): `prompt` is empty", path=path, row=row)
    if output_tokens is not None and (
        isinstance(output_tokens, bool) or not isinstance(output_tokens, int) or output_tokens < 1
    ):
        raise DatasetError(
            f"(line {number}): `output_tokens` is {json.dumps(output_tokens)}, not a whole number above 0",
            path=path,
            row=row,
        )
    return Exchange(row, prompt, output_tokens=output_tokens)
