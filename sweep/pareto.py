"""The Pareto front: the trials of which none is better in every metric at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sweep.errors import ConfigError
from sweep.metric_table import parse_metric

_FEWEST, _MOST = 2, 3


def check_front(metrics: Sequence[str]) -> None:
    """Raises ConfigError unless these are two or three different metrics of the table."""
    names = {parse_metric(name).name for name in metrics}
    if len(names) != len(metrics) or not _FEWEST <= len(metrics) <= _MOST:
        raise ConfigError(f"a front is of two or three different metrics, not {', '.join(metrics) or 'none'}")


def front_of(points: Mapping[int, Sequence[float]], metrics: Sequence[str]) -> tuple[int, ...]:
    """The numbers of the points that no other dominates, in the order of `points`.

    A point holds one value a metric, in its own unit. One dominates another that is nowhere better and somewhere worse;
    of equal points all stay.
    """
    signs = [1.0 if parse_metric(name).lower_is_better else -1.0 for name in metrics]
    signed = {
        number: tuple(sign * value for sign, value in zip(signs, values, strict=True))
        for number, values in points.items()
    }
    return tuple(
        number for number, mine in signed.items() if not any(_dominates(other, mine) for other in signed.values())
    )


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)
