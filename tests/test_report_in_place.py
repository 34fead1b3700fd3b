"""A confirmation that launched flags nearer to today's in place of the search's best: it is confirmed, and said."""

from __future__ import annotations

from pathlib import Path

import pytest
from reported import alike, append, confirmed, flags, launch, measured, night, report_of, write

from sweep.report import open_source
from sweep.report.as_json import as_json
from sweep.report.html import as_html
from sweep.report.page import facts_of
from sweep.report.terminal import remarks, status_text
from sweep.trial import Flags, TrialKind, TrialSpec

LESS: Flags = {**flags(1), "gpu-memory-utilization": 0.8}


def confirmed_in_place(folder: Path, of: Flags = LESS, ttft_ms: float = 50.0) -> Path:
    """`night`, whose best is trial 1, with launches of the baseline and of other flags in three blocks."""
    append(night(folder), (launch(10 + 2 * block, 0, block, 100.0) for block in range(3)))
    specs = [TrialSpec(11 + 2 * block, TrialKind.CONFIRM, of, block=block) for block in range(3)]
    append(folder, (launch(one.number, 1, one.block or 0, ttft_ms, spec=one) for one in specs))
    return folder


def test_the_winner_is_confirmed_in_every_form(tmp_path: Path) -> None:
    found = report_of(confirmed_in_place(tmp_path))
    assert found.confirmed is not None
    assert (found.recommendation.number, found.recommendation.confirmed) == (11, True)
    assert found.recommendation.flags == LESS
    assert found.confirmed.in_place_of == {11: 1}
    (believed,) = found.confirmed.verdict.shrinkage
    assert believed.key == 11
    assert believed.search_score == pytest.approx(0.5)
    assert found.winner is not None
    assert status_text(found, found.winner) == "best, confirmed as trial 11"
    line = (
        "Trial 11 was launched in place of trial 1: gpu-memory-utilization 0.8 instead of 0.9, the same to the engine "
        "and nearer to today's flags"
    )
    assert line in remarks(found)
    assert as_json(found)["confirmation"]["in_place_of"] == {"11": 1}
    page = as_html(facts_of(open_source(str(tmp_path))))
    assert "✓ confirmed on fresh servers" in page
    assert f"<p>{line.replace(chr(39), '&#x27;')}.</p>" in page
    assert '"name":"the same as recommended"' in page  # the ring around trial 1
    assert '"name":"recommended"' not in page


def test_flags_that_differ_otherwise_are_launched_in_place_of_nothing(tmp_path: Path) -> None:
    other = {**flags(1), "block-size": 16}
    found = report_of(confirmed_in_place(tmp_path, other), weights={"p50_ttft_ms": 1.0})
    assert found.confirmed is not None
    assert found.confirmed.in_place_of == {}
    assert (found.recommendation.number, found.recommendation.confirmed) == (1, False)
    # More memory is not what is launched in place of less.
    more = {**flags(1), "gpu-memory-utilization": 0.95}
    again = report_of(confirmed_in_place(tmp_path / "more", more), weights={"p50_ttft_ms": 1.0})
    assert (again.recommendation.number, again.recommendation.confirmed) == (1, False)


def test_trials_that_were_not_among_the_best_are_nobodys_stand_in(tmp_path: Path) -> None:
    folder = confirmed(tmp_path)  # trials 1 and 2
    spec = TrialSpec(40, TrialKind.SEARCH, {**flags(1), "gpu-memory-utilization": 0.95})
    append(folder, [measured(40, alike(95.0), spec=spec)])
    found = report_of(folder)
    assert found.confirmed is not None
    assert found.confirmed.in_place_of == {}
    assert not [line for line in remarks(found) if "in place of" in line]
    # The best of all is the same to the engine as one that was tried, too, and launched again.
    best = TrialSpec(41, TrialKind.SEARCH, {**flags(1), "gpu-memory-utilization": 0.92})
    append(folder, [measured(41, alike(45.0), spec=best)])
    again = report_of(folder, weights={"p50_ttft_ms": 1.0})
    assert again.search_winner.number == 41
    assert (again.recommendation.number, again.recommendation.confirmed) == (1, True)


def test_by_its_own_objective_a_study_that_went_on_keeps_what_it_confirmed(tmp_path: Path) -> None:
    folder = confirmed_in_place(tmp_path)
    spec = TrialSpec(20, TrialKind.SEARCH, {**flags(20), "block-size": 16})
    append(folder, [measured(20, alike(40.0), spec=spec)])
    found = report_of(folder)
    assert found.search_winner.number == 20
    assert (found.recommendation.number, found.recommendation.confirmed) == (11, True)
    other = report_of(folder, weights={"p50_ttft_ms": 1.0})
    assert (other.recommendation.number, other.recommendation.confirmed) == (20, False)
    assert other.own_winner is not None
    assert other.own_winner.confirmed


def test_a_best_that_was_measured_twice_is_confirmed_by_its_first_number(tmp_path: Path) -> None:
    trials = [measured(0, alike(100.0)), measured(1, alike(60.0)), measured(2, alike(90.0))]
    again = measured(3, alike(50.0), spec=TrialSpec(3, TrialKind.SEARCH, flags(1)))
    folder = write(tmp_path, [*trials, again])
    append(folder, (launch(10 + 2 * block + n, n, block, 55.0 if n else 100.0) for block in range(3) for n in (0, 1)))
    found = report_of(folder, weights={"p50_ttft_ms": 1.0})
    assert found.search_winner.number == 3
    assert (found.recommendation.number, found.recommendation.confirmed) == (1, True)


def test_a_confirmation_stands_where_the_baseline_of_the_search_cannot_be_read(tmp_path: Path) -> None:
    path = confirmed(tmp_path) / "requests" / "0000.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    found = facts_of(open_source(str(tmp_path)))
    assert (found.report.recommendation.number, found.report.recommendation.confirmed) == (1, True)
    assert found.costs is not None
    assert [one.name for one in found.report.changed] == ["max-num-seqs"]
    page = as_html(found)
    assert "✓ confirmed on fresh servers" in page
    assert "trial 0 has no place" in page
