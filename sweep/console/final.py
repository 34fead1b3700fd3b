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
from sweep.console.front import print_front
from sweep.console.words import flags_text
from sweep.equivalence import Findings
from sweep.front import Front
from sweep.gate import Tally
from sweep.metric_table import LATENCIES, parse_metric
from sweep.recommend import Recommendation, Verdict, changed_flags
from sweep.store import StoredTrial
from sweep.trial import TrialKind, TrialStatus

_SHOWN = (95, 99)
_CONFIRMED = (50.0, 95.0, 99.0)


def trials_table(trials: Sequence[StoredTrial], best: int | None) -> Table:
    """All trials: flags, p95 and p99 of each latency in ms, score, and how each ended."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", title=stood_in_title(trials))
    table.add_column("trial", justify="right")
    for name in _flag_names(trials):
        table.add_column(name, justify="right")
    for stem in LATENCIES:
        table.add_column(f"{stem.upper()} p95/p99 ms", justify="right")
    table.add_column("score", justify="right")
    table.add_column("status", overflow="fold")
    for trial in trials:
        mark = " *" if trial.number == best else ""
        flags = ["-" if (v := trial.flags.get(name)) is None else str(v) for name in _flag_names(trials)]
        latencies = [_pair(trial.metrics, stem) for stem in LATENCIES]
        score = "" if trial.score is None else f"{trial.score:.3f}"
        style = "bold" if mark else "dim" if trial.status is not TrialStatus.COMPLETE else ""
        table.add_row(f"{trial.number}{mark}", *flags, *latencies, score, Text(_status(trial)), style=style)
    return table


def stood_in_title(trials: Sequence[StoredTrial]) -> str | None:
    """What to put above any table of trials that no server ran; None for measured ones."""
    words = dict.fromkeys(trial.stood_in for trial in trials if trial.stood_in is not None)
    return f"{' and '.join(words).capitalize()}, not measured" if words else None


def _flag_names(trials: Sequence[StoredTrial]) -> list[str]:
    return list(dict.fromkeys(name for trial in trials for name in trial.flags))


def _pair(metrics: Mapping[str, float | None] | None, stem: str) -> str:
    values = [(metrics or {}).get(f"p{p}_{stem}_ms") for p in _SHOWN]
    if metrics is None or all(value is None for value in values):
        return ""
    return " / ".join("-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}" for value in values)


def _status(trial: StoredTrial) -> str:
    what = "" if trial.kind is TrialKind.SEARCH else f"{trial.kind}, "
    if trial.block is not None:
        what = f"{trial.kind}, block {trial.block}, "
    parts = [f"{what}{trial.status}" if trial.stood_in is None else f"{trial.stood_in}: {what}{trial.status}"]
    if trial.stopped_because is not None:
        parts.append(trial.stopped_because)
    if trial.failure is not None:
        parts.append(f"{trial.failure.failure_class} in {trial.failure.phase}")
    parts += [f"disturbed: {text}" for text in trial.disturbances]
    broken = [name for name, excess in trial.violations.items() if excess > 0]
    if broken:
        parts.append(f"SLO broken: {', '.join(broken)}")
    return "; ".join(parts)


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
    """What the leader changes of each metric that was stored at p50, p95 or p99, and of the rates."""
    verdict = confirmed.verdict
    shown = verdict.leader if verdict.winner is None else verdict.effect(verdict.winner)
    title = "" if shown is None else f"What trial {shown.key} changes"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", title=title)
    for name in ("metric", "today's flags", "these flags", "ratio", f"{verdict.level:.0%} interval"):
        table.add_column(name, justify="left" if name == "metric" else "right")
    for line in verdict.metrics:
        metric = parse_metric(line.name)
        if metric.stat == "rate" or (metric.percentile in _CONFIRMED and metric.stat != "median"):
            ratio = line.ratio
            values = (f"{line.baseline.value:,.4g}", f"{line.leader.value:,.4g}", f"{ratio.value:.3f}")
            table.add_row(line.name, *values, f"{ratio.low:.3f} to {ratio.high:.3f}")
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
) -> None:
    """Everything at the end, the most important last.

    `reads_yaml` are the words of shell that start a server from `best_yaml`, None where nobody can tell: a container,
    say, sees other folders. `production` is the folder with further files of a confirmed winner.
    """
    if trials:
        console.print(trials_table(trials, recommendation.number))
    for line in (*_remarks(trials), *([] if gate is None else gate.lines()), *equal.sentences):
        console.print(Text(line), soft_wrap=True)
    if recommendation.verdict in (Verdict.ALL_FAILED, Verdict.NO_BASELINE) and trials:
        console.print(causes_table(trials))
    if front is not None:
        print_front(console, front)
    if confirmed is not None:
        console.print(effects_table(confirmed))
        console.print(metrics_table(confirmed))
    console.print(Text(f"Everything measured: {folder}"))
    if command is not None and recommendation.flags is not None:
        baseline = next((t.flags for t in trials if t.number == 0), {})
        changed = changed_flags(recommendation.flags, baseline)
        if changed:
            text = ", ".join(f"{name} {_word(old)} -> {_word(new)}" for name, (old, new) in changed.items())
            console.print(Text(f"Changed: {text}"))
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
    }


__all__ = ["causes_table", "flags_text", "print_final", "trial_json", "trials_table", "verdict_json"]
