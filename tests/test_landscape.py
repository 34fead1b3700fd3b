"""The recording that is kept beside the tests: what the search benchmark rests on."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from sweep.replay import Recording, read_recording
from sweep.store import StoredLaunch, read_launches

FOLDER = Path(__file__).parent / "data" / "landscape"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="no recording in tests/data/landscape yet")


@pytest.fixture(scope="module")
def launches() -> tuple[StoredLaunch, ...]:
    return read_launches(FOLDER)


@pytest.fixture(scope="module")
def recording() -> Recording:
    return read_recording(FOLDER)


def test_it_is_large_enough_and_a_third_of_it_was_launched_three_times(recording: Recording) -> None:
    counts = [len(found) for found in recording.points.values()]
    assert len(counts) >= 40
    assert sum(counts) >= 70
    assert sum(count >= 3 for count in counts) >= len(counts) // 3
    assert len(recording.rates) == 2


def test_repeats_are_spread_over_the_recording(launches: tuple[StoredLaunch, ...]) -> None:
    started: dict[str, list[float]] = {}
    for one in launches:
        started.setdefault(json.dumps(dict(one.trial.flags)), []).append(one.trial.started_wall_s)
    whole_s = max(map(max, started.values())) - min(map(min, started.values()))
    gaps = [max(times) - min(times) for times in started.values() if len(times) > 2]
    assert min(gaps) > whole_s / 10


def test_it_has_starts_that_fail_a_cache_that_starves_and_queues(launches: tuple[StoredLaunch, ...]) -> None:
    causes = Counter(one.trial.failure.failure_class for one in launches if one.trial.failure is not None)
    assert {"unsupported_block_size", "kv_cache_too_small"} <= set(causes)
    assert sum(causes.values()) < len(launches) / 2
    rounds = [part for one in launches for part in one.rounds]
    assert any((part.preemptions or 0) > 0 for part in rounds)
    assert any((part.peak_waiting or 0) > 10 for part in rounds)
    assert any((part.peak_kv_usage_share or 0) > 0.9 for part in rounds)  # as read now and then: see preemptions
    assert any((part.peak_waiting or 0) == 0 for part in rounds)


def test_every_request_is_there(launches: tuple[StoredLaunch, ...]) -> None:
    for one in launches:
        assert len(one.requests) == sum(part.prompts for part in one.rounds)
        assert (one.trial.failure is None) is bool(one.requests)


def test_it_names_no_place_of_the_machine_it_was_made_on() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 8e6
    texts = [(FOLDER / "recording.json").read_text()]
    texts += [one.trial.command for one in read_launches(FOLDER)]
    texts += [one.trial.failure.line or "" for one in read_launches(FOLDER) if one.trial.failure is not None]
    assert not [text for text in texts if re.search(r"(?<![\w.])/(?:tmp|home|root|work|mnt|usr|opt)\b", text)]
    about = json.loads(texts[0])
    assert about["command"].startswith("python scripts/record_landscape.py ")
    assert about["fingerprint"]["model_sha256"]
