"""Where waiting begins: the knee of a server under rising request rates, and where a study's rate lies.

Far below the knee nothing waits and every flag looks the same; above it requests arrive faster than they are answered,
and a latency says how long the load was. A calibration finds the knee on one server with a ladder of short rounds. The
first sends all at once: what is answered a second then is about the most the server can do, whatever it is. From a
quarter of that the rate doubles until a round takes off, then the step is halved twice.

A round has taken off when either holds, `low` being the lowest rate measured:
- waits: its p95 TTFT is above twice that of `low`, and requests waited in the engine. Twice the delay of an idle system
  is where throughput / delay is greatest for an M/M/1 queue (L. Kleinrock, "Power and deterministic rules of thumb for
  probabilistic problems in computer communications", ICC 1979); the highest rate within a limit on the response time is
  the usable capacity of R. Jain, "The Art of Computer Systems Performance Analysis", 1991, section 3.3.
- throughput: n requests at rate r took more than (n / r + p95 E2EL of `low`) / 0.9 to be answered: answers no longer
  follow the rate, the time of the last ones allowed for. It sees what queues out of sight: replies that all grow slower
  together, or a load client that may only send so many at once.

The knee is the highest rate measured below every one that took off: known to a factor of 1.19, from below. It is where
waiting begins, for one request in twenty: with 32 slots at about 0.7 of the capacity, with 4 at less than half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sweep.records import RoundRecord

_STEPS = 4  # of an octave
LADDER: tuple[float | None, ...] = (None, *(2.0 ** (step / _STEPS) for step in range(-6 * _STEPS, 10 * _STEPS + 1)))
"""What may be sent: all at once, then 1/64 to 1,024 requests a second in steps of a fourth of an octave."""

ROUNDS_AT_MOST = 9
"""The burst, six doublings from a quarter to eight times of it, two halvings of the step."""

# The burst takes 1; a quarter of its rate takes 4, half 2, the rate itself, its double and two between 1 or less each.
LOAD_IN_BURSTS = 10

_SLOWER = 2.0
_FOLLOWS = 0.9
_FAR_BELOW = 0.5
_LOW_SHARE, _HIGH_SHARE = 0.5, 0.8  # of the knee: two rates worth a list
_START, _END = 0.25, 8.0


@dataclass(frozen=True, slots=True)
class Knee:
    """`below_per_s` is the knee, `above_per_s` the lowest rate that took off, None where none did, `why` what took off.

    `burst_per_s` is what was answered a second of all at once, `low` the round at the lowest rate. `client_late`: at
    `above_per_s` the load client itself was late, and may be what could not follow.
    """

    below_per_s: float
    above_per_s: float | None
    why: str
    burst_per_s: float
    low: RoundRecord
    client_late: bool = False


def find_knee(rounds: Sequence[RoundRecord]) -> Knee | None:
    """The knee by the rounds of a calibration in the order they ran; None before one had a rate."""
    rated = sorted(((rate, one) for one in rounds if (rate := one.request_rate_per_s) is not None), key=lambda p: p[0])
    if not rated:
        return None
    low = rated[0][1]
    below_per_s = rated[0][0]
    burst_per_s = next((answered_per_s(one) for one in rounds if one.request_rate_per_s is None), below_per_s)
    for rate, one in rated[1:]:
        if (why := taken_off(one, low)) is not None:
            return Knee(below_per_s, rate, why, burst_per_s, low, bool(one.disturbed))
        below_per_s = rate
    return Knee(below_per_s, None, "", burst_per_s, low)


def taken_off(one: RoundRecord, low: RoundRecord) -> str | None:
    """In which way a round took off against the one at the lowest rate; None when it keeps up."""
    usual_ms, ttft_ms = low.p95_ttft_ms, one.p95_ttft_ms
    if usual_ms is not None and ttft_ms is not None and ttft_ms > _SLOWER * usual_ms and _waited(one, usual_ms):
        return f"p95 TTFT rises from {usual_ms:,.3g} to {ttft_ms:,.3g} ms, and requests wait"
    if one.request_rate_per_s is None or low.p95_e2el_ms is None:
        return None
    if one.prompts / one.request_rate_per_s + low.p95_e2el_ms / 1000.0 < _FOLLOWS * one.duration_s:
        return f"only {answered_per_s(one):.3g} requests/s are answered"
    return None


def _waited(one: RoundRecord, low_ttft_ms: float) -> bool:
    """Whether the engine had a queue; where it does not tell, the latencies must do."""
    if one.peak_waiting is None and one.mean_queue_time_ms is None:
        return True
    # The gauge is read once a second and misses short queues, the mean has them all.
    return (one.peak_waiting or 0.0) >= 1.0 or (one.mean_queue_time_ms or 0.0) > low_ttft_ms / 2


def answered_per_s(one: RoundRecord) -> float:
    """Requests answered a second over a whole round."""
    return one.completed / one.duration_s if one.duration_s > 0 else 0.0


def next_rung(ladder: Sequence[float | None], rounds: Sequence[RoundRecord]) -> int | None:
    """The index on the ladder of the round to send next; None once the knee is known as well as it will be.

    `ladder` is None for all at once, then rising rates; `RoundRecord.round` is the index on it.
    """
    if not rounds:
        return 0
    knee = find_knee(rounds)
    top = len(ladder) - 1
    if knee is None:
        wanted = _START * answered_per_s(rounds[0])
        return max((index for index in range(1, top + 1) if (ladder[index] or 0.0) <= wanted), default=1)
    at = {one.request_rate_per_s: one.round for one in rounds}
    lower = at[knee.below_per_s]
    if knee.above_per_s is None:
        enough = lower == top or knee.below_per_s >= _END / 2**0.5 * knee.burst_per_s
        return None if enough else min(lower + _STEPS, top)
    upper = at[knee.above_per_s]
    return None if upper - lower <= 1 else (lower + upper) // 2


def describe(knee: Knee, rates: Sequence[float | None], *, share: float | None = None) -> list[str]:
    """Lines for the person: the knee, and where each rate of the study lies; None is all at once. `share`: of the knee,
    where that is what the study asked for."""
    if knee.above_per_s is None:
        lines = [
            f"calibration: no knee up to {knee.below_per_s:.3g} requests/s, the highest rate measured; all at once, "
            f"{knee.burst_per_s:.3g} a second were answered"
        ]
    else:
        late = "; the load client itself was late there and may be the limit" if knee.client_late else ""
        lines = [
            f"calibration: the knee is at {knee.below_per_s:.3g} requests/s; at {knee.above_per_s:.3g}, "
            f"{knee.why}{late}"
        ]
    if share is not None:
        rate = rate_at(knee, share)
        return [*lines, f"load.request_rate: auto is {rate:g} requests/s, {share:g} of the knee"]
    return [*lines, *(_place(knee, rate) for rate in dict.fromkeys(rates))]


def _place(knee: Knee, rate: float | None) -> str:
    remedy = (
        "load.request_rate: auto takes load.knee_share of the knee, 0.8 if nothing is said, and a list such as "
        f"[{rate_at(knee, _LOW_SHARE):g}, {rate_at(knee, _HIGH_SHARE):g}] judges several rates in one objective"
    )
    if rate is None:
        return (
            "warning: the load sends all at once: latencies are mostly the wait for requests sent before, and depend "
            f"on load.num_prompts; {remedy}"
        )
    share = rate / knee.below_per_s
    if share < _FAR_BELOW:
        least = "" if knee.above_per_s is not None else "at most "
        return (
            f"warning: load.request_rate of {rate:g} is far below the knee, {least}{share:.0%} of "
            f"{knee.below_per_s:.3g} requests/s: hardly anything waits, and most flags will look the same; {remedy}"
        )
    if knee.above_per_s is not None and rate >= knee.above_per_s:
        return (
            f"warning: load.request_rate of {rate:g} is above the knee, {knee.below_per_s:.3g} requests/s: requests "
            "arrive faster than today's flags answer them, waits grow without bound, and latencies depend on "
            f"load.num_prompts; {remedy}"
        )
    if knee.above_per_s is None and share > 1:
        return (
            f"warning: load.request_rate of {rate:g} is above {knee.below_per_s:.3g} requests/s, the highest rate that "
            f"was measured: whether today's flags can answer it is not known; {remedy}"
        )
    return f"load.request_rate of {rate:g} is {share:.0%} of the knee: this load can tell flags apart"


def rate_at(knee: Knee, share: float) -> float:
    """Requests a second at this share of the knee, to three digits."""
    return float(f"{share * knee.below_per_s:.3g}")
