"""The minute at the top of a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from plateau import plateau
from reported import OWN, alike, confirmed, measured, night, write

from sweep.report import Wishes, open_source
from sweep.report.facts import Facts
from sweep.report.html import as_html
from sweep.report.html.part_short import in_short
from sweep.report.page import facts_of
from sweep.trial import TrialKind


def facts(folder: Path, **wishes: object) -> Facts:
    return facts_of(open_source(str(folder)), Wishes(**wishes))  # type: ignore[arg-type]


def short(found: Facts) -> str:
    return in_short(found) or ""


def test_what_was_asked_for_and_what_it_costs(tmp_path: Path) -> None:
    found = facts(confirmed(tmp_path))
    assert [one.name for one in found.brief.asked] == ["p95_ttft_ms"]
    assert {"p50_tpot_ms", "p95_tpot_ms", "p99_tpot_ms"} <= {one.name for one in found.brief.worse}
    assert not set(found.brief.asked) & set(found.brief.worse)
    text = short(found)
    assert "You asked for" in text
    assert "It costs" in text
    assert text.count(" TPOT <b>") == 1  # one of its percentiles; the table has all


def test_a_broken_slo_is_a_cost_even_where_it_was_asked_for(tmp_path: Path) -> None:
    found = facts(night(tmp_path), slo={"p95_tpot_ms": 5.0}, weights={"p95_ttft_ms": 1.0})
    assert "p95_tpot_ms" in {one.name for one in found.brief.worse}
    assert "its SLO is broken" in short(found)


def test_one_measurement_costs_perhaps(tmp_path: Path) -> None:
    found = facts(night(tmp_path))
    assert found.brief.worse == ()
    assert "p95_tpot_ms" in {one.name for one in found.brief.perhaps_worse}
    assert "It may cost" in short(found)
    assert "intervals" not in short(found)  # there are none


def test_where_todays_flags_stay_the_closest_is_named(tmp_path: Path) -> None:
    found = facts(write(tmp_path, (measured(0, alike(50.0)), measured(1, alike(90.0)), measured(2, alike(60.0)))))
    assert (found.brief.asked, found.brief.worse, found.brief.perhaps_worse) == ((), (), ())
    assert found.brief.closest is not None
    assert found.brief.closest[0] == 2
    assert found.brief.closest[1] == pytest.approx(1.2)
    assert ", score 1.200" in short(found)


def test_what_went_wrong_and_what_it_is_made_of(tmp_path: Path) -> None:
    found = facts(night(tmp_path))
    assert found.brief.causes == (("startup_oom", 1),)
    assert found.brief.disturbed == 1
    assert (found.brief.searched, found.brief.others) == (6, 0)
    assert "1 trial failed: startup_oom; 1 trial disturbed" in short(found)
    assert "6 trials; 1 min 0 s, until 1 January 2026, 00:01 UTC" in short(found)


def test_candidates_that_cost_no_launch_are_counted(tmp_path: Path) -> None:
    found = facts(plateau(tmp_path))
    assert (found.brief.refused, found.brief.same) == (3, 1)
    assert "4 candidates not launched" in short(found)


def test_launches_beside_the_search_are_counted_apart(tmp_path: Path) -> None:
    found = facts(confirmed(tmp_path))
    assert dict(found.brief.kinds)[TrialKind.CONFIRM] == 12
    assert "6 trials, 12 launches beside the search" in short(found)


def test_files_for_production_are_named_only_for_the_studys_own_winner(tmp_path: Path) -> None:
    folder = confirmed(tmp_path)
    (folder / "recommended").mkdir()
    (folder / "recommended" / "serve.sh").write_text("")
    found = facts(folder)
    assert found.brief.files == ("recommended/serve.sh",)
    assert "recommended/serve.sh" in as_html(found)
    assert facts(folder, weights={"p95_tpot_ms": 1.0}).brief.files == ()


def test_nothing_stored_has_nothing_to_say(tmp_path: Path) -> None:
    found = facts(write(tmp_path, ()))
    assert (found.brief.began_wall_s, found.brief.kinds) == (None, ())
    assert in_short(found) is None


def test_a_flag_that_changes_nothing_says_so_in_the_diff(tmp_path: Path) -> None:
    found = facts(plateau(tmp_path))
    assert found.report.objective.weights == dict(OWN["weights"])
    text = as_html(found)
    assert "makes no difference at this load" in text  # 256 to 32, both above what ran
