"""The end of a study: the table of trials, the verdict, the command to paste."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sweep.confirm import Confirmed
from sweep.console.figures import LEGEND, marked
from sweep.console.front import print_front
from sweep.console.trials import latencies_table, trials_table
from sweep.equivalence import Findings
from sweep.front import Front
from sweep.gate import Tally
from sweep.measured import Measured
from sweep.metric_table import parse_metric
from sweep.recommend import Recommendation, Verdict, changed_flags
from sweep.store import StoredTrial
from sweep.trial import Flags

_CONFIRMED = (50.0, 95.0, 99.0)


def _remarks(trials: Sequence[StoredTrial]) -> list[str]:
    """Each remark once, with the trials it is about."""
    about: dict[str, list[str]] = {}
    for trial in trials:
        for remark in trial.remarks:
            about.setdefault(remark, []).append(str(trial.number))
    return [
        f"{'all trials' if len(numbers) == len(trials) else 'trial ' + ', '.join(numbers)}: {remark}"
        for remark, numbers in about.items()
    ]


def causes_table(trials: Sequence[StoredTrial]) -> Table:
    """How often each cause of failure occurred, with its line and what to do."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", title="Causes of failure")
    for name in ("times", "cause", "seen in the log", "what to do"):
        table.add_column(name, overflow="fold")
    counts = Counter(
        (t.failure.failure_class, t.failure.line or "", t.failure.advice) for t in trials if t.failure is not None
    )
    for (name, line, advice), count in counts.most_common():
        table.add_row(str(count), Text(name), Text(line), Text(advice))
    return table


def effects_table(confirmed: Confirmed) -> Table:
    """What the confirmation measured of each configuration, beside what the search had believed."""
    verdict = confirmed.verdict
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", title="Confirmed on fresh servers")
    for name in ("trial", "launches", "score in the search", "confirmed", f"{verdict.level:.0%} interval", ""):
        table.add_column(name, justify="left" if name == "" else "right")
    believed = {one.key: one.search_score for one in verdict.shrinkage}
    for effect in verdict.effects:
        score = effect.score
        broken = [name for name, excess in effect.violations.items() if excess > 0]
        notes = [f"breaks the SLO on {', '.join(broken)}"] if broken else []
        notes += ["better"] if effect.clear else []
        notes += ["recommended"] if effect.key == confirmed.recommended else []
        table.add_row(
            str(effect.key),
            str(effect.launches),
            "" if effect.key not in believed else f"{believed[effect.key]:.3f}",
            f"{score.value:.3f}",
            f"{score.low:.3f} to {score.high:.3f}",
            Text(", ".join(notes)),
        )
    return table


def metrics_table(confirmed: Confirmed) -> Table:
    """What the leader changes of each metric that was stored at p50, p95 or p99, and of the throughputs."""
    verdict = confirmed.verdict
    shown = verdict.leader if verdict.winner is None else verdict.effect(verdict.winner)
    title = "" if shown is None else f"What trial {shown.key} changes"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", title=title)
    for name in ("metric", "today's flags", "these flags", "ratio", f"{verdict.level:.0%} interval"):
        table.add_column(name, justify="left" if name == "metric" else "right")
    several = any(parse_metric(line.name).at is not None for line in verdict.metrics)
    for line in verdict.metrics:
        metric = parse_metric(line.name)
        if several and metric.at is None:
            continue
        if metric.stat == "rate" or (metric.percentile in _CONFIRMED and metric.stat != "median"):
            ratio = line.ratio
            values = (f"{line.baseline.value:,.4g}", f"{line.leader.value:,.4g}", f"{ratio.value:.3f}")
            table.add_row(marked(line.name, line.thin), *values, f"{ratio.low:.3f} to {ratio.high:.3f}")
    return table


def print_final(
    console: Console,
    trials: Sequence[StoredTrial],
    recommendation: Recommendation,
    *,
    command: str | None,
    best_yaml: str | None,
    stop_reason: str | None,
    folder: str,
    reads_yaml: str | None = "vllm serve",
    confirmed: Confirmed | None = None,
    front: Front | None = None,
    production: str | None = None,
    gate: Tally | None = None,
    equal: Findings = Findings(),  # noqa: B008 - frozen
    measured: Mapping[int, Measured] | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Everything at the end, the most important last. `measured`: what the requests of each trial say; `notes`: what
    limits the scores.

    `reads_yaml` are the words of shell that start a server from `best_yaml`, None where nobody can tell: a container,
    say, sees other folders. `production` is the folder with further files of a confirmed winner.
    """
    if trials:
        lead = "confirmed" if recommendation.confirmed else "unconfirmed"
        lead = f"best, {lead}" if recommendation.verdict is Verdict.BETTER else ""
        console.print(trials_table(trials, recommendation.number, console.width, lead))
    known = measured or {}
    if (latencies := latencies_table(trials, recommendation.number, known)) is not None:
        console.print(latencies)
        console.print(Text(LEGEND), soft_wrap=True)
    for line in (*_remarks(trials), *notes, *([] if gate is None else gate.lines()), *equal.sentences):
        console.print(Text(line), soft_wrap=True)
    if recommendation.verdict in (Verdict.ALL_FAILED, Verdict.NO_BASELINE) and trials:
        console.print(causes_table(trials))
    if front is not None:
        print_front(console, front, known)
    if confirmed is not None:
        console.print(effects_table(confirmed))
        console.print(metrics_table(confirmed))
    console.print(Text(f"Everything measured: {folder}"))
    if command is not None and recommendation.flags is not None:
        if changes := _changes(trials, recommendation.flags):
            console.print(Text(f"Changed: {changes}"))
        console.print(Text(recommendation.sentence, style="bold"))
        console.print(Text(command), soft_wrap=True)
        if best_yaml is not None:
            path = shlex.quote(best_yaml)
            as_file = (
                f"Its flags as a file: {path}" if reads_yaml is None else f"As a file: {reads_yaml} --config {path}"
            )
            console.print(Text(as_file), soft_wrap=True)
        if production is not None:
            console.print(Text(f"For shell, systemd, compose, Kubernetes and Helm: {production}"), soft_wrap=True)
    else:
        console.print(Text(recommendation.sentence, style="bold"))
    if stop_reason is not None:
        console.print(Text(stop_reason), soft_wrap=True)


def _changes(trials: Sequence[StoredTrial], flags: Flags) -> str:
    """How these flags differ from the baseline's; empty where they do not."""
    baseline = next((t.flags for t in trials if t.number == 0), {})
    return ", ".join(
        f"{name} {_word(old)} -> {_word(new)}" for name, (old, new) in changed_flags(flags, baseline).items()
    )


def _word(value: object) -> str:
    return "(vLLM's default)" if value is None else str(value)


def trial_json(trial: StoredTrial) -> dict[str, Any]:
    """One trial for `--json`: everything but its requests."""
    failure = trial.failure
    return {
        "trial": trial.number,
        "kind": str(trial.kind),
        "status": str(trial.status),
        "flags": dict(trial.flags),
        "score": trial.score,
        "feasible": trial.feasible,
        "metrics": None if trial.metrics is None else dict(trial.metrics),
        "thin_percentiles": list(trial.thin_percentiles),
        # Infinite where the metric of an SLO is missing; JSON has no word for that.
        "violations": {name: v if math.isfinite(v) else None for name, v in trial.violations.items()},
        "failure_class": None if failure is None else failure.failure_class,
        "failure_phase": None if failure is None else failure.phase,
        "failure_line": None if failure is None else failure.line,
        "advice": None if failure is None else failure.advice,
        "attempts": trial.attempts,
        "startup_s": trial.startup_s,
        "load_s": trial.load_s,
        "total_s": trial.total_s,
        "command": trial.command,
        "remarks": list(trial.remarks),
        "disturbances": list(trial.disturbances),
        "stood_in": trial.stood_in,
    }


def verdict_json(
    recommendation: Recommendation,
    *,
    study: str,
    trials: int,
    command: str | None,
    stop_reason: str | None,
    front: Front | None = None,
    stood_in: str | None = None,
    production: str | None = None,
    gate: Tally | None = None,
    equal: Findings = Findings(),  # noqa: B008 - frozen
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The last object of `--json`. `stood_in`: how the trials came about where no server ran them."""
    interval = (recommendation.gain_low_share, recommendation.gain_high_share)
    return {
        "verdict": str(recommendation.verdict),
        "confirmed": recommendation.confirmed,
        "study": study,
        "trials": trials,
        "trial": recommendation.number,
        "flags": None if recommendation.flags is None else dict(recommendation.flags),
        "score": recommendation.score,
        "gain_share": recommendation.gain_share,
        "gain_interval_share": None if interval[0] is None else list(interval),
        "sentence": recommendation.sentence,
        "command": command,
        "stop_reason": stop_reason,
        "production": production,
        "front": None if front is None else [point.number for point in front.points],
        "stood_in": stood_in,
        "gate": None if gate is None else gate.as_json(),
        "inert": list(equal.sentences),
        "notes": list(notes),
    }


__all__ = ["causes_table", "print_final", "trial_json", "verdict_json"]
