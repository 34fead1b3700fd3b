"""In the middle of a round: what the engine's counters already settle, before a single latency is known.

The load client tells its latencies at the end of a round; the engine is read every second. Each rule compares with
the incumbent at the same second of the same round, where the same requests had arrived, and each speaks only where
what it sees counts in the objective: a server that queues much and streams fast is the best there is when nothing but
TPOT has a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweep.metric_table import parse_metric, rate_text
from sweep.objective import Objective
from sweep.racing.race import Incumbent, RaceDecision
from sweep.racing.rounds import Round
from sweep.racing.slo import Planned, beyond_repair
from sweep.racing.trace import LiveTrace
from sweep.records import EngineSample


@dataclass(frozen=True, slots=True)
class LiveLimits:
    """Where the rules begin. No rule speaks before `look_after_s` of a round; all conditions of a rule must hold.

    queue: `min_waiting` requests wait, `factor` times as many as ever with the incumbent, ever more during the last
    half, and the waits that this implies are `factor` times worse than its score. preemptions: `min_preemptions`, as
    many as requests that were answered or run, `factor` times the incumbent's share of them, and fewer than half of its
    answers so far. frozen: no token read or written for `frozen_s`, and for `factor` times the incumbent's longest
    pause.
    """

    look_after_s: float = 20.0
    min_waiting: float = 20.0
    min_preemptions: float = 20.0
    factor: float = 3.0
    frozen_s: float = 60.0


def live_verdict(
    samples: Sequence[EngineSample],
    incumbent: Incumbent | None,
    objective: Objective,
    *,
    round_index: int,
    started_at_s: float,
    planned: Planned,
    rounds: Sequence[Round] = (),
    limits: LiveLimits = LiveLimits(),
) -> RaceDecision:
    """The verdict on round `round_index` that runs since `started_at_s` (on the samples' clock); ask every few seconds.

    `samples` may begin earlier. `rounds` holds what is known of requests, the part of the present round included.
    Without an incumbent nothing is ever stopped: so runs the baseline.
    """
    if incumbent is None:
        return RaceDecision(False, "nothing to compare with")
    if (broken := beyond_repair(rounds, objective, planned, incumbent.violations)) is not None:
        return RaceDecision(True, broken, "slo")
    reference = incumbent.traces[round_index] if round_index < len(incumbent.traces) else None
    if reference is None:
        return RaceDecision(False, "nothing is known of this round with the best trial so far")
    trace = LiveTrace.of(samples, started_at_s=started_at_s)
    if len(trace.at_s) < 4 or trace.at_s[-1] < limits.look_after_s:
        return RaceDecision(False, "the round has just begun")
    if (pause := _frozen(trace, reference, limits)) is not None:
        return RaceDecision(True, pause, "frozen")
    if (storm := _storm(trace, reference, objective, limits)) is not None:
        return RaceDecision(True, storm, "preemptions")
    at = rate_text(planned.rates[round_index]) if planned.rates else None
    if (queue := _queue(trace, reference, incumbent, objective, limits, at)) is not None:
        return RaceDecision(True, queue, "queue")
    return RaceDecision(False, "nothing out of the ordinary")


def _frozen(trace: LiveTrace, reference: LiveTrace, limits: LiveLimits) -> str | None:
    if np.isnan(trace.tokens).any() or not trace.waiting[-1] + trace.running[-1] > 0:
        return None
    still_s = float(trace.at_s[-1] - trace.at_s[np.argmax(trace.tokens == trace.tokens[-1])])
    if still_s < max(limits.frozen_s, limits.factor * reference.longest_pause_s()):
        return None
    return f"requests wait, and no token was read or written for {still_s:.0f} s"


def _storm(trace: LiveTrace, reference: LiveTrace, objective: Objective, limits: LiveLimits) -> str | None:
    """Preemption throws computed tokens away: what suffers is the pace of replies and the throughput."""
    if all(parse_metric(name).stem == "ttft" for name in objective.metrics_needed()):
        return None
    same_time = reference.until(float(trace.at_s[-1]))
    if not len(same_time.at_s):
        return None
    count, answered = float(trace.preemptions[-1]), float(trace.finished[-1])
    before, before_answered = float(same_time.preemptions[-1]), float(same_time.finished[-1])
    share = count / max(1.0, answered + float(trace.running[-1]))
    usual = before / max(1.0, before_answered + float(same_time.running[-1]))
    rising = count > float(trace.preemptions[_half(trace)])
    # A comparison with nan is false: what is not known stops nothing.
    if not (count >= limits.min_preemptions and share >= 1.0 and share > limits.factor * usual and rising):
        return None
    if not (before_answered >= 10 and answered < before_answered / 2):
        return None
    return (
        f"preemption storm: {count:.0f} preemptions for {answered:.0f} answers, "
        f"where the best trial so far had {before:.0f} for {before_answered:.0f}"
    )


def _queue(
    trace: LiveTrace,
    reference: LiveTrace,
    incumbent: Incumbent,
    objective: Objective,
    limits: LiveLimits,
    at: str | None,
) -> str | None:
    """Little's law (J. D. C. Little, Operations Research 9 (1961) 383-387): who joins a queue of n requests, of which r
    a second are answered, waits n / r seconds."""
    if np.isnan(reference.waiting).all():
        return None
    half = _half(trace)
    waiting = trace.waiting
    middle = (half + len(waiting)) // 2
    most = float(np.nanmax(reference.waiting))
    # Rising in the last half of what was seen: its second part nowhere below the most of its first.
    rising = float(np.min(waiting[middle:])) >= float(np.max(waiting[half:middle])) and waiting[-1] > waiting[half]
    if not (rising and waiting[-1] >= max(limits.min_waiting, limits.factor * most)):
        return None
    answered = float(trace.finished[-1] - trace.finished[half])
    span_s = float(trace.at_s[-1] - trace.at_s[half])
    if np.isnan(answered) or span_s <= 0:
        return None
    wait_s = float(waiting[-1]) * span_s / max(1.0, answered)
    # Half the queue waits less than half of it, so half of the wait is a modest guess of every statistic of it.
    if not _hopeless(wait_s / 2 * 1000.0, incumbent, objective, limits.factor, at):
        return None
    return (
        f"the queue grows without end: {waiting[-1]:.0f} requests wait, {wait_s:.0f} s at the present pace, "
        f"where the best trial so far never had more than {most:.0f}"
    )


def _hopeless(wait_ms: float, incumbent: Incumbent, objective: Objective, factor: float, at: str | None) -> bool:
    """Whether such waits put the trial `factor` behind the incumbent, even if every other latency were a fourth of its.

    A fourth: four slots instead of 32 make TPOT three and a half times better. `at`: the request rate they are seen at,
    where there are several; of the others nothing is known.
    """
    implied: dict[str, float | None] = {}
    for name, value in incumbent.metrics.items():
        metric = parse_metric(name)
        if metric.stem in ("ttft", "e2el") and metric.stat != "std" and metric.at == at:
            implied[name] = wait_ms if value is None else max(value, wait_ms)
        else:
            implied[name] = value / 4.0 if value is not None and metric.lower_is_better else value
    found = objective.score(implied, incumbent.baseline_metrics)
    excess = sum(max(0.0, value) for value in found.violations.values())
    standing = sum(max(0.0, value) for value in incumbent.violations.values())
    if 1.0 + excess >= factor * (1.0 + standing):
        return True
    return incumbent.feasible and found.value is not None and found.value >= factor * incumbent.score


def _half(trace: LiveTrace) -> int:
    """The first sample of the last half of the time seen."""
    return min(int(np.searchsorted(trace.at_s, trace.at_s[-1] / 2)), len(trace.at_s) - 2)
