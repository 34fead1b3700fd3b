"""What the plain commands share of reading their words: mistakes in one line, and `METRIC=NUMBER`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from sweep.errors import UserError
from sweep.metric_table import parse_metric


class LineParser(argparse.ArgumentParser):
    """Raises UserError for what cannot be parsed, instead of printing its usage and ending the process."""

    def error(self, message: str) -> NoReturn:
        """One line, no usage."""
        raise UserError(message)


def comma_parts(texts: Sequence[str]) -> list[str]:
    """The parts of an option that may be repeated or separated by commas."""
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def metric_numbers(option: str, texts: Sequence[str], form: str, example: str) -> dict[str, float]:
    """Numbers by metric, from `METRIC=NUMBER` repeated or separated by commas; `form` and `example` are for mistakes.

    Raises UserError.
    """
    found: dict[str, float] = {}
    for part in comma_parts(texts):
        name, equals, number = part.partition("=")
        name = name.strip()
        if not equals:
            raise UserError(f"{option}: {part!r} is not {form}, such as {example}")
        try:
            value = float(number)
        except ValueError:
            raise UserError(f"{option}: {number!r} of {name} is no number") from None
        try:
            parse_metric(name)
        except UserError as error:
            raise UserError(f"{option}: {error}") from None
        if name in found:
            raise UserError(f"{option}: {name} stands twice")
        found[name] = value
    return found
