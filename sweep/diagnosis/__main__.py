"""`python -m sweep.diagnosis LOG`: why a vLLM server or its load client failed, in three lines.

The lines are class and consequence, the line of the log that tells, and advice. A log that names no cause is no error
of this command: its class is `unknown`, and where nothing in it speaks of a failure, that is said. Exit code 2 when the
log cannot be read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

from sweep.arguments import LineParser
from sweep.diagnosis import Diagnosis, Evidence, FailureClass, Phase, Policy, diagnose
from sweep.errors import UserError

_CONSEQUENCES = {
    Policy.INFEASIBLE: "caused by the flags: never tried again",
    Policy.RETRY: "transient: worth another try",
    Policy.HOST: "this machine: needs a person or time",
    Policy.KEEP: "nothing failed",
}
_UNKNOWN = "cause not known: one more try may tell"


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    try:
        given = _parser().parse_args(words)
        if isinstance(sys.stdin, TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        evidence = Evidence(
            phase=given.phase,
            exit_code=given.exit_code,
            log=sys.stdin if given.log == "-" else _readable(Path(given.log)),
            memory_before_gib=given.memory_before_gib,
        )
        found = diagnose(evidence)
    except UserError as error:
        print(f"sweep.diagnosis: {error}", file=sys.stderr)  # noqa: T201
        return 2
    try:
        print(_as_json(found) if given.json else _as_text(found), flush=True)  # noqa: T201
    except BrokenPipeError:  # the reader has seen enough
        sys.stdout = None
    return 0


def _parser() -> LineParser:
    parser = LineParser(prog="python -m sweep.diagnosis", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("log", metavar="LOG", help="log of a server or a load client; - reads standard input")
    parser.add_argument("--phase", choices=[str(phase) for phase in Phase], help="when it failed; else the log tells")
    parser.add_argument("--exit-code", type=int, help="of the process; negative or above 128 for a signal")
    parser.add_argument(
        "--memory-before-gib", type=float, metavar="X", help="device memory that others held before the launch"
    )
    parser.add_argument("--json", action="store_true", help="class, line, retryable, informative_for_search, advice")
    return parser


def _readable(path: Path) -> Path:
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; give a log file, or - for standard input") from error


def _as_json(found: Diagnosis) -> str:
    return json.dumps(
        {
            "class": str(found.failure_class),
            "line": found.line,
            "retryable": found.retryable,
            "informative_for_search": found.informative_for_search,
            "advice": found.advice,
        },
        ensure_ascii=False,
    )


def _as_text(found: Diagnosis) -> str:
    if found.nothing_found:
        return f"{found.failure_class}; no failure was found in this log\n(no line of the log tells)\n{found.advice}"
    stop = "not caused by the flags: stops a study " + ("at once" if found.stop_at_once else "when it repeats")
    consequence = _CONSEQUENCES.get(found.policy, stop)
    if found.failure_class is FailureClass.UNKNOWN and found.retryable:
        consequence = _UNKNOWN
    line = found.line or "(no line of the log tells)"
    return f"{found.failure_class} in phase {found.phase}; {consequence}\n{line}\n{found.advice}"


if __name__ == "__main__":
    sys.exit(main())
