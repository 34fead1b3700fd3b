"""Constraints between flags as plain text, such as `max-num-batched-tokens >= max-num-seqs`. Nothing is `eval`uated.

Grammar, loosest first: `or`; `and`; `not`; comparisons (`< <= > >= == !=`, chained as in `8 <= a < b`, and
`in (1, 2)`, `not in (...)`); `+ -`; `* / // %`; unary `-`; and parentheses, numbers, 'text', `true`, `false`,
`null`, flags.

Hyphens: `a-b` without spaces is the flag `a-b`, as vLLM spells its flags; a minus sign needs a space before it
(`a - b`). Where the known flags are given, the longest known one wins, so `max-num-seqs-1` is `max-num-seqs - 1`
unless there is such a flag. `max_num_seqs` and `--max-num-seqs` name the same flag.

Null: a flag that is null (or absent) is left to vLLM, so nothing is known of its value. What depends on it is
unknown, `and`/`or`/`not` follow three-valued logic, and a constraint whose truth is unknown holds. So
`max-num-batched-tokens >= max-num-seqs` holds when one of them is null, and `a != null` asks whether `a` is set.

Numbers are exact fractions of their decimal text: `0.1 * 3 == 0.3` holds. There is no power operator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sweep.errors import ConfigError
from sweep.expressions.nodes import Node, Undefined, truth
from sweep.expressions.parser import parse

__all__ = ["Constraint"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """One parsed constraint. `text` is as written, `names` the flags it uses, with hyphens."""

    text: str
    names: frozenset[str]
    _root: Node

    @classmethod
    def parse(cls, text: str, known: Collection[str] | None = None) -> Constraint:
        """The constraint written in `text`; `known` flag names settle where a name ends (see the module).

        Raises ConfigError, one line with the column, for anything outside the grammar.
        """
        root, names = parse(text, known)
        return cls(text, names, root)

    def holds(self, flags: Mapping[str, object]) -> bool:
        """Whether `flags` keep it. Unknown (a flag left to vLLM) holds; what divides by zero does not.

        Raises ConfigError when the values are of the wrong kind, such as text compared by `<`.
        """
        try:
            return truth(self._root.value(flags), "a constraint") is not False
        except Undefined:
            return False
        except ConfigError as error:
            raise ConfigError(f"constraint {self.text!r}: {error.message}") from None
