"""Where each key of a study file stands, so that whatever is found wrong, then or later, is named by its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml

from sweep.errors import ConfigError

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_UNSEEN = "\u00a0\u2007\u202f\u200b\u2060\ufeff"  # of pages that examples are copied from

_MOST_VALUES = 100_000

KeyPath = tuple[str | int, ...]
Lines = Mapping[KeyPath, int]


def parse(text: str, path: Path) -> tuple[object, Lines]:
    """The YAML document and the line of every key path in it, with `()` for the whole.

    Raises ConfigError, with the line, for what is no YAML, is empty, or has a key twice.
    """
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
        problem, line = _in_words(error)
        raise ConfigError(f"is not valid YAML: {problem}", path=path, line=line) from None
    except RecursionError:
        raise ConfigError(
            "is not valid YAML: nested without end; does an alias (*name) stand within its own anchor (&name)?",
            path=path,
        ) from None
    except ValueError as error:
        raise ConfigError(f"is not valid YAML: {error}", path=path) from None


@contextmanager
def located(path: Path) -> Iterator[None]:
    """Gives each ConfigError of its block the study file at `path`, and the line where its key stands there.

    A key that the file does not have, such as one left to its default, gets the line of the section it belongs to.
    """
    try:
        yield
    except ConfigError as error:
        if error.line is not None:
            raise
        raise _placed(error, path) from None


def spelled(parts: KeyPath, lines: Lines) -> KeyPath:
    """`parts` as the file writes them: flag names may stand there with underscores or dashes in front."""
    written: KeyPath = ()
    for part in parts:
        exact = (*written, part)
        written = exact if exact in lines else next((key for key in lines if _same(key, exact)), exact)
    return written


def line_of(parts: KeyPath, lines: Lines) -> int | None:
    """The line of a key, or of the nearest one above it that the file has."""
    return next((lines[parts[:n]] for n in range(len(parts), -1, -1) if parts[:n] in lines), None)


def dotted(parts: KeyPath) -> str:
    """A key path as it is shown."""
    return ".".join(str(part) for part in parts)


def _in_words(error: yaml.YAMLError) -> tuple[str, int | None]:
    """What the parser says and the line it is about, with the usual cause where its own words name none."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if problem.startswith("but "):  # the end of a sentence
        problem = f"{getattr(error, 'context', None) or ''}, {problem}"
    elif problem == "could not find expected ':'":
        # The parser notices further down; the key that lacks it began here.
        mark = getattr(error, "context_mark", None) or mark
        problem = "a key needs a colon and a blank behind it (key: value)"
    elif "'\\t'" in problem:
        problem = "a tab stands where only blanks may; indent with blanks"
    elif problem.startswith("expected <block end>"):
        problem = "the line does not belong where it stands; check its indentation and dashes (flags are name: value)"
    elif problem == "mapping values are not allowed here":
        problem = "a key stands where none can; check the indentation, and put text with a colon in quotes"
    return problem, None if mark is None else mark.line + 1


def _other_number(node: yaml.ScalarNode) -> str | None:
    """What is wrong with a number that YAML 1.1 reads in another base than people do: 8:00 is 480, 010 is 8."""
    if node.style is not None or node.tag not in _NUMBERS or not isinstance(node.value, str):
        return None
    text = node.value.lstrip("+-")
    if ":" in text:
        return (
            f"YAML takes {node.value} for a number in base 60; write a plain number, a duration such as 8h, or quotes"
        )
    if len(text) > 1 and text.startswith("0") and text.isdigit():
        return f"YAML takes {node.value} for a number in base 8; write it without the zero in front, or in quotes"
    return None


def _placed(error: ConfigError, path: Path) -> ConfigError:
    try:
        _, lines = parse(path.read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError, ConfigError):  # it was good a moment ago: what was found counts
        return error.at(path, None, error.key)
    wanted = _plain(error.key)
    # Names of flags may have dots in them: the whole text is compared, not its parts.
    found = max(
        (key for key in lines if _begins(wanted, _plain(dotted(key)))), key=lambda key: len(dotted(key)), default=()
    )
    whole = _plain(dotted(found)) == wanted
    return error.at(path, lines[found] if found or error.key else None, dotted(found) if whole else error.key)


def _begins(wanted: str, key: str) -> bool:
    return not key or wanted == key or wanted.startswith(f"{key}.")


def _plain(key: str) -> str:
    """One spelling for comparison: `search_space.constraints[0]`, `serve.flags.--max_num_seqs`."""
    parts = key.replace("[", ".").replace("]", "").split(".")
    return ".".join(part.lstrip("-").replace("_", "-") for part in parts)


def _same(key: KeyPath, other: KeyPath) -> bool:
    return len(key) == len(other) and key[:-1] == other[:-1] and _plain(str(key[-1])) == _plain(str(other[-1]))


def _walk(node: yaml.Node, at: KeyPath, lines: dict[KeyPath, int], path: Path) -> None:
    lines.setdefault(at, node.start_mark.line + 1)
    if len(lines) > _MOST_VALUES:
        text = f"has more than {_MOST_VALUES:,} values, those that aliases (*name) repeat among them"
        raise ConfigError(text, path=path, line=node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode) and (fault := _other_number(node)):
        raise ConfigError(fault, path=path, line=node.start_mark.line + 1, key=dotted(at))
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if unseen := next((char for char in name if char in _UNSEEN), None):
                text = f"a character that looks like a blank and is none (U+{ord(unseen):04X}) stands in it; retype it"
                raise ConfigError(text, path=path, line=key.start_mark.line + 1, key=ascii(name))
            if name in seen:
                raise ConfigError("stands twice", path=path, line=key.start_mark.line + 1, key=dotted((*at, name)))
            seen.add(name)
            lines[(*at, name)] = key.start_mark.line + 1
            _walk(value, (*at, name), lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _walk(value, (*at, index), lines, path)
