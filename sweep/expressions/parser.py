"""Text to the parts of a constraint: a tokenizer and a recursive descent, one method a level of precedence."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from fractions import Fraction
from typing import NoReturn

from sweep.errors import ConfigError
from sweep.expressions.nodes import COMPARE, Chain, Compare, In, Literal, Logic, Name, Node, Null, Number

MAX_LENGTH = 1000
MAX_DEPTH = 30
_MAX_DIGITS = 40
_MAX_EXPONENT = 300

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>(?:--)?[A-Za-z][\w.]*(?:-[\w.]+)*)"
    r"|(?P<text>'[^']*'|\"[^\"]*\")"
    r"|(?P<op><=|>=|==|!=|//|\*\*|&&|\|\||[-+*/%()<>,=!]))",
    re.ASCII,
)
_CONSTANTS: dict[str, bool] = {"true": True, "false": False, "True": True, "False": False}
_NULLS = frozenset({"null", "None", "none"})
_WORDS = frozenset({"and", "or", "not", "in", *_CONSTANTS, *_NULLS})
_INSTEAD = {"=": "==", "&&": "and", "||": "or", "!": "not"}


def parse(text: str, known: Collection[str] | None = None) -> tuple[Node, frozenset[str]]:
    """The root of the parsed text and the flags it names, with hyphens. Raises ConfigError with the column."""
    return _Parser(text, known).parse()


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    column: int


class _Parser:
    def __init__(self, text: str, known: Collection[str] | None) -> None:
        self._text, self._known = text, known
        self._names: set[str] = set()
        self._depth = 0
        if len(text) > MAX_LENGTH:
            raise ConfigError(f"constraint {text[:40]!r}...: longer than {MAX_LENGTH} characters")
        self._tokens = self._split()
        self._next = 0

    def parse(self) -> tuple[Node, frozenset[str]]:
        root = self._logic()
        if self._peek().kind != "end":
            self._fail(f"{self._peek().text!r} was not expected here")
        if isinstance(root, (Chain, Null)) or (isinstance(root, Literal) and not isinstance(root.constant, bool)):
            self._fail("says neither true nor false; compare it with something", self._tokens[0])
        return root, frozenset(self._names)

    def _fail(self, message: str, token: _Token | None = None) -> NoReturn:
        column = (token or self._peek()).column
        raise ConfigError(f"constraint {self._text!r}, column {column}: {message}")

    def _split(self) -> list[_Token]:
        tokens, position, end = [], 0, len(self._text.rstrip())
        while position < end:
            match = _TOKEN.match(self._text, position)
            if match is None:
                start = position + len(self._text[position:]) - len(self._text[position:].lstrip())
                self._fail(f"{self._text[start]!r} cannot be used here", _Token("bad", "", start + 1))
            kind = str(match.lastgroup)
            token = _Token(kind, match.group(kind), match.start(kind) + 1)
            position = match.end()
            if kind == "name":
                word = self._known_part(token.text)
                token, position = _Token(kind, word, token.column), match.start(kind) + len(word)
            elif kind == "op" and token.text in _INSTEAD:
                self._fail(f"write {_INSTEAD[token.text]!r} instead of {token.text!r}", token)
            elif kind == "op" and token.text == "**":
                self._fail("there is no power operator; write the product", token)
            tokens.append(token)
        return [*tokens, _Token("end", "the end", end + 1)]

    def _known_part(self, word: str) -> str:
        """The longest known flag at the start of `word`, cut at a hyphen; the whole word where none is known."""
        if self._known is not None:
            offset = 2 if word.startswith("--") else 0
            cut = len(word)
            while cut > offset:
                if word[offset:cut].replace("_", "-") in self._known:
                    return word[:cut]
                cut = word.rfind("-", offset, cut)
        return word

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> str | None:
        """The next token if it is one of these operators or words, otherwise None and nothing is taken."""
        token = self._peek()
        if token.kind in ("op", "name") and token.text in texts:
            self._next += 1
            return token.text
        return None

    def _expect(self, text: str) -> None:
        if self._take(text) is None:
            self._fail(f"{text!r} was expected, not {self._peek().text!r}")

    def _deeper(self, step: int) -> None:
        self._depth += step
        if self._depth > MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} deep")

    def _logic(self, word: str = "or") -> Node:
        def part() -> Node:
            return self._logic("and") if word == "or" else self._not()

        parts = [part()]
        while self._take(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Logic(word, tuple(parts))

    def _not(self) -> Node:
        if self._take("not") is None:
            return self._comparison()
        self._deeper(1)
        inner = Logic("not", (self._not(),))
        self._deeper(-1)
        return inner

    def _comparison(self) -> Node:
        first = self._sum()
        negated = self._peek().text == "not" and self._tokens[min(self._next + 1, len(self._tokens) - 1)].text == "in"
        if negated:
            self._next += 1
        if self._take("in"):
            return In(first, self._list(), negated)
        rest: list[tuple[str, Node]] = []
        left = first
        while symbol := self._take("==", "!=", *COMPARE):
            right = self._sum()
            if symbol not in ("==", "!=") and (isinstance(left, Null) or isinstance(right, Null)):
                self._fail("null has no size; only == and != compare with it")
            rest.append((symbol, right))
            left = right
        return Compare(first, tuple(rest)) if rest else first

    def _list(self) -> tuple[Node, ...]:
        self._expect("(")
        options = [self._sum()]
        while self._take(","):
            if self._peek().text == ")":
                break
            options.append(self._sum())
        self._expect(")")
        return tuple(options)

    def _sum(self) -> Node:
        return self._chain(("+", "-"), lambda: self._chain(("*", "/", "//", "%"), self._unary))

    def _chain(self, symbols: tuple[str, ...], operand: Callable[[], Node]) -> Node:
        first = operand()
        rest: list[tuple[str, Node]] = []
        while symbol := self._take(*symbols):
            rest.append((symbol, operand()))
        if rest and any(isinstance(node, Null) for node in (first, *(node for _, node in rest))):
            self._fail("null is not a number")
        return Chain(first, tuple(rest)) if rest else first

    def _unary(self) -> Node:
        if (sign := self._take("-", "+")) is None:
            return self._atom()
        self._deeper(1)
        inner = Chain(Literal(0), ((sign, self._unary()),))
        self._deeper(-1)
        return inner

    def _atom(self) -> Node:
        token = self._peek()
        if self._take("("):
            self._deeper(1)
            inner = self._logic()
            self._deeper(-1)
            self._expect(")")
            return inner
        if token.kind in ("op", "end") or token.text in ("and", "or", "not", "in"):
            self._fail(f"a flag or a value was expected, not {token.text!r}")
        self._next += 1
        if token.kind == "text":
            return Literal(token.text[1:-1])
        if token.kind == "number":
            return Literal(self._decimal(token))
        if token.text in _CONSTANTS:
            return Literal(_CONSTANTS[token.text])
        if token.text in _NULLS:
            return Null()
        name = token.text.removeprefix("--").replace("_", "-")
        self._names.add(name)
        return Name(name)

    def _decimal(self, token: _Token) -> Number:
        _, _, exponent = token.text.lower().partition("e")
        if len(token.text) > _MAX_DIGITS or abs(int(exponent or 0)) > _MAX_EXPONENT:  # exact: 1e-9999999 costs memory
            self._fail("this number is too long", token)
        following = self._peek()
        if following.kind in ("name", "number") and following.column == token.column + len(token.text):
            self._fail(f"{token.text}{following.text} is not a number", token)
        exact = Fraction(token.text)
        return exact.numerator if exact.denominator == 1 else exact
