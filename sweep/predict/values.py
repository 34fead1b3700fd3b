"""What is asked, and what is answered, as plain values. Nothing here is text to show, but for cautions and notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sweep.trial import Flag, Flags, TrialKind
from sweep.twin import Interval
from sweep.twinning import Basis, KvTokens

LABEL = "simulated, not measured"
LEVEL = 0.9


@dataclass(frozen=True, slots=True)
class Question:
    """`changes` to the baseline's flags; None leaves a flag to vLLM. `request_rate_per_s` None: the study's own load.

    With `max_rate` the highest rate that keeps `slo` is wanted; `slo` empty stands for the study's own limits.
    """

    changes: Mapping[str, Flag] = field(default_factory=dict)
    request_rate_per_s: float | None = None
    max_rate: bool = False
    slo: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Nearest:
    """The measured trial whose settings are nearest. `changes`: flag -> (its value, the value asked for).

    `metrics` are computed anew from its requests, by the names of the answer's; `request_rates_per_s` are those it was
    measured at, None for all at once.
    """

    number: int
    kind: TrialKind
    changes: Mapping[str, tuple[Flag, Flag]]
    metrics: Mapping[str, float | None]
    completed: int
    request_rates_per_s: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Capacity:
    """The highest request rates that keep `slo` while answers keep up with requests: in requests a second.

    `sure_per_s`: at the upper end of every interval, and on a device a quarter slower; `expected_per_s`: as expected.
    None where even `lowest_per_s` does not; `highest_per_s`, the highest rate tried, is a bound and no answer.
    `binding` is what breaks first above `expected_per_s`: a metric, or "throughput". `requests` were simulated at each.
    """

    slo: Mapping[str, float]
    expected_per_s: float | None
    sure_per_s: float | None
    binding: str | None
    lowest_per_s: float
    highest_per_s: float
    requests: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What the twin makes of one setting under one load. `flags` are all of them, those left to vLLM as None.

    `metrics` have intervals of LEVEL. `request_rates_per_s` are those of the rounds, None for all at once; `own_load`
    says whether they are the study's. `saturated`: a small error in capacity changes the figures much.
    """

    study: str
    folder: str
    running: str | None
    flags: Flags
    changed: tuple[str, ...]
    own_load: bool
    request_rates_per_s: tuple[float | None, ...]
    requests: int
    metrics: Mapping[str, Interval]
    saturated: bool
    nearest: Nearest
    basis: Basis
    kv_tokens: KvTokens | None
    capacity: Capacity | None
    cautions: tuple[str, ...]
    notes: tuple[str, ...]
