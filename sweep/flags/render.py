"""A mapping of flags as the words a person would type."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from sweep.errors import FlagError
from sweep.flags.help_text import CommandHelp, Option
from sweep.trial import Flag

FlagValue = Flag | Sequence[Any] | Mapping[str, Any]

_NEGATIVE = re.compile(r"^-\d+$|^-\d*\.\d+$")
_DIGITS = 12  # of a float: enough for any flag, too few for the noise of 0.1 + 0.2


def canonical(name: str) -> str:
    """A flag's name without dashes, in kebab case: `--max_num_seqs` is `max-num-seqs`.

    What follows a dot is a key of a JSON value (`compilation-config.cudagraph_mode`) and stays as it is.
    """
    head, dot, keys = name.strip().lstrip("-").partition(".")
    return head.replace("_", "-") + dot + keys


def render(flags: Mapping[str, FlagValue], help_: CommandHelp | None = None) -> list[str]:
    """The words for `flags`, in their order. `help_` is what the command knows, None if it could not be asked.

    True is `--x`, False `--no-x` (nothing where the help shows a switch without that twin), None nothing, a mapping
    compact JSON. A list follows one flag where the help shows that several values may, otherwise the flag is repeated.
    Floats are written in full and without noise. Raises FlagError for a value that cannot be a flag (NaN, a set) and
    for a flag given twice in two spellings.
    """
    words: list[str] = []
    seen: dict[str, str] = {}
    for name, value in flags.items():
        flag = canonical(name)
        if (other := seen.setdefault(flag, name)) != name:
            raise FlagError(f"flag {flag!r} is given twice, as {other!r} and {name!r}; keep one")
        words += _words(flag, value, None if help_ is None else help_.find(flag))
    return words


def printable(argv: Sequence[str]) -> str:
    """The command as one line that a shell reads back as exactly these words."""
    return shlex.join(argv)


def _words(flag: str, value: FlagValue, option: Option | None) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return _switch(flag, value, option)
    if isinstance(value, Mapping):
        return [f"--{flag}", _json(flag, value)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        texts = [text_of(flag, item) for item in value if item is not None]
        if option is not None and option.many:
            return [f"--{flag}", *texts] if texts else []
        return [word for text in texts for word in _pair(flag, text)]
    return _pair(flag, text_of(flag, value))


def _switch(flag: str, on: bool, option: Option | None) -> list[str]:
    wants_word = option is not None and option.takes_value and not option.negatable and not option.value_optional
    if wants_word or "." in flag:  # x.key is a key of a JSON value
        return _pair(flag, "true" if on else "false")
    if on:
        return [f"--{flag}"]
    if option is not None and not option.negatable:
        return []
    if flag.startswith("no-"):
        return [f"--{flag[3:]}"]
    return [f"--no-{flag}"]


def _pair(flag: str, text: str) -> list[str]:
    # argparse takes a word that begins with a dash for the next flag, unless it is a plain number or stands behind "=".
    if text.startswith("-") and not _NEGATIVE.match(text):
        return [f"--{flag}={text}"]
    return [f"--{flag}", text]


def text_of(flag: str, value: object) -> str:
    """One value as one word. Raises FlagError for what cannot be typed."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(flag, value)
    if isinstance(value, Mapping | list | tuple):
        return _json(flag, value)
    raise FlagError(f"flag {flag!r}: a value of type {type(value).__name__} cannot be typed on a command line")


def _number(flag: str, value: float) -> str:
    if math.isnan(value):
        raise FlagError(f"flag {flag!r}: the value is not a number (NaN)")
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value.is_integer():
        return str(int(value))
    # Positional, never 1e-05: some of vLLM's own value parsers read letters as units.
    return f"{Decimal(f'{value:.{_DIGITS}g}'):f}"


def _json(flag: str, value: object) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise FlagError(f"flag {flag!r}: the value is no JSON: {error}") from None
