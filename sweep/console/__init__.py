"""What a person, or a script, sees of a study."""

from __future__ import annotations

from sweep.console.figures import (
    FEW_NOTE,
    LEGEND,
    figure_text,
    fits,
    flag_header,
    marked,
    measured_text,
    metric_header,
    number_text,
    plain_table,
)
from sweep.console.final import print_final, trial_json, verdict_json
from sweep.console.front import front_notes, front_rows, front_title, print_front
from sweep.console.live import LiveView
from sweep.console.scene import Sources
from sweep.console.trials import shown_metrics
from sweep.console.view import JsonView, PlainView, View, print_json

__all__ = [
    "FEW_NOTE",
    "LEGEND",
    "JsonView",
    "LiveView",
    "PlainView",
    "Sources",
    "View",
    "figure_text",
    "fits",
    "flag_header",
    "front_notes",
    "front_rows",
    "front_title",
    "marked",
    "measured_text",
    "metric_header",
    "number_text",
    "plain_table",
    "print_final",
    "print_front",
    "print_json",
    "shown_metrics",
    "trial_json",
    "verdict_json",
]
