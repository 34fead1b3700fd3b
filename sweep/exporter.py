"""The driver's own figures for Prometheus, on loopback and only where it is asked for."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sweep.errors import HostError
from sweep.journal import read_progress
from sweep.plan import StudyPlan
from sweep.recommend import recommend

ADDRESS = "127.0.0.1"
_BEST = "Best single measurement of the search, unconfirmed; 1 is today's flags, less is better."


class StudyCollector(Collector):
    """What a plan knows, read anew at each scrape. `log_folder` gives the folder of a trial's journal."""

    def __init__(self, study: str, plan: StudyPlan, log_folder: Callable[[int], Path]) -> None:
        self._study, self._plan, self._log_folder = study, plan, log_folder

    def collect(self) -> Iterator[Metric]:
        """All figures; those that are not known yet are left out."""
        finished = list(self._plan.finished.values())
        yield self._gauge("sweep_trials_planned", "Trials the search is asked for.", self._plan.trials)
        ended = GaugeMetricFamily("sweep_trials", "Trials that ended.", labels=["study", "kind", "status"])
        for (kind, status), count in Counter((str(f.kind), str(f.status)) for f in finished).items():
            ended.add_metric([self._study, kind, status], count)
        yield ended
        best = recommend(finished)
        if best.score is not None:
            yield self._gauge("sweep_best_score", _BEST, best.score)
        metrics = next((f.metrics for f in finished if f.number == best.number), None)
        values = GaugeMetricFamily("sweep_best_metric", "Metrics of that trial.", labels=["study", "metric"])
        for name, value in (metrics or {}).items():
            if value is not None:
                values.add_metric([self._study, name], value)
        yield values
        if (left := self._plan.expected_left_s()) is not None:
            family = GaugeMetricFamily("sweep_expected_left_seconds", "By the last trials.", labels=["study", "part"])
            for part, left_s in zip(("search", "confirmation"), left, strict=True):
                family.add_metric([self._study, part], left_s)
            yield family
        yield from self._running()

    def _running(self) -> Iterator[Metric]:
        labels = ["study", "trial"]
        phases = GaugeMetricFamily("sweep_trial_phase_started_seconds", "Unix time.", labels=[*labels, "phase"])
        done = GaugeMetricFamily("sweep_trial_requests_done", "Requests answered.", labels=labels)
        total = GaugeMetricFamily("sweep_trial_requests_planned", "Requests of its load.", labels=labels)
        for number in list(self._plan.live):
            progress = read_progress(self._log_folder(number))
            if progress is None:
                continue
            phases.add_metric([self._study, str(number), progress.phase], progress.since_wall_s)
            if progress.total is not None:
                done.add_metric([self._study, str(number)], progress.done or 0)
                total.add_metric([self._study, str(number)], progress.total)
        yield from (phases, done, total)

    def _gauge(self, name: str, what: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, what, labels=["study"])
        family.add_metric([self._study], value)
        return family


@contextlib.contextmanager
def metrics_endpoint(
    port: int | None, study: str, plan: StudyPlan, log_folder: Callable[[int], Path]
) -> Iterator[None]:
    """`http://127.0.0.1:PORT/metrics` while it is entered; nothing with `port` None. Raises HostError for one taken."""
    if port is None:
        yield
        return
    registry = CollectorRegistry()
    registry.register(StudyCollector(study, plan, log_folder))
    try:
        server, thread = start_http_server(port, addr=ADDRESS, registry=registry)
    except OSError as error:
        raise HostError(f"--metrics-port: port {port} of {ADDRESS} cannot be had: {error.strerror}") from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)
