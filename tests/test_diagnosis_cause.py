"""When two failures have one cause."""

from __future__ import annotations

import pytest

from sweep.diagnosis import FailureClass, cause_of

NAMELESS = (FailureClass.OTHER, FailureClass.UNKNOWN)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (
            "OSError: [Errno 13] Permission denied: '/x/0003/a'",
            "OSError: [Errno 13] Permission denied: '/x/0011/a'",
            True,
        ),
        ("OSError: [Errno 13] Permission denied: '/x'", "OSError: [Errno 30] Permission denied: '/x'", False),
        ("the server ended with exit code 1", "the server ended with exit code 137", False),
        ("429 Client Error: Too Many Requests for url", "401 Client Error: Too Many Requests for url", False),
        ("fault at 0x7f3a99001000 in pid 30011", "fault at 0x7c10 in pid 29", False),
        ("fault at 0x7f3a99001000 in pid 30011", "fault at 0x7c10 in pid 29123", True),
        ("no file /srv/cache/9c1f00aa12/kernel.so", "no file /srv/cache/0e55ab3210/kernel.so", True),
        ("No module named 'feedface'", "No module named 'deadbeef'", False),
        ("", None, True),
    ],
)
def test_lines_tell_causes_apart_where_the_class_says_nothing(one: str, other: str | None, same: bool) -> None:
    for name in NAMELESS:
        assert (cause_of(name, one) == cause_of(name, other)) is same
    assert cause_of("engine_died", one) == cause_of("engine_died", other)


def test_every_class_is_a_cause_of_its_own() -> None:
    causes = {cause_of(name, "the same line") for name in FailureClass}
    assert len(causes) == len(FailureClass)
    assert cause_of(None, "a line") == cause_of("unknown", "a line")
