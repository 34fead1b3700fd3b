"""What several test modules share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from studies import Studies, all_studies


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run one after another, in one worker each, what shares something heavy.

    Two real vLLM servers on two cores would starve each other; the studies share a Ray cluster.
    """
    for item in items:
        if item.get_closest_marker("vllm"):
            item.add_marker(pytest.mark.xdist_group("vllm"))
        elif "studies" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("studies"))


@pytest.fixture(scope="session")
def studies() -> Iterator[Studies]:
    """Drivers that start fast, on one Ray cluster."""
    with all_studies() as found:
        yield found
