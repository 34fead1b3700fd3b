"""What a person, or a script, sees of a study."""

from __future__ import annotations

from sweep.console.final import print_final, trial_json, verdict_json
from sweep.console.front import front_notes, front_rows, front_title, number_text, plain_table, print_front
from sweep.console.live import LiveView
from sweep.console.scene import Sources
from sweep.console.view import JsonView, PlainView, View, print_json

__all__ = [
    "JsonView",
    "LiveView",
    "PlainView",
    "Sources",
    "View",
    "front_notes",
    "front_rows",
    "front_title",
    "number_text",
    "plain_table",
    "print_final",
    "print_front",
    "print_json",
    "trial_json",
    "verdict_json",
]
