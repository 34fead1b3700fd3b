"""The parameter files of `vllm bench sweep` (`--serve-params`, `--bench-params`): JSON, read and written.

Such a file is a list of objects, or an object of objects by name; each is one combination of flags, in any spelling.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweep.errors import UserError
from sweep.flags import FlagValue, canonical
from sweep.trial import Flag

NAME = "_benchmark_name"


@dataclass(frozen=True, slots=True)
class Record:
    """One combination. `keys` are as they stand in the file, `flags` the same by the names of flags."""

    name: str
    keys: Mapping[str, Any]

    @property
    def flags(self) -> dict[str, FlagValue]:
        """The flags, in kebab case."""
        return {canonical(key): value for key, value in self.keys.items()}

    @property
    def text(self) -> str:
        """As `vllm bench sweep` names its folders."""
        return self.name or "-".join(f"{key}={value}" for key, value in self.keys.items())


def read_params(path: Path) -> tuple[Record, ...]:
    """The combinations of a file, at least one. Raises UserError with the file and what is wrong."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, ValueError) as error:
        raise UserError(f"{path}: is no JSON ({error})") from None
    if isinstance(content, dict):
        if not all(isinstance(one, dict) for one in content.values()):
            raise UserError(f"{path}: an object of objects by name is wanted, or a list of objects")
        content = [{NAME: name, **one} for name, one in content.items()]
    if not isinstance(content, list) or not content or not all(isinstance(one, dict) for one in content):
        raise UserError(f"{path}: a list of objects is wanted, at least one")
    found = tuple(_record(one) for one in content)
    for place, one in enumerate(found):
        if len(one.flags) < len(one.keys):
            raise UserError(f"{path}: entry {place + 1} has one flag in two spellings")
    names = [one.name for one in found if one.name]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{path}: {twice!r} stands twice")
    return found


def write_params(path: Path | None, records: Mapping[str, Mapping[str, FlagValue]]) -> str:
    """The text of a file with named combinations, keys in snake case as in vLLM; written where a path is given.

    Flags that are left to vLLM are left out. Raises UserError when it cannot be written.
    """
    content = {
        name: {_snake(flag): value for flag, value in flags.items() if value is not None}
        for name, flags in records.items()
    }
    text = json.dumps(content, indent=2) + "\n"
    if path is not None:
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None
    return text


def flag_of(value: Any) -> Flag:
    """A value as a searched flag has it: one word; lists and objects as their JSON."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return json.dumps(value)


def names_of(records: Sequence[Record]) -> list[str]:
    """Every flag of the records, in the order of the first that has it."""
    return list(dict.fromkeys(name for record in records for name in record.flags))


def _record(entry: Mapping[str, Any]) -> Record:
    keys = {key: value for key, value in entry.items() if key != NAME}
    return Record(str(entry.get(NAME, "")), keys)


def _snake(flag: str) -> str:
    # What follows a dot is a key of a JSON value and stays as it is.
    head, dot, rest = flag.partition(".")
    return head.replace("-", "_") + dot + rest
