"""Whether the flags of the three places of a study file - fixed, searched, today's - go together."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence

from sweep.config.known_flags import check_known_range, check_known_value
from sweep.config.mistakes import Mistake, shown
from sweep.config.models import Boolean, Choice, FlagValue, FloatRange, IntRange, ParameterSpec
from sweep.trial import Flag

PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
"""One trial's parallel sizes multiply to its devices."""

_OURS = frozenset(
    {
        *("host", "port", "api-key", "config", "uds"),
        *("served-model-name", "model", "chat-template", "chat-template-content-format"),
    }
)


def check_agreement(
    fixed: Mapping[str, FlagValue], searched: Mapping[str, ParameterSpec], baseline: Mapping[str, Flag]
) -> None:
    """Raise Mistake for a flag that is not the user's to set, stands in two places, or cannot be what it is there."""
    places: Sequence[tuple[tuple[str, ...], Collection[str]]] = (
        (("serve", "flags"), fixed),
        (("search_space", "parameters"), searched),
        (("baseline",), baseline),
    )
    for where, names in places:
        for name in names:
            positive = name.removeprefix("no-")
            if name in _OURS or positive in _OURS:
                raise Mistake("is set by sweep; see the keys of model and serve", *where, name)
            if positive != name and (positive in searched or positive in fixed):
                raise Mistake(f"{positive} and {name} are one flag; set {positive} to true or false", *where, name)
    for name in searched:
        if name in fixed:
            raise Mistake("is also fixed under serve.flags; keep one of the two", "search_space", "parameters", name)
    for name, given in fixed.items():
        check_known_value(name, given, "serve", "flags", name)
    for name, spec in searched.items():
        check_known_range(name, spec, "search_space", "parameters", name)
    for name, value in baseline.items():
        if name in fixed:
            raise Mistake(
                "is also fixed under serve.flags; a flag that is not searched belongs there alone", "baseline", name
            )
        if name not in searched:
            near = difflib.get_close_matches(name, searched, n=1)
            mend = f"did you mean {near[0]!r}?" if near else "put it under serve.flags, or search it"
            raise Mistake(f"is not under search_space.parameters; {mend}", "baseline", name)
        if fault := _misfit(value, searched[name]):
            raise Mistake(f"is {shown(value)}, but {fault}", "baseline", name)
        check_known_value(name, value, "baseline", name)
    _check_sizes(fixed, searched, baseline)


def size_of(value: object) -> int | None:
    """A parallel size as vLLM would read it from a command line: 1 where it is left out, None where it is no size."""
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else None


def _check_sizes(
    fixed: Mapping[str, FlagValue], searched: Mapping[str, ParameterSpec], baseline: Mapping[str, Flag]
) -> None:
    """The devices of a trial are counted by them."""
    for name in PARALLEL:
        given: list[tuple[object, tuple[str | int, ...]]] = [
            (fixed.get(name), ("serve", "flags", name)),
            (baseline.get(name), ("baseline", name)),
        ]
        spec, at = searched.get(name), ("search_space", "parameters", name)
        if isinstance(spec, Choice):
            given += [(value, (*at, "values", place)) for place, value in enumerate(spec.values)]
        elif isinstance(spec, IntRange):
            given.append((spec.low, (*at, "low")))
        elif spec is not None:
            raise Mistake("is a number of devices: search it as int or choice", *at)
        for value, where in given:
            if size_of(value) is None:
                raise Mistake(f"needs a whole number of devices, not {shown(value)}", *where)


def _misfit(value: Flag, spec: ParameterSpec) -> str | None:
    """What is wrong with a baseline's value by its kind; it may lie outside the range. None when it fits."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is None:
        return None
    if isinstance(spec, IntRange) and not (number and float(value) == int(value)):
        return "a whole number is searched"
    if isinstance(spec, FloatRange) and not number:
        return "a number is searched"
    if isinstance(spec, Boolean) and not isinstance(value, bool):
        return "true or false is searched"
    return None
