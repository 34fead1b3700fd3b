"""What several test modules share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from studies import Studies, all_studies


@pytest.fixture(scope="session")
def studies() -> Iterator[Studies]:
    """Drivers that start fast, on one Ray cluster."""
    with all_studies() as found:
        yield found
