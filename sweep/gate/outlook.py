"""What a gate makes of a search space before anything is launched: sums at its ends, and how much is refused."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product

from sweep.errors import ConfigError
from sweep.gate.learned import CONFIDENCE, Learned
from sweep.memory import GIB, Forecast, Unknown
from sweep.search_space import SearchSpace
from sweep.trial import Flag, Flags

# Points that are judged: all of a smaller space, so many drawn of a larger one.
_JUDGED = 2_000
# Flags whose ends move memory most; the corners are those of the ones searched.
_CORNERS = (
    "gpu-memory-utilization",
    "max-num-seqs",
    "max-num-batched-tokens",
    "max-model-len",
    "tensor-parallel-size",
    "kv-cache-dtype",
)
_MOST_CORNERS = 256


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is expected of a space. `refused_share`: of `judged` points that keep its constraints, those that would be
    refused; `refused_by` counts them by rule. `nothing`: why nothing is said of memory.

    `baseline`, `most` and `least` are forecasts with their flags: of the flags in use, and of the corners of the space
    with the most and the least KV cache. None where there are none.
    """

    baseline: Forecast | None
    most: tuple[Flags, Forecast] | None
    least: tuple[Flags, Forecast] | None
    judged: int
    refused_by: tuple[tuple[str, int], ...]
    nothing: str | None

    @property
    def refused_share(self) -> float:
        """From 0 to 1."""
        return sum(count for _, count in self.refused_by) / self.judged if self.judged else 0.0

    def lines(self) -> list[str]:
        """The same for people."""
        lines = [] if self.nothing is None else [f"memory is not known, and no ground for a refusal: {self.nothing}"]
        if self.baseline is not None:
            lines.append(f"memory of the baseline, a device: {sum_text(self.baseline)}")
        for what, corner in (("most", self.most), ("least", self.least)):
            if corner is not None:
                flags = ", ".join(f"{name} {value}" for name, value in corner[0].items())
                lines.append(f"the corner with the {what} KV cache ({flags}): {sum_text(corner[1])}")
        by = ", ".join(f"{100 * count / self.judged:.0f} % {rule}" for rule, count in self.refused_by)
        lines.append(f"the gate would refuse {100 * self.refused_share:.0f} % of the space{f' ({by})' if by else ''}")
        return lines


def outlook(learned: Learned, space: SearchSpace, baseline: Flags, *, seed: int) -> Outlook:
    """What `learned` expects of a space; the same for the same seed."""
    forecasts = ((corner, learned.forecast(corner)) for corner in _corners(space, baseline))
    corners = [(corner, found) for corner, found in forecasts if not isinstance(found, Unknown)]
    points = list(_points(space, seed))
    refusals = [found.rule for point in points if (found := learned.refusal(point, CONFIDENCE)) is not None]
    of_baseline = learned.forecast(baseline)
    shown = [({name: corner[name] for name in corner if name in _CORNERS}, found) for corner, found in corners]
    return Outlook(
        baseline=None if isinstance(of_baseline, Unknown) else of_baseline,
        most=max(shown, key=_left, default=None),
        least=min(shown, key=_left, default=None),
        judged=len(points),
        refused_by=tuple(Counter(refusals).most_common()),
        nothing=of_baseline.reason if isinstance(of_baseline, Unknown) else learned.nothing_of_memory,
    )


def sum_text(found: Forecast) -> str:
    """The sum in one line: GiB, tokens, requests of the longest length, and whether it starts."""
    parts = found.parts
    work = (parts.activation_bytes + parts.graph_bytes + parts.fixed_bytes) / GIB
    requests = ""
    if found.requests_of_longest is not None and parts.longest_tokens:
        requests = f", {found.requests_of_longest:.1f} requests of {parts.longest_tokens:,} tokens"
    return (
        f"{parts.budget_bytes / GIB:.2f} GiB = {parts.weight_bytes / GIB:.2f} weights + {work:.2f} work + "
        f"{parts.kv_bytes / GIB:.2f} KV cache, {found.kv_tokens:,} tokens (95 %: {found.kv_tokens_low:,} to "
        f"{found.kv_tokens_high:,}){requests}; starts with {100 * found.starts:.0f} % probability"
    )


def _left(one: tuple[Flags, Forecast]) -> float:
    return one[1].parts.kv_bytes / one[1].parts.bytes_per_token


def _corners(space: SearchSpace, baseline: Flags) -> Iterator[dict[str, Flag]]:
    """The ends of the parameters that move memory, with the others as in the baseline."""
    ends = []
    for parameter in space.parameters:
        if parameter.name not in _CORNERS:
            continue
        ends.append([(parameter.name, value) for value in dict.fromkeys(parameter.ends())])
    for corner in islice(product(*ends), _MOST_CORNERS):
        point = {**baseline, **dict(corner)}
        if space.violated(point) is None:
            yield point


def _points(space: SearchSpace, seed: int) -> Iterator[dict[str, Flag]]:
    size = space.size()
    if size is not None and size <= _JUDGED:
        yield from space.points()
        return
    rng = random.Random(f"{seed}/outlook")
    for _ in range(_JUDGED):
        try:
            yield space.sample(rng)
        except ConfigError:  # next to no point keeps the constraints
            return
