"""What a trial tells of its load while it runs, and who may stop it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sweep.metrics import Part, RequestColumns
from sweep.records import EngineSample, RequestRecord, RoundRecord


@dataclass(frozen=True, slots=True)
class RoundReport:
    """Where a trial stands after a round. `number` is the trial's, `round` counts from 0, `planned` rounds in all.

    `requests` and `rounds` are those of the rounds so far, `engine` every reading of this attempt; all its times, and
    `elapsed_s`, are in seconds since the attempt began, those of requests since their round did (`began_at_s`).
    """

    number: int
    round: int
    planned: int
    requests: tuple[tuple[RequestRecord, ...], ...]
    rounds: tuple[RoundRecord, ...]
    engine: tuple[EngineSample, ...]
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class RoundProgress:
    """Where a trial stands within round `round`, which began to send at `began_at_s`: `done` of `total` are answered.

    The rest is as in RoundReport; nothing is known of the requests of this round before its end.
    """

    number: int
    round: int
    planned: int
    began_at_s: float
    done: int
    total: int
    requests: tuple[tuple[RequestRecord, ...], ...]
    engine: tuple[EngineSample, ...]


@dataclass(frozen=True, slots=True)
class Hooks:
    """Who may stop a trial early. A text that is returned stops it for that reason; None goes on.

    `after_round` is asked after each round but the last, `during_round` about once a second while requests are sent and
    answered; what it stops loses the requests of that round.
    """

    after_round: Callable[[RoundReport], str | None] | None = None
    during_round: Callable[[RoundProgress], str | None] | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What a load came to: the finished rounds, and why it was stopped before its last one, None when it was not."""

    requests: tuple[tuple[RequestRecord, ...], ...]
    rounds: tuple[RoundRecord, ...]
    stopped_because: str | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The rounds as metrics are made of them."""
        return tuple(
            Part(RequestColumns.of(requests), one.duration_s, one.request_rate_per_s)
            for requests, one in zip(self.requests, self.rounds, strict=True)
        )

    @property
    def pooled(self) -> tuple[RequestRecord, ...]:
        """The requests of all rounds."""
        return tuple(request for part in self.requests for request in part)

    @property
    def duration_s(self) -> float:
        """The sum of the rounds' durations, which throughputs refer to."""
        return math.fsum(one.duration_s for one in self.rounds)
