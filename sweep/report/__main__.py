"""`python -m sweep.report STUDY`: what a study found, by its own objective or by another.

Every metric is computed anew from the stored requests, in seconds and without a GPU: percentiles that were never stored
and limits that were not set are as good as those of the night. A study that is running is reported as far as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn, get_args

from rich.console import Console

from sweep.errors import UserError
from sweep.metric_table import parse_metric
from sweep.objective import PRESETS, Aggregate
from sweep.report.as_json import as_json
from sweep.report.build import Wishes, make_report
from sweep.report.markdown import as_markdown
from sweep.report.source import open_source
from sweep.report.terminal import print_report
from sweep.report.values import Report

_USER_MISTAKE = 2
# A pipe has no width of its own.
_PIPE_COLUMNS = 200


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, no usage."""
        raise UserError(message)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 a report, 2 a mistake in what was asked."""
    try:
        given = _parser().parse_args(words)
        wishes = _wishes(given)
        report = make_report(open_source(given.study), wishes)
    except UserError as error:
        print(f"sweep.report: {error}", file=sys.stderr)  # noqa: T201 - this is the output
        return _USER_MISTAKE
    try:
        _show(report, given.format)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough
        sys.stdout = None
    return 0


def _show(report: Report, form: str) -> None:
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if form == "json":
        print(json.dumps(as_json(report), ensure_ascii=False))  # noqa: T201
    elif form == "md":
        print(as_markdown(report), end="")  # noqa: T201
    else:
        console = Console(highlight=False, markup=False)
        if not console.is_terminal:
            console = Console(highlight=False, markup=False, width=_PIPE_COLUMNS)
        print_report(console, report)


def _parser() -> _Parser:
    parser = _Parser(prog="python -m sweep.report", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument(
        "study", metavar="STUDY", help="folder of its results, its study file, or its name under results/"
    )
    parser.add_argument(
        "--weights",
        action="append",
        metavar="METRIC=WEIGHT",
        help="rank by these instead; repeated or separated by commas; negative on throughputs: p99_ttft_ms=1",
    )
    parser.add_argument("--preset", choices=list(PRESETS), help="rank by these weights instead")
    parser.add_argument(
        "--slo", action="append", metavar="METRIC=LIMIT", help="limits instead of the study's: p95_tpot_ms=60; or none"
    )
    parser.add_argument("--aggregate", choices=get_args(Aggregate), help="how the weighted ratios make one score")
    parser.add_argument(
        "--pareto", metavar="METRIC,METRIC[,METRIC]", help="the Pareto front of two or three metrics, too"
    )
    parser.add_argument("--format", choices=("terminal", "json", "md"), default="terminal", help="default: terminal")
    return parser


def _wishes(given: argparse.Namespace) -> Wishes:
    if given.weights and given.preset:
        raise UserError("give --preset or --weights, not both")
    return Wishes(
        preset=given.preset,
        weights=None if given.weights is None else _numbers("--weights", given.weights),
        slo=None if given.slo is None else {} if given.slo == ["none"] else _numbers("--slo", given.slo),
        aggregate=given.aggregate,
        front=None if given.pareto is None else tuple(_parts([given.pareto])),
    )


def _numbers(option: str, texts: Sequence[str]) -> dict[str, float]:
    """`METRIC=NUMBER` of one option, repeated or separated by commas. Raises UserError."""
    found: dict[str, float] = {}
    for part in _parts(texts):
        name, equals, number = part.partition("=")
        name = name.strip()
        if not equals:
            raise UserError(f"{option}: {part!r} is not METRIC=NUMBER, such as p95_ttft_ms=1")
        try:
            value = float(number)
        except ValueError:
            raise UserError(f"{option}: {number!r} of {name} is no number") from None
        parse_metric(name)
        if name in found:
            raise UserError(f"{option}: {name} stands twice")
        found[name] = value
    if not found:
        raise UserError(f"{option}: names no metric, such as p95_ttft_ms=1")
    return found


def _parts(texts: Sequence[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


if __name__ == "__main__":
    sys.exit(main())
