"""Flags without effect and candidates without a launch: as values, in JSON and on the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plateau import WHY, flags, plateau
from reported import confirmed, night, report_of

from sweep.report.__main__ import main
from sweep.report.as_json import as_json
from sweep.report.html import as_html
from sweep.report.page import facts_of
from sweep.report.source import open_source


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plateau(tmp_path_factory.mktemp("plateau"))


def page(folder: Path) -> str:
    return as_html(facts_of(open_source(str(folder))))


class TestValues:
    def test_each_refused_candidate_is_there_once_with_its_reason(self, folder: Path) -> None:
        found = report_of(folder).not_launched
        assert [(one.before, dict(one.flags)) for one in found.refused] == [
            (3, flags(16, 1_000)),
            (3, flags(16, 1_001)),
            (3, flags(16, 1_002)),
        ]
        assert {(one.rule, one.reason, one.confidence) for one in found.refused} == {("kv_cache", WHY, 0.98)}
        assert len(found.refused) == report_of(folder).gate.count

    def test_a_check_says_whether_the_refusal_was_right(self, folder: Path) -> None:
        found = {one.number: one.failed for one in report_of(folder).not_launched.checked}
        assert found == {4: True, 5: False, 9: None}

    def test_what_is_known_already_names_its_trial(self, folder: Path) -> None:
        (one,) = report_of(folder).not_launched.same
        assert (one.before, dict(one.flags), one.trial) == (2, flags(128), 0)

    def test_a_flag_without_effect_has_its_evidence(self, folder: Path) -> None:
        (one,) = report_of(folder).equal.flags
        assert (one.name, one.inert, one.above) == ("max-num-seqs", True, 32)
        assert one.why == "24 requests at most ran at once"
        assert one.trial == 3
        assert one.sentence in report_of(folder).equal.sentences
        assert {(pair.number, pair.first) for pair in report_of(folder).equal.checks} == {(1, 0), (3, 0), (5, 0)}

    def test_a_study_without_any_has_none(self, tmp_path: Path) -> None:
        found = report_of(night(tmp_path))
        assert (found.not_launched.refused, found.not_launched.checked, found.not_launched.same) == ((), (), ())
        assert found.equal.flags == ()


class TestJson:
    def test_it_has_what_the_page_shows(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([str(folder), "--format", "json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert len(found["refused"]) == found["gate"]["refused"]["kv_cache"] == 3
        assert found["refused"][0]["flags"] == flags(16, 1_000)
        assert [one["failed"] for one in found["checked_refusals"]] == [True, False, None]
        assert found["same"] == [{"before": 2, "flags": flags(128), "trial": 0}]
        assert found["inert_flags"][0]["why"] == "24 requests at most ran at once"
        assert found["checks"][0] == {"trial": 1, "same_as": 0, "flags": ["max-num-seqs"], "ratio": pytest.approx(0.99)}
        assert found["wall_s"] == 60.0
        assert found["drift"] == []
        assert found["gpu_hours"] is None  # this study.json says nothing of its server

    def test_the_diff_and_the_intervals_of_every_metric(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([str(confirmed(tmp_path)), "--format", "json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["changed"] == {"max-num-seqs": {"today": 8, "then": 16}}
        metrics = {one["metric"]: one for one in found["confirmation"]["metrics"]}
        assert {"p95_ttft_ms", "p95_tpot_ms", "p50_e2el_ms", "request_throughput_per_s"} <= metrics.keys()
        ratio = metrics["p95_tpot_ms"]["ratio"]
        assert 1 < ratio["low"] < ratio["value"] < ratio["high"]

    def test_nothing_measured_is_no_number(self, tmp_path: Path) -> None:
        (tmp_path / "trials").mkdir()
        found = as_json(report_of(tmp_path))
        assert (found["wall_s"], found["changed"], found["refused"]) == (None, {}, [])


class TestPage:
    def test_flags_without_effect_have_a_table(self, folder: Path) -> None:
        text = page(folder)
        assert "Flags that made no difference" in text
        assert "from 32 on" in text
        assert "24 requests at most ran at once" in text
        assert "trial 1 as trial 0: score −1.0 %" in text

    def test_refused_candidates_have_theirs_escaped_and_bounded(self, folder: Path, tmp_path: Path) -> None:
        text = page(folder)
        assert "Refused candidates" in text
        assert "max-num-seqs 16, block-size 1002" in text
        assert "KV cache of &lt;b&gt;0.4 GiB&lt;/b&gt;" in text
        assert "98.0 %" in text
        for words in ("failed as foreseen", "worked, so the refusal was wrong", "told nothing"):
            assert words in text
        assert "Known already" in text
        many = page(plateau(tmp_path, refused=40))
        assert "And 15 more, in the table passed_over." in many
        assert "block-size 1024" in many
        assert "block-size 1025" not in many

    def test_a_check_that_has_not_ended_leads_nowhere(self, folder: Path) -> None:
        assert 'href="#trial-9"' not in page(folder)
