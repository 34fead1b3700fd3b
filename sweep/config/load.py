"""Read a study file: safe YAML, strict models, and errors that name file, line, key and the nearest valid key."""

from __future__ import annotations

import difflib
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sweep.config.lines import KeyPath, Lines, dotted, line_of, parse, spelled
from sweep.config.mistakes import in_words, parts_of
from sweep.config.study import StudyConfig
from sweep.errors import ConfigError

_UNKNOWN = ("extra_forbidden", "invalid_key")
_TAGS = ("int", "float", "choice", "bool", "str")  # of unions, beside list[any] and dict[str,any]


def load(path: Path) -> StudyConfig:
    """The study in `path`. Raises ConfigError with file, line and key for the first thing wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError("no such file", path=path) from None
    except IsADirectoryError:
        raise ConfigError("is a folder; name the study file in it", path=path) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 text (byte {error.start}); save it as UTF-8", path=path) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", path=path) from None
    return loads(text, path)


def loads(text: str, path: Path) -> StudyConfig:
    """The study in `text`; `path` is only named in errors."""
    data, lines = parse(text, path)
    if not isinstance(data, dict):
        raise ConfigError("is not a mapping of sections (study, model, serve, search_space, ...)", path=path, line=1)
    # A section whose keys are all commented out is an empty one.
    data = {key: {} if value is None and key in StudyConfig.model_fields else value for key, value in data.items()}
    try:
        return StudyConfig.model_validate(data)
    except ValidationError as error:
        raise _first_error(error, lines, path) from None


def _first_error(error: ValidationError, lines: Lines, path: Path) -> ConfigError:
    """The first thing wrong as one line. Unknown keys come first: they explain the missing ones."""
    found: dict[KeyPath, list[ErrorDetails]] = {}
    for one in error.errors(include_url=False):
        where = spelled((*_in_file(one["loc"], lines), *parts_of(one)), lines)
        found.setdefault(where, []).append(one)
    where, first = min(found.items(), key=lambda item: item[1][0]["type"] not in _UNKNOWN)
    message = "unknown key" + _nearest(first[0]["loc"]) if first[0]["type"] in _UNKNOWN else in_words(first)
    tail = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return ConfigError(message + tail, path=path, line=line_of(where, lines), key=dotted(where))


def _in_file(loc: tuple[int | str, ...], lines: Lines) -> KeyPath:
    """Pydantic's location without the discriminator and union tags that are not keys of the file."""
    kept: list[str | int] = []
    for position, part in enumerate(loc):
        last = position == len(loc) - 1
        written = spelled((*kept, part), lines)
        if written in lines:
            kept = list(written)
        elif last and isinstance(part, str) and part not in _TAGS and "[" not in part:
            kept.append(part)
    return tuple(kept)


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
