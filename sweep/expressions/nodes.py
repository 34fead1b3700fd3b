"""The parts of a parsed constraint; each works out its value for given flags."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

from sweep.errors import ConfigError

Number = int | Fraction  # exact; whole numbers stay int, which is several times faster
Value = Number | bool | str | None  # None: unknown

COMPARE: dict[str, Callable[[Number, Number], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ARITHMETIC: dict[str, Callable[[Number, Number], Number]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda left, right: Fraction(left) / right,
    "//": operator.floordiv,
    "%": operator.mod,
}


class Undefined(Exception):
    """The expression has no value at this point: a division by zero, a number that is not finite."""


class Node(Protocol):
    def value(self, flags: Mapping[str, object]) -> Value: ...


@dataclass(frozen=True, slots=True)
class Literal:
    constant: Value

    def value(self, _: Mapping[str, object]) -> Value:
        return self.constant


@dataclass(frozen=True, slots=True)
class Null:
    """The word `null`; only beside `==`, `!=` and inside a list."""

    def value(self, _: Mapping[str, object]) -> Value:
        return None


@dataclass(frozen=True, slots=True)
class Name:
    name: str

    def value(self, flags: Mapping[str, object]) -> Value:
        found = flags.get(self.name)
        if found is None or isinstance(found, (bool, str, int)):
            return found
        if isinstance(found, float):
            if not math.isfinite(found):
                raise Undefined
            return _exact(found)
        raise ConfigError(f"{self.name} is {type(found).__name__}, which a constraint cannot use")


@dataclass(frozen=True, slots=True)
class Chain:
    """`first (op operand)*` of one precedence, from left to right; flat, so that long sums do not nest."""

    first: Node
    rest: tuple[tuple[str, Node], ...]

    def value(self, flags: Mapping[str, object]) -> Value:
        total = _number(self.first, flags, self.rest[0][0])
        for symbol, node in self.rest:
            operand = _number(node, flags, symbol)
            if total is None or operand is None:
                total = None
                continue
            try:
                total = ARITHMETIC[symbol](total, operand)
            except ZeroDivisionError:
                raise Undefined from None
        return total


@dataclass(frozen=True, slots=True)
class Compare:
    """`a < b <= c`: every neighbouring pair must hold."""

    first: Node
    rest: tuple[tuple[str, Node], ...]

    def value(self, flags: Mapping[str, object]) -> Value:
        left, results = self.first, []
        for symbol, right in self.rest:
            results.append(_compare(symbol, left, right, flags))
            left = right
        return _all(results)


@dataclass(frozen=True, slots=True)
class In:
    item: Node
    options: tuple[Node, ...]
    negated: bool

    def value(self, flags: Mapping[str, object]) -> Value:
        found = _any([_compare("==", self.item, option, flags) for option in self.options])
        return found if found is None or not self.negated else not found


@dataclass(frozen=True, slots=True)
class Logic:
    """`and`, `or` over all parts, `not` of one."""

    word: str
    parts: tuple[Node, ...]

    def value(self, flags: Mapping[str, object]) -> Value:
        values = [truth(part.value(flags), self.word) for part in self.parts]
        if self.word == "not":
            return None if values[0] is None else not values[0]
        return _all(values) if self.word == "and" else _any(values)


def _all(values: list[bool | None]) -> bool | None:
    return False if False in values else None if None in values else True


def _any(values: list[bool | None]) -> bool | None:
    return True if True in values else None if None in values else False


def _show(value: Value) -> str:
    if isinstance(value, (int, Fraction)) and not isinstance(value, bool):
        try:
            return f"{float(value):g}"
        except OverflowError:
            return "a huge number"
    return repr(value) if isinstance(value, str) else str(value).lower()


@lru_cache(maxsize=4096)
def _exact(number: float) -> Fraction:
    return Fraction(repr(number))


def _is_number(value: Value) -> bool:
    return isinstance(value, (int, Fraction)) and not isinstance(value, bool)


def _number(node: Node, flags: Mapping[str, object], symbol: str, known: Value = None) -> Number | None:
    """The number that `node` stands for, None where it is unknown; `known`: its value, where that was asked for."""
    value = node.value(flags) if known is None else known
    if value is None or (isinstance(value, (int, Fraction)) and not isinstance(value, bool)):
        return value
    flag = f"{node.name} = " if isinstance(node, Name) else ""
    digits = isinstance(value, str) and value.strip()[:1].isdigit()
    mend = "; write the number in full and without quotes" if digits else ""
    raise ConfigError(f"{flag}{_show(value)} is not a number, as {symbol!r} needs{mend}")


def truth(value: Value, word: str) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise ConfigError(f"{_show(value)} is neither true nor false, as {word!r} needs")


def _compare(symbol: str, left: Node, right: Node, flags: Mapping[str, object]) -> bool | None:
    a, b = left.value(flags), right.value(flags)
    if symbol in ("==", "!="):
        if isinstance(left, Null) or isinstance(right, Null):
            equal = a is None and b is None
        elif a is None or b is None:
            return None
        else:  # true is not 1 here, unlike in Python
            equal = (type(a) is type(b) or (_is_number(a) and _is_number(b))) and a == b
        return equal is (symbol == "==")
    x, y = _number(left, flags, symbol, a), _number(right, flags, symbol, b)
    return None if x is None or y is None else COMPARE[symbol](x, y)
