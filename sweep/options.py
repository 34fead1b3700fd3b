"""Mistakes in the words typed on a command line, said as every other mistake is: one line, exit code 2."""

from __future__ import annotations

import re
import sys
from typing import Any

import typer
from typer.core import TyperCommand

EXIT_CODE = 2
# Of click, or of the copy of it that newer versions of typer bring.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class PlainCommand(TyperCommand):
    """A command whose unknown options, missing arguments and impossible values are one line on standard error."""

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
