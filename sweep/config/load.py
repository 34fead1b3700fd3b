"""Read a study file: safe YAML, strict models, and errors that name file, line, key and the nearest valid key."""

from __future__ import annotations

import difflib
import typing
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from sweep.config.study import StudyConfig
from sweep.errors import ConfigError

KeyPath = tuple[str | int, ...]


def load(path: Path) -> StudyConfig:
    """The study in `path`. Raises ConfigError with file, line and key for the first thing wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError("no such file", path=path) from None
    except IsADirectoryError:
        raise ConfigError("is a folder; name the study file in it", path=path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read as UTF-8 text: {error}", path=path) from None
    return loads(text, path)


def loads(text: str, path: Path) -> StudyConfig:
    """The study in `text`; `path` is only named in errors."""
    data, lines = _parse(text, path)
    if not isinstance(data, dict):
        raise ConfigError("is not a mapping of sections (study, model, serve, search_space, ...)", path=path, line=1)
    # A section whose keys are all commented out is an empty one.
    data = {key: {} if value is None and key in StudyConfig.model_fields else value for key, value in data.items()}
    try:
        return StudyConfig.model_validate(data)
    except ValidationError as error:
        raise _first_error(error, lines, path) from None


def _parse(text: str, path: Path) -> tuple[object, dict[KeyPath, int]]:
    """The document and the line of every key path in it."""
    lines: dict[KeyPath, int] = {}
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                raise ConfigError("is empty", path=path, line=1)
            _walk(node, (), lines, path)
            return loader.construct_document(node), lines
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else None
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"is not valid YAML: {problem}", path=path, line=line) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"is not valid YAML: {error}", path=path) from None


def _walk(node: yaml.Node, at: KeyPath, lines: dict[KeyPath, int], path: Path) -> None:
    lines.setdefault(at, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                raise ConfigError("stands twice", path=path, line=key.start_mark.line + 1, key=_dotted((*at, name)))
            seen.add(name)
            lines[(*at, name)] = key.start_mark.line + 1
            _walk(value, (*at, name), lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _walk(value, (*at, index), lines, path)


def _first_error(error: ValidationError, lines: dict[KeyPath, int], path: Path) -> ConfigError:
    """The first error of pydantic's list as one line. Unknown keys come first: they explain the missing ones."""
    errors = sorted(error.errors(include_url=False), key=lambda item: item["type"] != "extra_forbidden")
    first = errors[0]
    where = _in_file(first["loc"], lines)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "unknown key" + _nearest(first["loc"])
    elif first["type"] == "missing":
        message = "is missing"
    elif first["type"].startswith("union_tag"):
        message = "needs a type: int, float, choice or bool"
    elif first["type"] not in {"value_error"}:
        message = f"{message[0].lower()}{message[1:]}, not {first['input']!r}"
    line = next((lines[where[:n]] for n in range(len(where), -1, -1) if where[:n] in lines), None)
    more = len(errors) - 1
    tail = f" (and {more} more)" if more else ""
    return ConfigError(message + tail, path=path, line=line, key=_dotted(where))


def _in_file(loc: tuple[int | str, ...], lines: dict[KeyPath, int]) -> KeyPath:
    """Pydantic's location without the discriminator and union tags that are not keys of the file."""
    kept: list[str | int] = []
    for position, part in enumerate(loc):
        last = position == len(loc) - 1
        if (*kept, part) in lines or _spelled(kept, part, lines) is not None:
            kept.append(_spelled(kept, part, lines) or part)
        elif last and isinstance(part, str) and part not in {"int", "float", "choice", "bool", "str"}:
            kept.append(part)
    return tuple(kept)


def _spelled(kept: list[str | int], part: str | int, lines: dict[KeyPath, int]) -> str | None:
    """The file's own spelling of a flag name that was normalised."""
    for key in lines:
        if len(key) != len(kept) + 1 or list(key[:-1]) != kept:
            continue
        written = key[-1]
        if isinstance(written, str) and written != part and written.lstrip("-").replace("_", "-") == part:
            return written
    return None


def _nearest(loc: tuple[int | str, ...]) -> str:
    known = _fields_at(StudyConfig, loc[:-1])
    match = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.5)
    if match:
        return f"; did you mean {match[0]!r}?"
    return f"; known here: {', '.join(known)}" if known else ""


def _fields_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """The keys known at a location: fields of the model found there."""
    current: list[type[BaseModel]] = [model]
    for part in loc:
        found: list[type[BaseModel]] = []
        for candidate in current:
            field = candidate.model_fields.get(str(part))
            if field is not None:
                found += _models_in(field.annotation)
            elif "type" in candidate.model_fields and part in _tags(candidate):
                found.append(candidate)
        if not found and len(current) == 1:  # a key of a mapping: the models are those of its values
            found = current
        elif not found:
            found = [c for c in current if part in _tags(c)] or current
        current = found
    return list(dict.fromkeys(name for candidate in current for name in candidate.model_fields))


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    field = model.model_fields.get("type")
    return typing.get_args(field.annotation) if field is not None else ()


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in _models_in(part)]


def _dotted(where: KeyPath) -> str:
    return ".".join(str(part) for part in where)
