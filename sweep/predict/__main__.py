"""`python -m sweep.predict STUDY`: what a setting or a load would give that nobody measured, from a stored study.

The stored requests of a few trials tell what a step of the engine costs; vLLM's scheduler in virtual time does the
rest, in seconds and without a GPU. Everything printed is simulated, not measured, and stands beside the nearest trial
that was. A study that is running tells as much as is stored of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

from rich.console import Console

from sweep.arguments import LineParser, metric_numbers
from sweep.atomic_file import WriteFailed, write_atomically
from sweep.errors import UserError
from sweep.predict.answer import answer
from sweep.predict.as_json import as_json, map_as_json
from sweep.predict.flag_map import flag_map, parse_pair
from sweep.predict.map_page import map_page, remarks
from sweep.predict.settings import parse_changes
from sweep.predict.terminal import print_answer
from sweep.predict.values import LABEL, Answer, Question
from sweep.report.source import open_source

_USER_MISTAKE = 2
# A pipe has no width of its own.
_PIPE_COLUMNS = 200


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 an answer, 2 a mistake in what was asked."""
    try:
        given = _parser().parse_args(words)
        if given.map is not None:
            return _draw(given)
        found = answer(open_source(given.study), _question(given))
    except UserError as error:
        print(f"sweep.predict: {error}", file=sys.stderr)  # noqa: T201 - this is the output
        return _USER_MISTAKE
    try:
        _show(found, as_object=given.json)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough
        sys.stdout = None
    return 0


def _draw(given: argparse.Namespace) -> int:
    """Write the map, and say where it is."""
    if given.max_rate or given.slo:
        raise UserError("--map: shows the objective, so --max-rate and --slo do not go with it")
    if given.json and given.out is not None:
        raise UserError("--out: is for the page, and --json prints instead of writing one")
    found = flag_map(open_source(given.study), parse_pair(given.map), _question(given))
    if given.json:
        print(json.dumps(map_as_json(found), ensure_ascii=False))  # noqa: T201
        return 0
    path = given.out or Path(f"map-{'-'.join(found.names)}.html")
    try:
        write_atomically(path, map_page(found).encode())
    except WriteFailed as error:
        raise UserError(f"--out: {error}") from None
    for line in (f"{LABEL.capitalize()}: {path}", *remarks(found)):
        print(line)  # noqa: T201
    return 0


def _show(found: Answer, *, as_object: bool) -> None:
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if as_object:
        print(json.dumps(as_json(found), ensure_ascii=False))  # noqa: T201
        return
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_PIPE_COLUMNS)
    print_answer(console, found)


def _parser() -> LineParser:
    parser = LineParser(
        prog="python -m sweep.predict", description=(__doc__ or "").partition("\n\n")[2], allow_abbrev=False
    )
    parser.add_argument(
        "study", metavar="STUDY", help="folder of its results, its study file, or its name under results/"
    )
    parser.add_argument(
        "--set",
        action="extend",
        nargs="+",
        default=[],
        metavar="FLAG=VALUE",
        help="change the baseline's flags: max-num-seqs=64 enable-prefix-caching=false; null is vLLM's default",
    )
    parser.add_argument(
        "--request-rate", type=float, metavar="RATE", help="requests a second instead of the study's own load"
    )
    parser.add_argument("--max-rate", action="store_true", help="the highest request rate that keeps the limits")
    parser.add_argument(
        "--slo",
        action="append",
        default=[],
        metavar="METRIC=LIMIT",
        help="limit for --max-rate, repeated or separated by commas: p95_ttft_ms=500; default: the study's own",
    )
    parser.add_argument(
        "--map",
        metavar="FLAG_A,FLAG_B",
        help="the objective over two flags as an HTML page, with what was measured; --set and --request-rate apply",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the page of --map goes; default: map-A-B.html")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return parser


def _question(given: argparse.Namespace) -> Question:
    return Question(
        changes=parse_changes(given.set),
        request_rate_per_s=given.request_rate,
        max_rate=given.max_rate,
        slo=metric_numbers("--slo", given.slo, "METRIC=LIMIT", "p95_ttft_ms=500"),
    )


if __name__ == "__main__":
    sys.exit(main())
