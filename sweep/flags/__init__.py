"""Flags: how they are typed, and what the installed vLLM knows of them."""

from __future__ import annotations

from sweep.flags.check import check_flags
from sweep.flags.discover import Dialect, discover
from sweep.flags.help_text import CommandHelp, Option, parse_help
from sweep.flags.render import FlagValue, canonical, printable, render

__all__ = [
    "CommandHelp",
    "Dialect",
    "FlagValue",
    "Option",
    "canonical",
    "check_flags",
    "discover",
    "parse_help",
    "printable",
    "render",
]
