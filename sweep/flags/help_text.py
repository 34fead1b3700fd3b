"""The help text of an argparse command, read back into options.

What a version of vLLM accepts is written nowhere but in its `--help`. The layout is argparse's own: an option begins
with two blanks and a dash, everything indented deeper belongs to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_OPTION_LINE = re.compile(r"^ {2}(--?[A-Za-z].*)$")
_TEXT_LINE = re.compile(r"^ {3,}(\S.*)$")
_TEXT_BESIDE = re.compile(r" {2,}")  # the text follows on the same line where there is room
_NEXT_NAME = re.compile(r", (?=-)")
# {a,b} limits the words; ['a', 'b'] is how vLLM prints the words it knows where it takes others, too.
_CHOICES = re.compile(r"^\[?\{([^{}]+)\}")


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command.

    `name` is the long one without dashes, `aliases` are its other spellings with their dashes. `negatable`: there is a
    `--no-NAME`, too. `takes_value` is False for a mere switch; `many`: several values may follow one flag;
    `value_optional`: none need follow. `choices` are the words the value is limited to, empty if it is not.
    """

    name: str
    aliases: tuple[str, ...] = ()
    negatable: bool = False
    takes_value: bool = True
    many: bool = False
    value_optional: bool = False
    choices: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class CommandHelp:
    """All options of one command, by long name without dashes."""

    options: Mapping[str, Option]

    def find(self, name: str) -> Option | None:
        """The option of that long name or long alias (kebab case, no dashes), or None."""
        if (option := self.options.get(name)) is not None:
            return option
        return next((option for option in self.options.values() if f"--{name}" in option.aliases), None)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None


def parse_help(text: str) -> CommandHelp:
    """The options in a help text; none where there are none. Never raises."""
    options: dict[str, Option] = {}
    for invocation, words in _entries(text):
        if (option := _option(invocation, words)) is not None:
            options.setdefault(option.name, option)
    return CommandHelp(options)


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Each option's line of names and its text, joined to one line."""
    invocation: str | None = None
    words: list[str] = []
    for line in text.splitlines():
        if (begin := _OPTION_LINE.match(line)) is not None:
            if invocation is not None:
                yield invocation, " ".join(words)
            invocation, *words = _TEXT_BESIDE.split(begin[1], maxsplit=1)
        elif (more := _TEXT_LINE.match(line)) is not None:
            words.append(more[1])
        elif line.strip() and invocation is not None:
            yield invocation, " ".join(words)
            invocation = None
    if invocation is not None:
        yield invocation, " ".join(words)


def _option(invocation: str, text: str) -> Option | None:
    spellings = [part.partition(" ") for part in _NEXT_NAME.split(invocation)]
    names = [name for name, _, _ in spellings]
    longs = [name for name in names if name.startswith("--")]
    if not longs or "--help" in longs:
        return None
    negations = {f"--no-{name[2:]}" for name in longs} & set(longs)
    value = next((value for _, _, value in spellings if value), "")
    choices = _CHOICES.match(value)
    return Option(
        name=_kebab(longs[0]),
        aliases=tuple(_dashes(name) for name in names if name != longs[0] and name not in negations),
        negatable=bool(negations),
        takes_value=bool(value),
        many="..." in value,
        value_optional=value.startswith("[") and not value.startswith("['"),
        choices=tuple(choices[1].split(",")) if choices else (),
        text=text,
    )


def _kebab(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _dashes(name: str) -> str:
    return name.replace("_", "-")
