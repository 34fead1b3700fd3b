"""A result that no working client could write is refused, however splendid its figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from load_jobs import DATA, a_job, a_round

from sweep.errors import LoadFailed
from sweep.loadgen import read_result
from sweep.loadgen.consistency import check_consistency

Edit = Callable[[dict[str, Any]], None]


def judge(folder: Path, edit: Edit, *, took_s: float = 12.0) -> None:
    """Check the recorded result of the real client after an edit."""
    result: dict[str, Any] = json.loads((DATA / "client_result_good.json").read_text())
    job = a_job(folder, a_round(24, rate=8.0, seed=3, output=12, tokens=list(result["input_lens"])))
    edit(result)
    job.result_path.write_text(json.dumps(result))
    requests, duration_s, figures = read_result(job)
    check_consistency(job, requests, duration_s, figures, took_s)


def times(*names: str, factor: float) -> Edit:
    def edit(result: dict[str, Any]) -> None:
        for name in names:
            if name == "itls":
                result[name] = [[gap * factor for gap in gaps] for gaps in result[name]]
            elif isinstance(result[name], list):
                result[name] = [type(value)(value * factor) for value in result[name]]
            else:
                result[name] = result[name] * factor

    return edit


def test_the_real_result_is_consistent(tmp_path: Path) -> None:
    judge(tmp_path, lambda _result: None)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        pytest.param(
            times("ttfts", "itls", "latencies", factor=0.001), "result_malformed", id="milliseconds as seconds"
        ),
        pytest.param(
            times("ttfts", "itls", "latencies", factor=1000), "result_malformed", id="seconds as milliseconds"
        ),
        pytest.param(times("duration", factor=0.001), "result_malformed", id="a duration far too short"),
        pytest.param(times("duration", factor=1000), "result_malformed", id="a duration longer than the run"),
        pytest.param(times("latencies", factor=50), "result_malformed", id="E2EL that is not the sum of its parts"),
        pytest.param(times("output_lens", factor=50), "result_malformed", id="more tokens than asked for"),
        pytest.param(times("mean_ttft_ms", factor=3), "result_malformed", id="figures of another run"),
        pytest.param(
            lambda r: r.update(start_times=[t + 60.0 * (i > 0) for i, t in enumerate(r["start_times"])]),
            "result_malformed",
            id="requests after the end",
        ),
        pytest.param(
            lambda r: r.update(itls=[[0.0] * len(gaps) for gaps in r["itls"]]), "implausible_latency", id="no gaps"
        ),
        pytest.param(lambda r: r.update(itls=[[] for _ in r["itls"]]), "implausible_latency", id="empty gaps"),
    ],
)
def test_an_impossible_result_is_refused(tmp_path: Path, edit: Edit, reason: str) -> None:
    with pytest.raises(LoadFailed) as caught:
        judge(tmp_path, edit)
    assert caught.value.reason == reason


def test_requests_that_left_far_too_late(tmp_path: Path) -> None:
    def late(result: dict[str, Any]) -> None:
        result["start_times"] = [start + (i > 2) * 8.0 for i, start in enumerate(result["start_times"])]
        result["duration"] += 8.0

    with pytest.raises(LoadFailed, match="late") as caught:
        judge(tmp_path, late, took_s=30.0)
    assert caught.value.reason == "requests_differ"
