"""`python -m sweep.check STUDY`: does a study's recommendation still hold, after an upgrade, say?

Baseline and recommendation are launched again, on fresh servers and in turn, with prompts that the search never sent,
until the interval is as narrow as the study file asks for. Whatever has changed since the study is named. Everything
measured lands in STUDY/checks/DATE, and the same command goes on where it was stopped.

Exit codes: 0 held, 1 regressed, 2 cannot tell (a mistake in what was asked included, which is one line), 128 + n
stopped by signal n.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from sweep.arguments import LineParser
from sweep.atomic_file import WriteFailed, write_atomically
from sweep.check.decide import decide
from sweep.check.session import Session, clock
from sweep.check.show import as_json, print_answer
from sweep.check.subject import Launches, Subject, open_subject
from sweep.config import parse_duration_s
from sweep.errors import HostError, HostNotReady, UserError
from sweep.gpu import Gpus
from sweep.interrupts import Interrupts, Stopped
from sweep.process import end_leftovers
from sweep.search_space import flags_key
from sweep.store import read_trials, set_aside_broken
from sweep.study_folder import StudyFolder

_CANNOT_TELL = 2
_PIPE_COLUMNS = 160
CHECKS, ANSWER = "checks", "check.json"


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    try:
        given = _parser().parse_args(words)
        launches = Launches(_count("--launches", given.launches), _count("--max-launches", given.max_launches))
        time_left_s = clock(None if given.time_budget is None else _duration_s(given.time_budget))
        with Interrupts() as interrupts, Gpus() as gpus:
            subject = open_subject(given.study, gpus, launches)
            return _check(subject, gpus, interrupts, time_left_s, as_object=given.json)
    except UserError as error:
        _say(str(error))
        return _CANNOT_TELL
    except Stopped as stopped:
        _say(f"stopped by {stopped}; everything measured is kept, type the same command to go on")
        return 128 + stopped.number


def _check(
    subject: Subject, gpus: Gpus, interrupts: Interrupts, time_left_s: Callable[[], float], *, as_object: bool
) -> int:
    prepared = subject.prepared
    # The study's lock as well: its own night and a check would measure each other.
    with StudyFolder.open(subject.folder.parent, subject.folder.name), _folder(subject) as folder:
        for leftover in end_leftovers(folder.processes, even_owned=True):
            _say(f"left behind by an earlier run and ended: processes {', '.join(map(str, leftover.ended)) or 'none'}")
        for line in (
            *set_aside_broken(folder.path),
            *folder.adopt(prepared.fingerprint, prepared.config.model_dump(mode="json"), prepared.redactor),
        ):
            _say(line)
        for line in subject.changed.incomparable:
            _say(f"changed since the study: {line}")
        session = Session(subject, folder, gpus, interrupts, time_left_s, _say)
        try:
            session.run()
        except HostNotReady as error:  # what could not be stored was not measured
            raise HostError(str(error)) from error
        launches, found = session.launches(), session.confirmed()
        why = session.why_cut
        answer = decide(found, launches, subject.said, width=prepared.config.confirm.width, why=why)
        content = as_json(subject, answer, found, launches, str(folder.path))
        if why is None:
            _keep(folder.path, content)
        if as_object:
            print(json.dumps(content, allow_nan=False, default=str))  # noqa: T201 - this is the output
        else:
            console = Console(highlight=False, markup=False)
            if not console.is_terminal:
                console = Console(highlight=False, markup=False, width=_PIPE_COLUMNS)
            print_answer(console, subject, answer, found, str(folder.path))
        return answer.result.exit_code


def _folder(subject: Subject) -> StudyFolder:
    """The folder of the check that was cut short, if it measured the same on the same; otherwise a new one of today."""
    checks = subject.folder / CHECKS
    ours = {flags_key(subject.baseline), flags_key(subject.recommended)}
    known = sorted(path for path in checks.glob("*") if path.is_dir())
    for path in known[-1:]:
        try:
            StudyFolder.compare(path, subject.prepared.fingerprint)
            same = {flags_key(one.flags) for one in read_trials(path)} <= ours
        except UserError:
            same = False
        if same and not (path / ANSWER).exists():
            return StudyFolder.open(checks, path.name)
    today = f"{datetime.now():%Y-%m-%d}"
    names = {path.name for path in known}
    number = next(n for n in range(1, len(names) + 2) if f"{today}-{n:02d}" not in names)
    return StudyFolder.open(checks, f"{today}-{number:02d}")


def _keep(folder: Path, content: dict[str, Any]) -> None:
    """The answer beside what it rests on; its file is the mark that the check is done."""
    try:
        write_atomically(folder / ANSWER, (json.dumps(content, indent=2, default=str) + "\n").encode())
    except WriteFailed as error:
        _say(str(error))


def _parser() -> LineParser:
    parser = LineParser(prog="python -m sweep.check", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("study", metavar="STUDY", help="its study file, the folder of its results, or its name")
    parser.add_argument("--launches", metavar="N", help="fresh servers of each, at least; default: the study file's")
    parser.add_argument(
        "--max-launches", metavar="N", help="and at most, while the interval is wider than confirm.width"
    )
    parser.add_argument("--time-budget", metavar="TIME", help="start no launch that would end later: 1h, 30m")
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    return parser


def _count(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 2 <= int(text) <= 50):
        raise UserError(f"{option}: must be a whole number from 2 to 50, not {text}")
    return int(text)


def _duration_s(text: str) -> float:
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise UserError(f"--time-budget: {error}") from None


def _say(line: str) -> None:
    print(f"sweep.check: {line}", file=sys.stderr, flush=True)  # noqa: T201 - notices, beside the answer


if __name__ == "__main__":
    sys.exit(main())
