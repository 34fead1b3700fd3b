"""Unknown flags and impossible values, found before the first launch."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence

from sweep.errors import FlagError
from sweep.flags.help_text import CommandHelp, Option
from sweep.flags.render import FlagValue, canonical, text_of

_SHORT_NUMBER = re.compile(r"(\d)[kKmMgGtT]\b")  # vLLM writes 32k in full before it reads JSON


def check_flags(flags: Mapping[str, FlagValue] | Iterable[str], help_: CommandHelp | None, *, what: str) -> None:
    """Raise FlagError for the first flag that the command does not know, naming the nearest it does.

    Given a mapping, values are looked at, too: a word outside the listed choices, or a value for a mere switch. `what`
    says where the flags stand (`serve.flags`); the error's key is that of the flag. Without `help_` nothing is known
    and nothing refused.
    """
    if help_ is None:
        return
    for name in flags:
        try:
            option = _known(name, help_)
            if isinstance(flags, Mapping):
                _check_value(name, flags[name], option)
        except FlagError as error:
            raise FlagError(error.message, key=f"{what}.{name}") from None


def _known(name: str, help_: CommandHelp) -> Option:
    flag = canonical(name).partition(".")[0].removesuffix("+")
    option = help_.find(flag)
    if option is None and flag.startswith("no-"):
        positive = help_.find(flag.removeprefix("no-"))
        option = positive if positive is not None and positive.negatable else None
    if option is not None:
        return option
    short = next((option for option in help_.options.values() if f"-{flag}" in option.aliases), None)
    if short is not None:
        raise FlagError(f"write {short.name!r} for {name!r}")
    raise FlagError(f"this vLLM has no flag {name!r}{_nearest(flag, help_)}")


def _nearest(flag: str, help_: CommandHelp) -> str:
    names = [*help_.options]
    names += [alias[2:] for option in help_.options.values() for alias in option.aliases if alias[:2] == "--"]
    near = difflib.get_close_matches(flag.lower(), names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _broken_json(text: str) -> str | None:
    """Why a text that begins as a JSON object is none; templates begin with two braces, or one and a percent sign."""
    begun = text.strip()
    if not begun.startswith("{") or begun.startswith(("{{", "{%", "{#")):
        return None
    try:
        json.loads(_SHORT_NUMBER.sub(r"\1", begun))
    except ValueError as error:
        return str(error)
    return None


def _check_value(name: str, value: FlagValue, option: Option) -> None:
    if value is None or "." in name or not isinstance(value, str | int | float | Sequence | Mapping):
        return  # what is no flag's value (a range to search) is not judged
    if not option.takes_value:
        if not isinstance(value, bool):
            raise FlagError(f"{name!r} is a switch; write true or false, not {value!r}")
        return
    if isinstance(value, bool) and not option.choices and not option.value_optional:
        raise FlagError(f"{name!r} takes a value, not {str(value).lower()}")
    if isinstance(value, str) and (fault := _broken_json(value)):
        raise FlagError(f"{name!r} begins as JSON, but is none: {fault}")
    if not option.choices or isinstance(value, Mapping):
        return
    several = isinstance(value, Sequence) and not isinstance(value, str)
    if several and not option.many:
        raise FlagError(f"{name!r} takes one value; to try several, search it: {{type: choice, values: [...]}}")
    values: Sequence[object] = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    for item in values:
        word = text_of(name, item)
        if word not in option.choices:
            near = difflib.get_close_matches(word, option.choices, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(option.choices)}"
            raise FlagError(f"{name!r} cannot be {word!r}; {hint}")
