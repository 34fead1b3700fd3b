"""What several test modules share."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from studies import Head, Studies

_RAY = "SWEEP_TESTS_RAY"

# The files that take longest, longest first: workers that get whole files then end at about the same time.
LONGEST = (
    "test_vllm_study",
    "test_going_on",  # of the short run the longest
    "test_resume",
    "test_signals",
    "test_confirm_study",
    "test_tune",
    "test_deadline",
    "test_twin_vllm",
    "test_calibrated",
    "test_devices",
    "test_scheduler_study",
    "test_twin_fit",
    "test_twin_study",
    "test_runner",
    "test_runner_rounds",
    "test_twinning_advice",
    "test_proposer",
    "test_samplers",
    "test_tune_mistakes",
    "test_bench_search",
    "test_stuck",
    "test_cluster_study",
    "test_bench_twin",
    "test_report_browser",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The short run, `-m "not vllm"`, leaves out what is marked `night` as well; any other expression counts as it is.

    All but the real vLLM is `-m "night or not vllm"`.
    """
    if config.option.markexpr.strip() == "not vllm":
        left_out = [item for item in items if item.get_closest_marker("night") is not None]
        items[:] = [item for item in items if item.get_closest_marker("night") is None]
        config.hook.pytest_deselected(items=left_out)
    turn = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: turn.get(item.path.stem, len(turn)))


@pytest.fixture(scope="session", autouse=True)
def signals_as_from_a_terminal() -> Iterator[None]:
    """What is ignored here (SIGHUP under nohup, SIGINT in a background job) would be ignored by all that tests start.

    A handler is not inherited: what is started begins with the default, and the run itself ignores the signal still.
    """
    ignored = [number for number in (signal.SIGHUP, signal.SIGINT) if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """A place for the one Ray cluster of all workers, which inherit what is set here."""
    if not hasattr(session.config, "workerinput"):
        os.environ[_RAY] = tempfile.mkdtemp(prefix="sweep-ray-")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """The workers are gone, and what used the cluster with them."""
    if not hasattr(session.config, "workerinput"):
        Head(Path(os.environ[_RAY]), os.getpid()).end()
        shutil.rmtree(os.environ.pop(_RAY))


@pytest.fixture(scope="session")
def studies(request: pytest.FixtureRequest) -> Studies:
    """Drivers that start fast, on one Ray cluster."""
    owner = os.getppid() if hasattr(request.config, "workerinput") else os.getpid()
    return Studies(Head(Path(os.environ[_RAY]), owner))
