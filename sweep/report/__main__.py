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
from typing import get_args

from rich.console import Console

from sweep.arguments import LineParser, comma_parts, metric_numbers
from sweep.errors import UserError
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


def _parser() -> LineParser:
    parser = LineParser(prog="python -m sweep.report", description=(__doc__ or "").partition("\n\n")[2])
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
        front=None if given.pareto is None else tuple(comma_parts([given.pareto])),
    )


def _numbers(option: str, texts: Sequence[str]) -> dict[str, float]:
    """`METRIC=NUMBER` of an option that names a metric at least. Raises UserError."""
    found = metric_numbers(option, texts, "METRIC=NUMBER", "p95_ttft_ms=1")
    if not found:
        raise UserError(f"{option}: names no metric, such as p95_ttft_ms=1")
    return found


if __name__ == "__main__":
    sys.exit(main())
