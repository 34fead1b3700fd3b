"""The bench of overhead: what it takes of the events of stored trials, worked by hand."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from stored_trials import complete, failed, rounds, store

from sweep.records import Event
from sweep.trial import TrialResult

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import bench_overhead


def at(began_s: float, result: TrialResult, **phases: float) -> TrialResult:
    """The trial launched at that time; `phases` are in seconds from there."""
    events = [Event(1, 0.0, began_s, "phase", "start")]
    events += [
        Event(1, after_s, began_s + after_s, *(("stopped", "") if name == "stopped" else ("phase", name)))
        for name, after_s in phases.items()
    ]
    return dataclasses.replace(result, events=tuple(events), attempts=1, started_wall_s=began_s)


def test_overhead_is_what_neither_start_up_nor_warm_up_nor_load_took(tmp_path: Path) -> None:
    part = dataclasses.replace(rounds()[0], attempt=1, duration_s=20.0, took_s=22.5)
    whole = dataclasses.replace(complete(0), startup_s=30.0, rounds=(part,), round_scores=(0.9,))
    last = dataclasses.replace(complete(2), startup_s=30.0, rounds=(part,), round_scores=(0.9,))
    times = {"warmup": 30.5, "load": 35.5, "stop": 60.0, "stopped": 61.0}
    writer = store(tmp_path)
    for one in (at(1000.0, whole, **times), at(1062.0, failed(1), stop=5.0), at(1070.0, last, **times)):
        writer.append(one, engine_summary={})
    first, second = bench_overhead.spent(tmp_path)
    assert (first.startup_s, first.warmup_s, first.load_s, first.clients_s) == (30.0, 5.0, 20.0, 2.5)
    assert (first.stop_s, first.turnaround_s) == (1.0, 1.0)  # to the launch that failed
    assert first.overhead_s == pytest.approx(62.0 - 30.0 - 5.0 - 20.0)
    assert (second.turnaround_s, second.overhead_s) == (None, None)  # no launch follows
    found = bench_overhead.summary([first, second])
    assert found["overhead_share_5min"] == pytest.approx(7.0 / 300)
    assert (found["turnaround_s_median"], found["startup_s_median"], found["trials"]) == (1.0, 30.0, 2)
    assert bench_overhead.summary([])["overhead_share_5min"] is None
