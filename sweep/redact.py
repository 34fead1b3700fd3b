"""Keeping secrets out of everything stored or shown: commands, environments, log lines, errors.

Three nets, since each alone leaks: values known to be secret (from the environment, or handed over), places where a
secret stands (`--api-key X`, `HF_TOKEN=X`, `Bearer X`), and shapes that give a secret away (`hf_...`, `sk-...`).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

REDACTED = "[redacted]"

# Names whose value is a secret. TOKENS are counted, a TOKEN is kept; a tokenizer's special tokens are no secrets.
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|(?:API_?KEY|KEY|SECRET|PASSPHRASE|PASSWD|CREDENTIAL)S?)$|_KEY_ID$|_SECRET_|PASSWORD"
    r"|(?:^|_)WEBHOOKS?(?:_UR[LI])?$",  # whoever has its address may write there
    re.IGNORECASE,
)
_NO_SECRET_NAME = re.compile(r"(?:^|_)(?:PAD|EOS|BOS|UNK|SEP|CLS|MASK|STOP|NUM|MAX|MIN)_TOKEN$", re.IGNORECASE)
_SECRET_FLAGS = (
    "api-key", "hf-token", "token", "auth-token", "access-token", "password", "secret", "ssl-keyfile-password",
)  # fmt: skip

# What is shorter, or a plain number of fewer digits, also occurs as innocent text: only its place gives it away.
_SHORTEST = 6
_SHORTEST_NUMBER = 12
_SHORTEST_LINE = 16

# What is redacted already counts as a value as it stands, so that redacting again changes nothing.
_VALUE = r"""(?:\[redacted\]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s"',;&)}\]]+)"""
_FLAG = "|".join(re.escape(name).replace("\\-", "[-_]") for name in _SECRET_FLAGS)
_NAME = r"[A-Za-z0-9_]*(?:_?KEY|_?TOKEN|_?SECRET|PASSWORD|PASSWD|PASSPHRASE|WEBHOOK)[A-Za-z0-9_]*"
# Each with texts of which one stands in whatever it matches: a log is long, and the patterns are slow.
_PLACES = (
    # A command line. A following word that is itself a flag is no value: `--hf-token` may stand alone.
    (("--",), re.compile(rf"(?P<before>(?<![\w-])--(?:{_FLAG})(?:=|\s+(?!-)))(?P<value>{_VALUE})")),
    # The same as a printed list of words: '--api-key', 'X'
    (("'--", '"--'), re.compile(rf"(?P<before>(['\"])--(?:{_FLAG})\2,\s*)(?P<value>{_VALUE})")),
    # NAME=value, as in `env` or a container command
    (
        ("KEY", "TOKEN", "SECRET", "PASSW", "PASSPHRASE", "WEBHOOK"),
        re.compile(rf"(?P<name>(?<![\w-]){_NAME})(?P<before>=)(?P<value>{_VALUE})"),
    ),
    # 'name': 'value' and "name": ["value"], as mappings are printed
    (
        ("'", '"'),
        re.compile(rf"(?P<name>(?<=['\"]){_NAME})(?P<before>['\"]\s*:\s*\[?)(?P<value>{_VALUE})", re.IGNORECASE),
    ),
    (("earer", "EARER"), re.compile(r"(?P<before>\b[Bb](?:earer|EARER)\s+)(?P<value>[A-Za-z0-9._~+/=-]+)")),
    # user:password@host
    (
        ("://",),
        re.compile(r"(?P<before>\b[a-z][a-z0-9+.-]{0,15}://[^\s/:@]*:)(?P<value>[^\s/@]+)(?=@)", re.IGNORECASE),
    ),
)
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_(?:[A-Za-z0-9]{20,}|(?=[A-Za-z]*\d)[A-Za-z0-9]{8,})"
    r"|sk-(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{12,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}"
    r")"
)
_SHAPED = ("hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_")


def is_secret_name(name: str) -> bool:
    """Whether an environment variable, flag or key of that name holds a secret."""
    name = name.replace("-", "_")
    return _SECRET_NAME.search(name) is not None and _NO_SECRET_NAME.search(name) is None


class Redactor:
    """Replaces secrets by `[redacted]`. Known secrets are the values of `env` under telling names and `extra_secrets`.

    Redacting twice gives the same text as redacting once. Prints itself without its secrets.
    """

    __slots__ = ("_known", "_parts", "_secrets")

    def __init__(self, env: Mapping[str, str], extra_secrets: Iterable[str] = ()) -> None:
        self._secrets = (*(value for name, value in env.items() if is_secret_name(name)), *extra_secrets)
        parts = {part for value in self._secrets for part in _spellings(value)}
        # The longest first: a secret may begin with another.
        self._parts = tuple(sorted(parts, key=lambda part: (-len(part), part)))
        patterns = [_pattern(part) for part in self._parts]
        self._known = re.compile("|".join(patterns)) if patterns else None

    def also(self, *secrets: str) -> Redactor:
        """One that knows these, too."""
        return Redactor({}, (*self._secrets, *secrets))

    def text(self, text: str) -> str:
        """`text` without secrets."""
        if self._known is not None and any(part in text for part in self._parts):
            text = self._known.sub(REDACTED, text)
        for needles, place in _PLACES:
            if any(needle in text for needle in needles):
                text = place.sub(_hide_value, text)
        return _SHAPES.sub(REDACTED, text) if any(shape in text for shape in _SHAPED) else text

    def file(self, path: Path) -> None:
        """Redact a log that somebody else wrote, once nobody writes it any more. Nothing happens if it is not there."""
        try:
            if any(self.text(line) != line for line in _lines(path)):
                _rewrite(path, self.text)
        except OSError:
            return

    def argv(self, words: Sequence[str]) -> tuple[str, ...]:
        """The words of a command without secrets, one word for each word given."""
        hidden = []
        flag = ""
        for word in words:
            if word.startswith("-") and not word.startswith("---"):
                flag = "" if "=" in word else word.lstrip("-").replace("_", "-")
                hidden.append(self.text(word))
            else:
                # Every word up to the next flag: `--api-key` takes several.
                hidden.append(REDACTED if flag in _SECRET_FLAGS else self.text(word))
        return tuple(hidden)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """The variables with the values of telling names replaced, however short they are."""
        return {name: REDACTED if is_secret_name(name) and value else self.text(value) for name, value in env.items()}

    def tree(self, value: Any) -> Any:
        """Nested mappings and sequences with every string redacted, and whole values under telling names."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                key: REDACTED if item and is_secret_name(str(key)) else self.tree(item) for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.tree(item) for item in value]
        return value

    def __repr__(self) -> str:
        return "Redactor()"


def _lines(path: Path) -> Iterator[str]:
    """The lines of a log of any size, one at a time, with their ends; a carriage return ends one, too."""
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as log:
        for line in log:
            yield from line.splitlines(keepends=True)


def _rewrite(path: Path, clean: Callable[[str], str]) -> None:
    """Replace a log: in its own place where the disk is full, and rather none than one with secrets."""
    fresh = path.with_name(path.name + ".clean")
    try:
        with fresh.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.writelines(clean(line) for line in _lines(path))
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        try:
            content = "".join(clean(line) for line in _lines(path))
            path.write_bytes(content.encode("utf-8", "surrogateescape"))
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()


def _hide_value(match: re.Match[str]) -> str:
    groups = match.groupdict()
    name = groups.get("name") or ""
    if name and not is_secret_name(name):
        return match[0]
    value = groups["value"]
    quoted = value[0] if value[0] in "\"'" and value[-1] == value[0] and len(value) > 1 else ""
    if name and value in {"None", "null", "True", "False", "true", "false", "''", '""'}:
        return match[0]
    return f"{name}{groups['before']}{quoted}{REDACTED}{quoted}"


def _spellings(value: str) -> set[str]:
    """The value as it may turn up: itself, its lines, escaped for JSON, Python, a URL, a shell."""
    lines = [line.strip() for line in value.splitlines()]
    longs = [line for line in lines if len(line) >= _SHORTEST_LINE and not line.startswith("-----")]
    plain = {value.strip(), *longs}
    spelled = {
        form
        for text in plain
        for form in (text, json.dumps(text)[1:-1], repr(text)[1:-1], quote(text, safe=""), text.replace("'", "'\"'\"'"))
    }
    return {
        form
        for form in spelled
        if len(form) >= (_SHORTEST_NUMBER if form.isdigit() else _SHORTEST) and form not in REDACTED
    }


def _pattern(secret: str) -> str:
    """A plain word is replaced as a whole word only, so that a password `default` spares `defaults`."""
    escaped = re.escape(secret)
    return rf"(?<![A-Za-z]){escaped}(?![A-Za-z])" if secret.isalpha() else escaped
