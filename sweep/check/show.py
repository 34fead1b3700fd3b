"""A check's answer as lines and as an object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from sweep.check.decide import Answer
from sweep.check.subject import Subject, metrics_then
from sweep.confirm import Confirmed
from sweep.console import FEW_NOTE, marked, number_text, plain_table
from sweep.metric_table import parse_metric
from sweep.recommend import changed_flags
from sweep.trial import Finished
from sweep.verdict import MetricLine

_SHOWN = (50.0, 95.0, 99.0)


def as_json(
    subject: Subject, answer: Answer, found: Confirmed | None, launches: Sequence[Finished], folder: str
) -> dict[str, Any]:
    """Everything of a check; what is not known is null."""
    said, effect = subject.said, answer.effect
    then = metrics_then(subject)
    return {
        "result": str(answer.result),
        "exit_code": answer.result.exit_code,
        "sentence": answer.sentence,
        "study": subject.prepared.config.study.name,
        "folder": folder,
        "baseline": dict(subject.baseline),
        "recommended": dict(subject.recommended),
        "launches": len(launches),
        "gain_share": None if effect is None else effect.gain.value,
        "gain_interval_share": None if effect is None else [effect.gain.low, effect.gain.high],
        "study_gain_share": said.gain_share,
        "study_gain_interval_share": None
        if said.gain_low_share is None
        else [said.gain_low_share, said.gain_high_share],
        "changed": list(subject.changed.incomparable),
        "changed_remarks": list(subject.changed.remarks),
        "metrics": {line.name: _metric(line, then) for line in _lines(found)},
    }


def _metric(line: MetricLine, then: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    before = then.get(line.name)
    return {
        "baseline": line.baseline.value,
        "baseline_interval": [line.baseline.low, line.baseline.high],
        "recommended": line.leader.value,
        "recommended_interval": [line.leader.low, line.leader.high],
        "thin": line.thin,
        "ratio": line.ratio.value,
        "ratio_interval": [line.ratio.low, line.ratio.high],
        "study_baseline": None if before is None else before[0],
        "study_recommended": None if before is None else before[1],
    }


def print_answer(console: Console, subject: Subject, answer: Answer, found: Confirmed | None, folder: str) -> None:
    """What has changed since the study, the metrics then and now, the answer last."""
    for line in subject.changed.incomparable:
        console.print(Text(f"changed since the study: {line}"), soft_wrap=True)
    for line in subject.changed.remarks:
        console.print(Text(f"differs: {line}"), soft_wrap=True)
    flags = changed_flags(subject.recommended, subject.baseline)
    words = ", ".join(f"{name} {_word(old)} -> {_word(new)}" for name, (old, new) in flags.items())
    console.print(Text(f"Recommended: {words or 'the flags of the baseline'}"), soft_wrap=True)
    if lines := [line for line in _lines(found) if _shown(line.name)]:
        console.print(plain_table(*_rows(lines, metrics_then(subject))))
        if any(line.thin for line in lines):
            console.print(Text(FEW_NOTE), soft_wrap=True)
    console.print(Text(f"Everything measured: {folder}"), soft_wrap=True)
    console.print(Text(answer.sentence, style="bold"), soft_wrap=True)


def _rows(lines: Sequence[MetricLine], then: Mapping[str, tuple[float, float]]) -> tuple[list[str], list[list[str]]]:
    head = ["metric", "baseline then", "now", "recommended then", "now", "ratio now", "95 % interval"]
    rows = []
    for line in lines:
        before = then.get(line.name, (None, None))
        values = (before[0], line.baseline.value, before[1], line.leader.value)
        interval = f"{line.ratio.low:.3f} to {line.ratio.high:.3f}"
        rows.append([marked(line.name, line.thin), *map(number_text, values), f"{line.ratio.value:.3f}", interval])
    return head, rows


def _lines(found: Confirmed | None) -> tuple[MetricLine, ...]:
    return () if found is None else found.verdict.metrics


def _shown(name: str) -> bool:
    metric = parse_metric(name)
    return metric.stat == "rate" or (metric.percentile in _SHOWN and metric.stat != "median")


def _word(value: object) -> str:
    return "(vLLM's default)" if value is None else str(value)
