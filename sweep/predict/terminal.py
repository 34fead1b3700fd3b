"""An answer for a terminal or a pipe: figures beside those of the nearest measured trial, and what limits them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from sweep.console import number_text, plain_table
from sweep.metric_table import parse_metric
from sweep.predict.capacity import THROUGHPUT
from sweep.predict.values import LABEL, LEVEL, Answer, Capacity, Nearest


def print_answer(console: Console, answer: Answer) -> None:
    """All of it, the highest rate last."""
    console.print(Text(f"{LABEL.capitalize()}: {setting_text(answer)}", style="bold"), soft_wrap=True)
    head = ("metric", "unit", "simulated", f"{LEVEL:.0%} interval", f"measured, trial {answer.nearest.number}")
    console.print(plain_table(head, _rows(answer)))
    for line in remarks(answer):
        console.print(Text(line), soft_wrap=True)
    if answer.capacity is not None:
        for line in capacity_lines(answer.capacity):
            console.print(Text(line, style="bold"), soft_wrap=True)


def _rows(answer: Answer) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, interval in answer.metrics.items():
        span = f"{number_text(interval.low)} to {number_text(interval.high)}"
        measured = number_text(answer.nearest.metrics.get(name))
        rows.append((name, parse_metric(name).unit, number_text(interval.expected), span, measured))
    return rows


def setting_text(answer: Answer) -> str:
    """The setting by what differs from the baseline, and the load."""
    changed = ", ".join(f"{name} {_flag_text(answer.flags[name])}" for name in answer.changed)
    setting = f"the baseline with {changed}" if changed else "the baseline"
    rates = rates_text(answer.request_rates_per_s)
    load = f"the study's own load ({rates})" if answer.own_load else f"the study's prompts at {rates}"
    return f"{setting}, under {load}, {answer.requests:,} requests"


def remarks(answer: Answer) -> list[str]:
    """What the figures rest on, one line each."""
    basis, tokens = answer.basis, answer.kv_tokens
    numbers = ", ".join(map(str, basis.trials))
    trials = f"trial{'s' * (len(basis.trials) > 1)} {numbers}"
    lines = [
        *answer.notes,
        f"Nearest measured: {nearest_text(answer.nearest)}",
        f"Step costs are learnt from {basis.requests:,} requests of {trials}",
    ]
    if tokens is not None:
        about = f"about {tokens.expected:,} tokens ({tokens.low:,} to {tokens.high:,}), estimated from other launches"
        lines.append(f"KV cache: {f'{tokens.expected:,} tokens, as launched' if tokens.launched else about}")
    lines += [f"Caution: {text}" for text in answer.cautions]
    if answer.running is not None:
        lines.append(f"The study is running on {answer.running}: more trials will say more")
    return lines


def nearest_text(nearest: Nearest) -> str:
    """The nearest trial, how it was measured and where its flags differ."""
    words = [
        f"{name} {_flag_text(was)} instead of {_flag_text(asked)}" for name, (was, asked) in nearest.changes.items()
    ]
    flags = "with " + ", ".join(words) if words else "these very flags"
    rates = rates_text(nearest.request_rates_per_s)
    return f"trial {nearest.number} ({nearest.kind}), {flags}, under {rates}, {nearest.completed:,} requests answered"


def capacity_lines(found: Capacity) -> list[str]:
    """The highest rates, as sentences."""
    limits = ", ".join(f"{name} at most {limit:g} ms" for name, limit in found.slo.items())
    begin = f"Highest request rate with {limits} ({LABEL}, {found.requests:,} requests): "
    if found.expected_per_s is None:
        return [f"{begin}none; not even {found.lowest_per_s:.3g} requests/s keep it"]
    if found.expected_per_s >= found.highest_per_s * 0.99:
        first = f"{begin}above {found.highest_per_s:.3g} requests/s, the highest looked at"
    else:
        broken = "answers no longer keep up" if found.binding == THROUGHPUT else f"{found.binding} breaks"
        first = f"{begin}{found.expected_per_s:.3g} requests/s as expected; above that {broken}"
    if found.sure_per_s is None:
        return [first, "At the upper end of the intervals: no rate keeps it"]
    return [
        first,
        f"At the upper end of the intervals, and on a device a quarter slower: {found.sure_per_s:.3g} requests/s",
    ]


def rates_text(rates: Sequence[float | None]) -> str:
    """Request rates in words."""
    known = [f"{rate:.3g}" for rate in rates if rate is not None]
    parts = [f"{' and '.join(known)} requests/s"] if known else []
    return " and ".join([*parts, *(["all requests at once"] if None in rates else [])]) or "an unknown rate"


def _flag_text(value: object) -> str:
    return "vLLM's default" if value is None else str(value)
