"""The driver's figures as Prometheus reads them."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sweep.errors import HostError
from sweep.exporter import metrics_endpoint
from sweep.journal import Journal
from sweep.plan import StudyPlan
from sweep.trial import Finished, Flags, Phase, TrialKind, TrialSpec, TrialStatus

FLAGS: Flags = {"max-num-seqs": 8}


class Nothing:
    """A proposer that is never asked."""

    def ended(self, number: int) -> str:
        return f"nothing is left for trial {number}"

    def hear(self, finished: Finished) -> None:
        pass

    def propose(self, number: int, pending: object) -> Flags | None:
        raise AssertionError((number, pending))


def night() -> StudyPlan:
    plan = StudyPlan(Nothing(), 5, FLAGS)
    for number, score in ((0, 1.0), (1, 0.8)):
        kind = TrialKind.SEARCH if number else TrialKind.BASELINE
        metrics = {"p95_ttft_ms": 100.0 * score, "p99_itl_ms": None}
        plan.hear(Finished(number, kind, FLAGS, TrialStatus.COMPLETE, score, metrics=metrics, total_s=60.0))
    plan.live[2] = TrialSpec(2, TrialKind.SEARCH, FLAGS)
    return plan


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_every_figure_by_a_scrape(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "2", 2, redact=str)
    journal.enter(Phase.LOAD, total=200)
    journal.advance(50)
    port = free_port()
    with metrics_endpoint(port, 'a "night"', night(), lambda number: tmp_path / str(number)):
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300).read().decode()
    seen = {
        (sample.name, *sorted(value for key, value in sample.labels.items() if key != "study")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert seen[("sweep_trials_planned",)] == 5
    assert seen[("sweep_trials", "baseline", "complete")] == seen[("sweep_trials", "complete", "search")] == 1
    assert seen[("sweep_best_score",)] == 0.8
    assert seen[("sweep_best_metric", "p95_ttft_ms")] == 80.0
    assert ("sweep_best_metric", "p99_itl_ms") not in seen
    assert seen[("sweep_expected_left_seconds", "search")] == 180.0
    assert (seen[("sweep_trial_requests_done", "2")], seen[("sweep_trial_requests_planned", "2")]) == (50, 200)
    assert ("sweep_trial_phase_started_seconds", "2", "load") in seen
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300)


def test_off_by_default_and_a_taken_port_is_a_line(tmp_path: Path) -> None:
    with metrics_endpoint(None, "night", night(), lambda number: tmp_path / str(number)):
        pass
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(HostError, match=f"--metrics-port: port {port} of 127.0.0.1 cannot be had"),
            metrics_endpoint(port, "night", night(), lambda number: tmp_path / str(number)),
        ):
            pass
