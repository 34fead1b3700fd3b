"""What a run came to: shown, written as a page, and told to whom the study file names."""

from __future__ import annotations

import shlex
import sys

from rich.console import Console

from sweep.console import print_final, print_json, shown_metrics, verdict_json
from sweep.measured import measure_all
from sweep.notify import ENDED, FAILED, notify
from sweep.prepare import Prepared
from sweep.report.page import page_trouble
from sweep.report.source import PAGE
from sweep.spent import gpu_hours, spent_lines
from sweep.study import StudyOutcome

_FAILED = 1
# A pipe has no width of its own; the table of trials fits here without folding.
_PIPE_COLUMNS = 180


def finish(
    prepared: Prepared, outcome: StudyOutcome, *, as_json: bool, event: str | None = None, shown: bool = True
) -> int:
    """Show what a run came to, unless there is nothing to show, and tell whom `notify` names. The exit code."""
    production = None if outcome.production is None else str(outcome.production)
    verdict = verdict_json(
        outcome.recommendation,
        study=prepared.config.study.name,
        trials=len(outcome.trials),
        command=outcome.command,
        stop_reason=outcome.stop_reason,
        front=outcome.front,
        production=production,
        notes=outcome.notes,
        stood_in=None if prepared.stand_in is None else prepared.stand_in.word,
        gate=outcome.gate,
        equal=outcome.equal,
    ) | {"gpu_hours": round(gpu_hours(outcome.trials, prepared.config.gpus), 4)}
    if as_json:
        print_json(verdict)
    elif shown:
        # Before the verdict, since the last line of a run says why it ended; written after it, since that takes long.
        print(f"Report: {prepared.setup.folder / PAGE}", flush=True)  # noqa: T201 - this is the output
        console = Console(highlight=False, markup=False)
        for line in spent_lines(outcome.trials, prepared.config.gpus):
            console.print(line, soft_wrap=True)
        print_final(
            console if console.is_terminal else Console(highlight=False, markup=False, width=_PIPE_COLUMNS),
            outcome.trials,
            outcome.recommendation,
            command=outcome.command,
            best_yaml=None if outcome.best_yaml is None else str(outcome.best_yaml),
            stop_reason=outcome.stop_reason,
            folder=str(prepared.setup.folder),
            reads_yaml=_reads_yaml(prepared),
            confirmed=outcome.confirmed,
            front=outcome.front,
            production=production,
            gate=outcome.gate,
            equal=outcome.equal,
            notes=outcome.notes,
            measured=measure_all(
                prepared.setup.folder, outcome.trials, prepared.setup.objective, shown_metrics(outcome.trials)
            ),
        )
    if as_json or shown:
        sys.stdout.flush()
        if (trouble := page_trouble(prepared.setup.folder, prepared.redactor.text)) is not None:
            to_stderr(trouble)
    failed = outcome.failed or outcome.recommendation.flags is None
    for line in notify(prepared.config.notify, event or (FAILED if failed else ENDED), verdict):
        to_stderr(line)
    return _FAILED if failed else 0


def _reads_yaml(prepared: Prepared) -> str | None:
    """What reads `best.yaml`; of a command of the user's own nobody knows what it does with `--config`."""
    if prepared.config.serve.command is not None:
        return None
    env = [f"{name}={shlex.quote(value)}" for name, value in prepared.config.serve.env.items()]
    return prepared.redactor.text(" ".join([*env, "vllm serve"]))


def to_stderr(line: str) -> None:
    """A line of the command itself, beside whatever standard output is for."""
    print(f"sweep: {line}", file=sys.stderr)  # noqa: T201 - this is the output
