"""What several test modules share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from studies import Studies, all_studies


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run one after another, in one worker each, what shares something heavy.

    Two real vLLM servers on two cores would starve each other; the studies share a Ray cluster.
    """
    for item in items:
        if item.get_closest_marker("vllm"):
            item.add_marker(pytest.mark.xdist_group("vllm"))
        elif "studies" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("studies"))
        elif isinstance(item, pytest.Function) and item.cls is not None:
            item.add_marker(pytest.mark.xdist_group(item.cls.__name__))  # a class shares what its fixtures ran


@pytest.fixture(scope="session")
def studies() -> Iterator[Studies]:
    """Drivers that start fast, on one Ray cluster."""
    with all_studies() as found:
        yield found
