"""Flags as they are asked for: read, checked, and merged into the baseline's."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

from sweep.errors import UserError
from sweep.flags import canonical
from sweep.trial import Flag, Flags
from sweep.twinning.computed import COMPUTED


def parse_changes(texts: Sequence[str]) -> dict[str, Flag]:
    """`FLAG=VALUE` words as flags: numbers, true, false, `null` for vLLM's own default, anything else as text.

    Raises UserError for a word of another form and a flag given twice.
    """
    changes: dict[str, Flag] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        flag = canonical(name)
        if not equals or not flag:
            raise UserError(f"--set: {text!r} is not FLAG=VALUE, such as max-num-seqs=64")
        if flag in changes:
            raise UserError(f"--set: {flag} stands twice")
        changes[flag] = _value(value.strip())
    return changes


def _value(text: str) -> Flag:
    plain = text.lower()
    if plain in ("true", "false"):
        return plain == "true"
    if plain in ("", "null", "none"):
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def merged(baseline: Flags, fixed: Flags, changes: Flags) -> dict[str, Flag]:
    """All flags of the setting in question: the baseline's and the study's fixed ones, with `changes` on top.

    Raises UserError for a flag that neither is computed nor stands in the study, and for a value it cannot have.
    """
    known = {**fixed, **baseline}
    for name, value in changes.items():
        if name in COMPUTED:
            allowed, words = COMPUTED[name]
            if value is not None and not allowed(value):
                raise UserError(f"--set: {name} needs {words}, not {value!r}")
        elif name not in known:
            raise UserError(f"--set: {name!r} is {_unknown(name, {*COMPUTED, *known})}")
    return {**known, **changes}


def _unknown(name: str, known: Collection[str]) -> str:
    nearest = difflib.get_close_matches(name, sorted(known), n=1)
    reason = "neither a flag of this study nor one whose effect can be computed"
    return (
        f"{reason}; did you mean {nearest[0]!r}?" if nearest else f"{reason}; those are {', '.join(sorted(COMPUTED))}"
    )
