"""The words of the command line: mistakes in one line with exit code 2, and what times and numbers mean."""

from __future__ import annotations

import re
import sys
from datetime import datetime, timedelta
from typing import Any

import typer
from typer.core import TyperCommand

from sweep.config import MOST_TRIALS, StudyConfig, parse_duration_s
from sweep.errors import UserError

EXIT_CODE = 2
# Of click, or of the copy of it that newer versions of typer bring.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class PlainCommand(TyperCommand):
    """A command whose unknown options, missing arguments and impossible values are one line on standard error.

    Its help breaks lines where the terminal does, not where the docstring does.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.help = "\n\n".join(" ".join(part.split()) for part in (self.help or "").split("\n\n"))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As of the base class, but a mistake ends the process with exit code 2."""
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            print(f"sweep: {_in_words(error)}", file=sys.stderr)  # noqa: T201
            raise typer.Exit(EXIT_CODE) from None


def _in_words(error: Any) -> str:
    near = getattr(error, "possibilities", None)
    if near:
        return f"no such option: {error.option_name}; did you mean {' or '.join(near)}?"
    text = " ".join(str(error.format_message()).split()).rstrip(".")
    text = re.sub(r"^Invalid value for '([^']*)'", r"\1", text)
    return f"{text[:1].lower()}{text[1:]}; --help shows what there is"


def budget_s(config: StudyConfig, time_budget: str | None, deadline: str | None) -> float | None:
    """The shortest of the study file's budget and the two options, in seconds. Raises UserError."""
    limits = [config.study.time_budget] if config.study.time_budget is not None else []
    if time_budget is not None:
        try:
            limits.append(parse_duration_s(time_budget))
        except ValueError as error:
            raise UserError(f"--time-budget: {error}") from None
    if deadline is not None:
        limits.append(seconds_until(deadline, datetime.now()))
    return min(limits, default=None)


def with_trials(config: StudyConfig, text: str | None) -> StudyConfig:
    """The study with the number given with `--trials`; as it is where none was. Raises UserError."""
    if text is None:
        return config
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_TRIALS):
        raise UserError(f"--trials: must be a whole number from 1 to {MOST_TRIALS:,}, not {text}")
    return config.model_copy(update={"study": config.study.model_copy(update={"trials": int(text)})})


def seconds_until(clock: str, now: datetime) -> float:
    """Seconds from `now` to a time of day, today or tomorrow. Raises UserError."""
    try:
        moment = datetime.strptime(clock, "%H:%M")
    except ValueError:
        raise UserError(f"--deadline: {clock!r} is not a time of day; write 07:00") from None
    then = now.replace(hour=moment.hour, minute=moment.minute, second=0, microsecond=0)
    if then <= now:
        then += timedelta(days=1)
    return (then - now).total_seconds()
