"""What the flags that nearly every study sets can be, in any vLLM.

Percentages, quotes, thousands separators and zeros there would each cost a launch, or a night where they stand in every
trial. Of other flags vLLM's own help says what it says.
"""

from __future__ import annotations

import re

from sweep.config.mistakes import Mistake, shown
from sweep.config.models import Boolean, Choice, FlagValue, FloatRange, IntRange, ParameterSpec

_UTILIZATION = "gpu-memory-utilization"
# Whether vLLM reads 32k and 32K there (`human_readable_int`).
_COUNTS = {"max-num-seqs": False, "max-num-batched-tokens": True, "max-model-len": True, "block-size": False}
_READABLE = re.compile(r"(\d+(?:\.\d+)?)([kmgt])|(\d+)([KMGT])")
_POWERS = "kmgt"
_FITTED = ("auto", -1, "-1")  # max-model-len: as much as the memory holds


def check_known_value(name: str, value: FlagValue, *where: str | int) -> None:
    """Raise Mistake, at `where`, for what vLLM surely refuses of one of these flags."""
    if value is None:
        return
    if name == _UTILIZATION:
        number = _number(value)
        if number is None or not 0 < number <= 1 or isinstance(value, str):
            raise Mistake(f"is a share of a device's memory, above 0 and at most 1, {_not(value, number)}", *where)
    elif name in _COUNTS and not (name == "max-model-len" and value in _FITTED and not isinstance(value, bool)):
        if isinstance(value, str) and _COUNTS[name] and _READABLE.fullmatch(value):
            return
        number = _number(value)
        if number is None or number < 1 or number != int(number) or isinstance(value, str):
            raise Mistake(f"needs a whole number above 0, not {shown(value)}{_write(value, number)}", *where)


def count_of(value: object) -> int | None:
    """The whole number that vLLM reads: 4096 of 4096 and "4096", 32,000 of "32k", 32,768 of "32K". None of all else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    found = _READABLE.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        decimal, small, binary, large = found.groups()
        if small:
            return int(float(decimal) * 1e3 ** (_POWERS.index(small) + 1))
        return int(binary) << 10 * (_POWERS.index(large.lower()) + 1)
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() else None
    return int(value) if float(value).is_integer() else None


def check_known_range(name: str, spec: ParameterSpec, *where: str | int) -> None:
    """The same of every value that a parameter can take."""
    if isinstance(spec, Choice):
        for place, value in enumerate(spec.values):
            check_known_value(name, value, *where, "values", place)
    elif isinstance(spec, Boolean):
        if name in _COUNTS or name == _UTILIZATION:
            raise Mistake("is a number: search it as int, float or choice", *where)
    elif isinstance(spec, FloatRange) and name in _COUNTS:
        raise Mistake("is a whole number: search it as int or choice", *where)
    elif isinstance(spec, IntRange | FloatRange):
        check_known_value(name, spec.low, *where, "low")
        check_known_value(name, spec.high, *where, "high")


def _number(value: object) -> float | None:
    """The number that was meant, None where there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text = str(value).strip().removesuffix("%").replace(",", "").replace("_", "").strip()
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < 2**53 else None


def _not(value: object, number: float | None) -> str:
    percent = isinstance(value, str) and value.strip().endswith("%")
    if number is not None and (percent or number > 1) and 1 <= number <= 100:
        return f"not {shown(value)}; write {number / 100:g}"
    return f"not {shown(value)}" + (_write(value, number) if number is not None and 0 < number <= 1 else "")


def _write(value: object, number: float | None) -> str:
    if not isinstance(value, str) or number is None or number <= 0:
        return ""
    return f"; write {number:.12g}, without quotes"
