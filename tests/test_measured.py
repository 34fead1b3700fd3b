"""Stored trials measured anew: what nobody asked for when they ran, by the limits of today."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from reported import DURATION_S, confirmed, launch, measured, night, request, write

from sweep.config import ConfirmSection
from sweep.confirm import Jury
from sweep.errors import HostError
from sweep.known import known_trials
from sweep.measured import lacking, measure, measure_all
from sweep.objective import Objective
from sweep.report import make_report, open_source
from sweep.stages import ConfirmRules
from sweep.store import read_trials, trial_file
from sweep.trial import TrialKind
from sweep.verdict import percentile_interval

TTFT = Objective({"p95_ttft_ms": 1.0}, {})


def test_a_percentile_that_was_never_stored_is_that_of_the_requests(tmp_path: Path) -> None:
    stored = read_trials(night(tmp_path))
    objective = Objective({"p97_ttft_ms": 0.5, "p99_itl_ms": 0.5}, {})
    found = lacking(tmp_path, stored, objective)
    assert sorted(found) == [0, 1, 2, 4, 5]  # all that were measured
    known = known_trials(stored, objective, found)
    assert known[1].score == pytest.approx((50 / 100 + 20 / 10) / 2)
    assert (known[1].metrics or {})["p95_ttft_ms"] == pytest.approx(50.0)  # what was stored is still there
    assert known[3].score is None
    assert lacking(tmp_path, stored, TTFT) == {}


def test_goodput_is_by_the_limits_of_today_whatever_was_stored(tmp_path: Path) -> None:
    results = [measured(number, [request(k, 40.0 + k + 10 * number) for k in range(20)]) for number in range(2)]
    stale = [dataclasses.replace(one, metrics={**(one.metrics or {}), "goodput_per_s": 99.0}) for one in results]
    stored = read_trials(write(tmp_path, stale))
    for limit_ms, good in ((49.5, 10), (200.0, 20)):
        objective = Objective({"goodput_per_s": -1.0}, {"p95_ttft_ms": limit_ms})
        found = lacking(tmp_path, stored, objective)
        assert found[0]["goodput_per_s"] == pytest.approx(good / DURATION_S)


def test_requests_that_cannot_be_read_are_an_error_or_left_out(tmp_path: Path) -> None:
    stored = read_trials(night(tmp_path))
    trial_file(tmp_path, "requests", 1).write_bytes(b"PAR1")
    with pytest.raises(HostError, match="damaged"):
        lacking(tmp_path, stored, Objective({"p97_ttft_ms": 1.0}, {}))
    assert sorted(measure_all(tmp_path, stored, TTFT)) == [0, 2, 4, 5]


def test_launches_of_a_confirmation_are_scored_in_their_block_and_other_loads_not_at_all(tmp_path: Path) -> None:
    found = known_trials(read_trials(confirmed(tmp_path)), TTFT)
    for number in (11, 14):
        assert found[number].kind is TrialKind.CONFIRM
        baseline = (found[number - 1].metrics or {})["p95_ttft_ms"]
        mine = (found[number].metrics or {})["p95_ttft_ms"]
        assert baseline
        assert mine
        assert found[number].score == pytest.approx(mine / baseline)
    soak = launch(90, 1, 0, 50.0)
    soak = dataclasses.replace(soak, spec=dataclasses.replace(soak.spec, kind=TrialKind.SOAK, block=None))
    write(tmp_path, [soak])
    assert known_trials(read_trials(tmp_path), TTFT)[90].score is None


def test_intervals_are_over_requests_blocked_by_round(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = [
        dataclasses.replace(request(k, ttft, gap), round=k // 150)
        for k, (ttft, gap) in enumerate(zip(rng.lognormal(4, 0.5, 300), rng.lognormal(2, 0.3, 300), strict=True))
    ]
    (stored,) = read_trials(write(tmp_path, [measured(0, rows)]))
    objective = Objective({"p95_ttft_ms": 1.0, "p90_itl_ms": 1.0}, {"mean_e2el_ms": 1e6})
    found = measure(tmp_path, stored, [objective], ["p99_tpot_ms"])
    assert found is not None
    (one,) = found
    rounds = np.arange(300) // 150
    assert one.intervals["p95_ttft_ms"] == percentile_interval([row.ttft_ms or 0.0 for row in rows], 95, rounds)
    gaps = [gap for row in rows for gap in row.itl_ms]
    owners = np.repeat(np.arange(300), 2)
    assert one.intervals["p90_itl_ms"] == percentile_interval(gaps, 90, rounds[owners], owners)
    assert set(one.intervals) == {"p95_ttft_ms", "p90_itl_ms"}  # 300 requests bound no p99
    assert one.thin == {"p99_tpot_ms"}


def test_a_report_gives_the_intervals_that_the_study_gave(tmp_path: Path) -> None:
    """Both draw requests again, by the study's seed."""
    folder = confirmed(tmp_path)
    (folder / "study.json").write_text(
        '{"study": {"name": "night", "trials": 6, "seed": 7}, "objective": {"weights": {"p95_ttft_ms": 1}}}'
    )
    found = make_report(open_source(str(folder)))
    rules = ConfirmRules.of(ConfirmSection())
    known = known_trials(read_trials(folder), TTFT)
    study = Jury(folder, TTFT, rules, ConfirmSection().width, 7).confirmed(known)
    assert found.confirmed is not None
    assert study is not None
    assert found.confirmed.verdict.effects == study.verdict.effects
    assert found.confirmed.verdict.spread == study.verdict.spread
    assert open_source(str(folder)).seed == 7
