"""What is wrong with a value of a study file, in words that need no knowledge of how it is checked."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from pydantic_core import ErrorDetails

_QUOTED = re.compile(r"'([^']*)'")
_LONGEST = 60
_LARGEST_SHARE = 2  # limits up to it are of shares, which people write in percent
_WITH_UNIT = re.compile(r"\s*[<>=]*\s*(\d+(?:\.\d+)?)\s*(%|[A-Za-z/]+)?\s*")
_KINDS = "int, float, choice or bool"
_PLAIN_TYPES: Mapping[str, str] = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "dict_type": "keys and values below it",
    "model_type": "keys and values below it",
    "model_attributes_type": "keys and values below it",
    "tuple_type": "a list, such as [a, b]",
    "list_type": "a list, such as [a, b]",
}
_LIMITS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}


class Mistake(ValueError):
    """Something wrong at `parts`, a key path below the value that is being checked; pydantic carries it out."""

    def __init__(self, message: str, *parts: str | int) -> None:
        self.message, self.parts = message, parts
        super().__init__(message)


def parts_of(error: ErrorDetails) -> tuple[str | int, ...]:
    """The rest of the key path that a Mistake knows."""
    cause = error.get("ctx", {}).get("error")
    return cause.parts if isinstance(cause, Mistake) else ()


def in_words(errors: Sequence[ErrorDetails]) -> str:
    """One sentence for what pydantic has to say about one value; it says several things where several types do."""
    first = errors[0]
    kind, value, facts = first["type"], first["input"], first.get("ctx", {})
    if kind == "value_error":
        return str(facts.get("error", first["msg"]))
    if kind == "missing":
        return "is missing"
    if kind.startswith("union_tag"):
        return f"needs a type: {_KINDS}" + ("" if kind == "union_tag_not_found" else f", not {facts.get('tag')}")
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        return f"must be {words} {facts[name]:g}, not {shown(value)}{_percent(facts[name], value, name)}"
    if kind == "literal_error":
        return _one_of(facts.get("expected", ""), value)
    if kind in ("too_short", "string_too_short"):
        return "is empty; give at least one entry" if kind == "too_short" else "is empty; fill it in or leave it out"
    if len(errors) > 1:
        wanted = "a list, keys and values, a number, a text, true, false or null"
        lists = any(error["type"] in ("list_type", "dict_type") for error in errors)
        finite = any(error["type"] == "finite_number" for error in errors)
        wanted = "a finite number" if finite else wanted if lists else "a number, a text, true, false or null"
        return f"needs {wanted}, not {shown(value)}"
    if kind in _PLAIN_TYPES:
        mend = _as_list(first) if kind == "tuple_type" else hint(kind, value)
        return f"needs {_PLAIN_TYPES[kind]}, not {shown(value)}{mend}"
    return f"{first['msg'][0].lower()}{first['msg'][1:]}, not {shown(value)}"


def shown(value: object) -> str:
    """A value as YAML writes it, cut where it is long."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = f"{value} (a date; put it in quotes)" if isinstance(value, date) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _percent(limit: float, value: object, name: str) -> str:
    share = name in ("lt", "le") and limit <= _LARGEST_SHARE and isinstance(value, int | float)
    return f"; {value:g} % is {value / 100:g}" if share and isinstance(value, int | float) and value <= 100 else ""


def _one_of(expected: str, value: object) -> str:
    words = _QUOTED.findall(expected)
    near = difflib.get_close_matches(str(value), words, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"must be {expected}, not {shown(value)}{hint}"


def _without_unit(text: str) -> str:
    found = _WITH_UNIT.fullmatch(text)
    if found is None:
        return ""
    if found[2] == "%":
        return f"; write {float(found[1]) / 100:g} for {found[1]} %"
    return "; write the number alone, the unit is given"


def _as_list(error: ErrorDetails) -> str:
    value = error["input"]
    if not isinstance(value, str) or " " not in value or len(value) > _LONGEST:
        return ""
    return f"; write [{', '.join(value.split())}]" if error["loc"][-1] == "command" else f'; write ["{value}"]'


def hint(kind: str, value: Any) -> str:
    """How a value would have to be written; `kind` is pydantic's word for what is wrong with it."""
    if kind == "string_type" and isinstance(value, int | float):
        return "; put it in quotes"
    if kind in ("int_type", "float_type") and isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return _without_unit(value)
        if not math.isfinite(number):
            return ""
        # YAML reads 1e-4 as text: its numbers need a point.
        written = int(number) if number.is_integer() else f"{number:.12f}".rstrip("0")
        return f"; write {written}, without quotes"
    return ""
