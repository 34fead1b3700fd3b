"""The quantiles that small samples need: Student's t, the tail of F, and Dunnett's many-to-one t. numpy alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

# Beyond so many degrees of freedom Student's t is the normal distribution to three digits.
_MOST_DF = 1000.0

Array = NDArray[np.float64]
_erf = np.vectorize(math.erf, otypes=[float])


def t_tail(t: float, df: float) -> float:
    """P(T > t) of Student's t with `df` degrees of freedom; Abramowitz & Stegun 26.7.1."""
    tail = 0.5 * _beta_share(df / 2, 0.5, df / (df + t * t))
    return tail if t >= 0 else 1 - tail


@lru_cache(maxsize=4096)
def t_quantile(tail: float, df: float) -> float:
    """The t that P(T > t) = `tail` holds for, 0 < tail <= 0.5."""
    return _solve(lambda t: t_tail(t, df), tail)


def f_tail(f: float, df_above: float, df_below: float) -> float:
    """P(F > f) of the ratio of two variances with these degrees of freedom; Abramowitz & Stegun 26.6.2."""
    return _beta_share(df_below / 2, df_above / 2, df_below / (df_below + df_above * f))


@lru_cache(maxsize=4096)
def dunnett_quantile(tail: float, weights: tuple[float, ...], df: float) -> float:
    """The c that k comparisons with one control all stay below with probability 1 - `tail`, where nothing differs.

    One-sided. `weights` are the lambda of Dunnett (1955): the comparisons i and j correlate by lambda_i * lambda_j;
    sqrt(n_i / (n_i + n_control)) for means of n, so sqrt(1/2) each in a balanced design. For a single comparison this
    is Student's quantile. The integral over the control's error and over the estimated variance is taken numerically.
    """
    if len(weights) == 1:
        return t_quantile(tail, df)
    share = np.array(weights)[:, None, None]
    spread = np.sqrt(1 - share**2)
    control, control_weight = _normal_nodes()
    scale, scale_weight = _scale_nodes(min(df, _MOST_DF))

    def beyond(c: float) -> float:
        inside = _normal_cdf((share * control[None, :, None] + c * scale[None, None, :]) / spread).prod(axis=0)
        return 1 - float(control_weight @ inside @ scale_weight)

    return _solve(beyond, tail)


def _solve(tail_of: Callable[[float], float], tail: float) -> float:
    """Where a falling tail probability reaches `tail`, to a relative 1e-6."""
    if not 0 < tail <= 0.5:
        raise ValueError(f"a tail probability of {tail} has no quantile here")
    low, high = 0.0, 2.0
    while tail_of(high) > tail:
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if tail_of(middle) > tail else (low, middle)
    return (low + high) / 2


def _normal_cdf(x: Array) -> Array:
    return np.asarray(0.5 * (1 + _erf(x / math.sqrt(2))))


@lru_cache(maxsize=1)
def _normal_nodes() -> tuple[Array, Array]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(32)
    return nodes, weights / weights.sum()


@lru_cache(maxsize=256)
def _scale_nodes(df: float) -> tuple[Array, Array]:
    """Nodes and weights for s / sigma, the square root of chi-square / df."""
    nodes, weights = np.polynomial.legendre.leggauss(32)
    half = 5.5 / math.sqrt(2 * df)
    low, high = max(0.0, 1 - half), 1 + half
    scale = low + (high - low) * (nodes + 1) / 2
    log_density = (df - 1) * np.log(scale) - df * scale**2 / 2
    density = weights * np.exp(log_density - log_density.max())
    return scale, density / density.sum()


def _beta_share(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (Abramowitz & Stegun 26.5.8)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_share(b, a, 1 - x)
    front = math.exp(
        a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) - math.log(a)
    )
    # Lentz's method from the front; `tiny` stands in for a denominator of zero.
    tiny = 1e-300
    c, d, value = 1.0, 0.0, 1.0
    for step in range(400):
        m, odd = divmod(step, 2)
        if step == 0:
            term = 1.0
        elif odd:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 + term * d
        d = 1 / (d if d else tiny)
        c = 1 + term / c
        c = c if c else tiny
        value *= c * d
        if abs(1 - c * d) < 1e-12 and step:
            break
    return front * (value - 1.0)
