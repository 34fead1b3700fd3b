"""numba's `njit`, typed: a compiled function keeps the signature of its source."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """`function` compiled for calls from Python, at the first of them, and kept on disk where it can be."""
    try:
        return cast("Callable[P, R]", numba.njit(cache=True, error_model="numpy")(function))
    except RuntimeError:
        # numba finds no writable folder for its cache: compiled anew in each process then.
        return cast("Callable[P, R]", numba.njit(error_model="numpy")(function))


def inner(function: Callable[P, R]) -> Callable[P, R]:
    """`function` compiled for calls from compiled code alone: without a way in from Python it takes half the time."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "error_model": "numpy"}
    return cast("Callable[P, R]", numba.njit(**options)(function))
