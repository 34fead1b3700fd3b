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
from pathlib import Path
from typing import get_args

from rich.console import Console

from sweep.arguments import LineParser, comma_parts, metric_numbers
from sweep.atomic_file import WriteFailed, write_atomically
from sweep.errors import UserError
from sweep.objective import PRESETS, Aggregate
from sweep.report.as_json import as_json
from sweep.report.build import Wishes, make_report
from sweep.report.markdown import as_markdown
from sweep.report.shown import confirm_metrics
from sweep.report.source import PAGE, open_source
from sweep.report.terminal import print_report
from sweep.report.values import Report

_USER_MISTAKE = 2
_HIGHEST_PORT = 65535
# A pipe has no width of its own.
_PIPE_COLUMNS = 200


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 a report, 2 a mistake in what was asked."""
    try:
        given = _parser().parse_args(words)
        wishes = _wishes(given)
        if given.watch:
            _watch(given.study, wishes, given.port)
            return 0
        if given.format == "html":
            _write_html(given, wishes)
            return 0
        source = open_source(given.study)
        # Intervals of metrics that the objective does not ask for take a second or two: for programs, which read all.
        names = confirm_metrics(source) if given.format == "json" else ()
        report = make_report(source, wishes, confirm_names=names)
    except (UserError, WriteFailed) as error:
        print(f"sweep.report: {error}", file=sys.stderr)  # noqa: T201 - this is the output
        return _USER_MISTAKE
    try:
        _show(report, given.format)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough
        sys.stdout = None
    return 0


def _write_html(given: argparse.Namespace, wishes: Wishes) -> None:
    """The page to `--output` or into the study's folder; its path is what is printed."""
    # Only here: Optuna, which tells what mattered, takes a second to import.
    from sweep.report.html import as_html
    from sweep.report.page import facts_of

    source = open_source(given.study)
    page = as_html(facts_of(source, wishes)).encode()
    path = source.folder / PAGE if given.output is None else Path(given.output).expanduser()
    if not path.parent.is_dir() or path.is_dir():
        raise UserError(f"--output {path}: name a file in a folder that is there")
    try:
        write_atomically(path, page)
    except WriteFailed as error:
        raise UserError(f"{error}; name another place with --output FILE") from error
    print(path)  # noqa: T201


def _watch(study: str, wishes: Wishes, port: int) -> None:
    """Serve the page until Ctrl-C."""
    from sweep.report.html import as_html
    from sweep.report.page import facts_of, sheet_reader
    from sweep.report.watch import LivePage, serve

    source = open_source(study)
    reader = sheet_reader(source)

    def build(version: str) -> str:
        return as_html(facts_of(open_source(study), wishes, reader), version=version)

    def say(line: str) -> None:
        print(line, flush=True)  # noqa: T201

    serve(LivePage(source.folder, build), port, say)


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
    parser.add_argument(
        "--format",
        choices=("terminal", "html", "md", "json"),
        default="terminal",
        help=f"default: terminal; html writes one page, {PAGE} in the study's folder, and prints its path",
    )
    parser.add_argument("--output", metavar="FILE", help="write the page of --format html there instead")
    parser.add_argument(
        "--watch", action="store_true", help="serve the page on this machine, and refresh it as files arrive"
    )
    parser.add_argument("--port", type=_port, default=0, metavar="N", help="of --watch; default: a free one")
    return parser


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= _HIGHEST_PORT):
        raise argparse.ArgumentTypeError(f"must be a whole number up to {_HIGHEST_PORT}, not {text}")
    return int(text)


def _wishes(given: argparse.Namespace) -> Wishes:
    if given.weights and given.preset:
        raise UserError("give --preset or --weights, not both")
    if given.output is not None and (given.watch or given.format != "html"):
        raise UserError("--output goes with --format html")
    if given.watch and given.format not in ("terminal", "html"):
        raise UserError(f"--watch shows the page; leave --format {given.format} out")
    if given.port and not given.watch:
        raise UserError("--port goes with --watch")
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
