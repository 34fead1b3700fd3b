"""What the verdict is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What the confirmation came to. The flags in use stay in the last two cases.

    BETTER: a configuration is better beyond doubt. KEEP: the measurement is sharp enough, or points the other way, and
    nothing is. NO_CLEAR_WINNER: the leader looks better, but so might chance; more launches could tell.
    """

    BETTER = "better"
    NO_CLEAR_WINNER = "no clear winner"
    KEEP = "keep your flags"


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its limits, in one unit."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """high - low."""
        return self.high - self.low


@dataclass(frozen=True, slots=True)
class Effect:
    """A confirmed configuration against the baseline. `score` as in `sweep.objective`: 0.88 is 12 % better.

    The interval holds the truth with the stated level whichever candidate turns out to lead: its upper limit allows
    for the choice among all candidates. `violations` are of the mean metrics (above zero is a breach). `clear`: better
    than the baseline beyond doubt, SLOs included. `changed`: how many flags differ from the baseline's.
    """

    key: int
    launches: int
    score: Interval
    violations: Mapping[str, float]
    changed: int
    clear: bool

    @property
    def feasible(self) -> bool:
        """Whether every SLO is kept."""
        return all(excess <= 0 for excess in self.violations.values())

    @property
    def gain(self) -> Interval:
        """1 - score, so that 0.12 is 12 % better."""
        return Interval(1 - self.score.value, 1 - self.score.high, 1 - self.score.low)

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Sorts best first: SLOs kept, then by how far they are missed, then by score."""
        excess = sum(max(0.0, value) for value in self.violations.values())
        return (excess > 0, excess, self.score.value)


@dataclass(frozen=True, slots=True)
class MetricLine:
    """One metric of the baseline and of the leader, in its unit, and leader / baseline. `thin`: a percentile that too
    few requests stand behind in a launch, see `samples_needed`."""

    name: str
    baseline: Interval
    leader: Interval
    ratio: Interval
    thin: bool = False


@dataclass(frozen=True, slots=True)
class Shrinkage:
    """What the search believed of a configuration and what held. `luck` is the difference: above zero it was luck."""

    key: int
    search_score: float
    confirmed_score: float

    @property
    def luck(self) -> float:
        """confirmed_score - search_score."""
        return self.confirmed_score - self.search_score


@dataclass(frozen=True, slots=True)
class Spread:
    """Standard deviations of the log score of one launch (0.05: about 5 %): in all, and from its requests alone.

    Where the second is most of the first more prompts help, otherwise only more launches do.
    """

    launch_sd: float
    requests_sd: float
    df: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """`winner` is the configuration to use, None where the flags stay. `effects` come best first; `leader` is the first
    of them, `tied` are the clear ones that cannot be told from it. `launches` are those of the baseline, `unusable`
    those left out for want of a metric. `level` is that of the intervals, `sentence` the verdict in words.
    """

    outcome: Outcome
    winner: int | None
    leader: Effect | None
    effects: tuple[Effect, ...]
    tied: tuple[int, ...]
    baseline_feasible: bool
    metrics: tuple[MetricLine, ...]
    shrinkage: tuple[Shrinkage, ...]
    spread: Spread | None
    launches: int
    unusable: int
    level: float
    sentence: str

    def effect(self, key: int) -> Effect | None:
        """The effect of that configuration."""
        return next((effect for effect in self.effects if effect.key == key), None)
