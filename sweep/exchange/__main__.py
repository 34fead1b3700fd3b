"""`python -m sweep.exchange COMMAND`: to and from other tools.

`import-params`: the grid of `vllm bench sweep serve` (`--serve-params`, `--bench-params`) as a study file.
`export-params`: today's and the recommended flags of a study as such a file, or its load.
`import-results`: a folder of its results as a study that `sweep.report` ranks.
`optuna`: a study as an Optuna journal file, or in a database, for optuna-dashboard.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sweep.arguments import LineParser
from sweep.errors import UserError
from sweep.exchange.params import Record, read_params, write_params
from sweep.exchange.results import Combination, read_results
from sweep.exchange.store_results import store_study
from sweep.exchange.study_file import bench_records, study_text
from sweep.fingerprint import Fingerprint
from sweep.flags import FlagValue
from sweep.report.build import make_report
from sweep.report.source import open_source
from sweep.searcher.dashboard import write_storage

_USER_MISTAKE = 2


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0, or 2 for a mistake in what was asked."""
    try:
        given = _parser().parse_args(words)
        for line in given.run(given):
            print(line)  # noqa: T201 - this is the output
    except UserError as error:
        _say(str(error))
        return _USER_MISTAKE
    return 0


def _import_params(given: argparse.Namespace) -> list[str]:
    serve, bench = read_params(given.serve_params), _bench(given)
    source = ", ".join(str(path.name) for path in (given.serve_params, given.bench_params) if path is not None)
    place = _place("--baseline", given.baseline, [one.text for one in serve])
    text, remarks = study_text(serve, bench, name=given.name, model=given.model, baseline=place, source=source)
    for line in remarks:
        _say(line)
    return text.splitlines()


def _bench(given: argparse.Namespace) -> tuple[Record, ...]:
    if given.bench_params is None:
        return ()
    found = read_params(given.bench_params)
    if given.bench_entry is None:
        return found
    return (found[_place("--bench-entry", given.bench_entry, [one.text for one in found])],)


def _export_params(given: argparse.Namespace) -> list[str]:
    source = open_source(given.study)
    if given.bench:
        return write_params(None, _load_of(source.folder)).splitlines()
    report = make_report(source)
    records: dict[str, dict[str, FlagValue]] = {}
    if report.baseline is not None:
        records["baseline"] = dict(report.baseline.flags)
    found = report.recommendation
    # What no server ran recommends nothing, whatever it came to.
    if found.flags is not None and found.number != 0 and report.stood_in is None:
        records["recommended" if found.confirmed else "unconfirmed"] = dict(found.flags)
    if not records:
        raise UserError(f"{given.study}: {found.sentence}")
    _say(found.sentence)
    return write_params(None, records).splitlines()


def _load_of(folder: Path) -> Mapping[str, Mapping[str, FlagValue]]:
    try:
        settings = json.loads((folder / "study.json").read_text(encoding="utf-8"))
        text = (folder / "fingerprint.json").read_text(encoding="utf-8")
        found = Fingerprint.from_json(text)
    except (OSError, ValueError, TypeError):
        raise UserError(f"{folder}: study.json and fingerprint.json are missing or damaged") from None
    return bench_records(settings, found.request_rate_per_s)


def _import_results(given: argparse.Namespace) -> list[str]:
    serve = () if given.serve_params is None else read_params(given.serve_params)
    bench = () if given.bench_params is None else read_params(given.bench_params)
    by_load: dict[str, list[Combination]] = {}
    every = read_results(given.folder, serve, bench)
    # A server that did not start belongs to every load.
    for one in every:
        if one.runs or one.bench.keys:
            by_load.setdefault(one.bench.text, []).append(one)
    lost = [one for one in every if not one.runs and not one.bench.keys]
    lines = []
    for place, (load, combinations) in enumerate(by_load.items()):
        name = given.name if len(by_load) == 1 else f"{given.name}-{place + 1}"
        baseline = _place("--baseline", given.baseline, [one.serve.text for one in combinations])
        source = str(given.folder.resolve())
        made = store_study([*combinations, *lost], Path(given.results), name, baseline=baseline, source=source)
        what = f" of {load}" if load else ""
        lines.append(f"{made.folder}: {made.trials} trials{what}, {made.detailed} with their requests")
        lines.append(f"python -m sweep.report {made.folder}")
    if not by_load:
        raise UserError(f"{given.folder}: no combination was measured")
    return lines


def _optuna(given: argparse.Namespace) -> list[str]:
    source = open_source(given.study)
    report = make_report(source)
    scores = {one.number: None if one.score is None else one.score.value for one in report.trials}
    count = write_storage(source.trials, scores, given.target, source.study)
    return [f"{given.target}: {count} trials", f"optuna-dashboard {given.target}"]


def _place(option: str, text: str | None, names: Sequence[str]) -> int:
    """The place that an option gives: a number from 1, or a name. The first without."""
    if text is None:
        return 0
    if text in names:
        return list(names).index(text)
    if text.isascii() and text.isdigit() and 1 <= int(text) <= len(names):
        return int(text) - 1
    raise UserError(f"{option}: {text!r} is none of the {len(names)} entries: {', '.join(names)[:300]}")


def _parser() -> LineParser:
    parser = LineParser(prog="python -m sweep.exchange", description=(__doc__ or "").partition("\n\n")[2])
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=LineParser)

    one = commands.add_parser("import-params", help="a grid of vllm bench sweep as a study file, on standard output")
    one.add_argument("--serve-params", required=True, type=Path, metavar="FILE")
    one.add_argument("--bench-params", type=Path, metavar="FILE")
    one.add_argument("--bench-entry", metavar="N", help="which entry of the bench parameters, by number or name")
    one.add_argument("--model", required=True, help="folder or hub id, as in --serve-cmd")
    one.add_argument("--name", default="bench-sweep", help="the study's name")
    one.add_argument("--baseline", metavar="N", help="which entry are today's flags, by number or name; default: 1")
    one.set_defaults(run=_import_params)

    one = commands.add_parser("export-params", help="today's and the recommended flags, on standard output")
    one.add_argument("study", metavar="STUDY")
    one.add_argument("--bench", action="store_true", help="its load as bench parameters, instead")
    one.set_defaults(run=_export_params)

    one = commands.add_parser("import-results", help="a folder of results of vllm bench sweep serve as a study")
    one.add_argument("folder", type=Path, metavar="FOLDER")
    one.add_argument("--name", required=True, help="the study's name; -1, -2, ... where several loads were sent")
    one.add_argument("--results", default="results", metavar="FOLDER", help="where studies are kept; default: results")
    one.add_argument("--serve-params", type=Path, metavar="FILE", help="needed where its entries have names")
    one.add_argument("--bench-params", type=Path, metavar="FILE", help="the same")
    one.add_argument(
        "--baseline", metavar="N", help="which combination are today's flags, by number or text; default: 1"
    )
    one.set_defaults(run=_import_results)

    one = commands.add_parser("optuna", help="a study as an Optuna storage, for optuna-dashboard")
    one.add_argument("study", metavar="STUDY")
    one.add_argument("target", metavar="FILE", help="a new journal file, or a database: postgresql+psycopg://...")
    one.set_defaults(run=_optuna)
    return parser


def _say(line: str) -> None:
    print(f"sweep.exchange: {line}", file=sys.stderr)  # noqa: T201 - notices, beside the output


if __name__ == "__main__":
    sys.exit(main())
