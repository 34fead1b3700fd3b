"""Axes and marks of the page's plots."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from reported import alike, confirmed, measured, night, write

from sweep.report import open_source
from sweep.report.facts import Facts
from sweep.report.facts.costs import Costs, MetricChange
from sweep.report.facts.flags import FlagFacts, flag_facts
from sweep.report.html.figures_effect import costs_plot
from sweep.report.html.figures_flags import flag_plot
from sweep.report.html.part_why import why
from sweep.report.page import facts_of
from sweep.trial import Finished, Flag, TrialKind, TrialStatus
from sweep.verdict import Interval


def facts(folder: Path) -> Facts:
    return facts_of(open_source(str(folder)))


def change(ratio: float, interval: tuple[float, float] | None = None, limit: float | None = None) -> MetricChange:
    known = None if interval is None else Interval(ratio, *interval)
    return MetricChange(
        "p95_ttft_ms", "ms", True, 100.0, None, 100.0 * ratio, None, ratio, known, limit=limit, thin=False
    )


def axis(*changes: MetricChange) -> dict[str, Any]:
    spec = costs_plot(Costs(1, True, 0.95, changes)).spec
    go.Figure(spec)
    found: dict[str, Any] = spec["layout"]["xaxis"]
    return found


@pytest.mark.parametrize(
    ("changes", "reaches"),
    [
        ((change(0.98, (0.97, 0.99)), change(1.01, (0.99, 1.03))), (0.97, 1.03)),
        ((change(0.065, (0.006, 0.66)), change(1.445, (0.084, 24.9))), (0.006, 24.9)),
        ((change(0.9, limit=300.0),), (0.9, 3.0)),  # an SLO of three times today's
        ((change(0.0, (0.0, math.inf)),), (0.0001, 1.0)),
        ((change(1.0),), (1.0, 1.0)),
    ],
)
def test_the_axis_of_changes_holds_all_of_them(changes: tuple[MetricChange, ...], reaches: tuple[float, float]) -> None:
    found = axis(*changes)
    low, high = found["range"]
    assert low < math.log10(reaches[0]) <= math.log10(reaches[1]) < high
    assert high - low < 1.2 * (math.log10(reaches[1]) - math.log10(reaches[0]) or 1.0)
    within = [
        text for value, text in zip(found["tickvals"], found["ticktext"], strict=True) if low < math.log10(value) < high
    ]
    assert "0" in within
    assert len(found["tickvals"]) == len(found["ticktext"])


def test_its_ticks_are_changes_and_from_five_times_on_multiples() -> None:
    found = axis(change(0.1, (0.05, 20.0)))
    assert dict(zip(found["tickvals"], found["ticktext"], strict=True)) == {
        0.03: "−97 %", 0.05: "−95 %", 0.1: "−90 %", 0.2: "−80 %", 0.5: "−50 %", 1: "0", 2: "+100 %", 5: "×5", 10: "×10",
        20: "×20",
    }  # fmt: skip


def flag_of(*values: Flag) -> FlagFacts:
    trials = {
        number: Finished(
            number, TrialKind.SEARCH if number else TrialKind.BASELINE, {"x": value}, TrialStatus.COMPLETE, 1.0
        )
        for number, value in enumerate(values)
    }
    (found,) = flag_facts(trials)
    return found


@pytest.mark.parametrize(
    ("values", "ticks", "places"),
    [
        ((32, 64, 128), ["32", "64", "128"], [32, 64, 128]),
        ((0.2, 0.15, 0.3), ["0.15", "0.2", "0.3"], [0.15, 0.2, 0.3]),
        ((16, 17, 64), ["16", "17", "64"], [0, 1, 2]),  # too close to be written apart
        ((1, 2, 32, 48), ["1", "2", "32", "48"], [0, 1, 2, 3]),
    ],
)
def test_few_values_of_a_flag_have_their_ticks(values: tuple[Flag, ...], ticks: list[str], places: list[float]) -> None:
    found = flag_plot(0, flag_of(*values)).spec["layout"]["xaxis"]
    assert (found["ticktext"], found["tickvals"]) == (ticks, places)


def test_many_values_leave_the_ticks_to_plotly() -> None:
    assert "tickvals" not in flag_plot(0, flag_of(*(0.5 + n / 50 for n in range(15)))).spec["layout"]["xaxis"]


def test_the_recommended_trial_has_a_ring_wherever_trials_are_shown(tmp_path: Path) -> None:
    _, plots = why(facts(confirmed(tmp_path)))
    ringed = {
        one.name: trace["customdata"]
        for one in plots
        for trace in one.spec["data"]
        if trace.get("name") == "recommended"
    }
    assert ringed == {"plot-flag-0": [1], "plot-front-0": [1], "plot-front-1": [1]}


def test_todays_flags_have_none(tmp_path: Path) -> None:
    _, plots = why(facts(write(tmp_path, (measured(0, alike(50.0)), measured(1, alike(90.0))))))
    assert not [1 for one in plots for trace in one.spec["data"] if trace.get("name") == "recommended"]


def test_parallel_axes_write_numbers_without_powers_of_ten(tmp_path: Path) -> None:
    found = facts(night(tmp_path)).parallel
    assert found is not None
    assert not [text for one in found.axes for _, text in one.ticks if "e+" in text]
