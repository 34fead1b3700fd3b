"""The page: that it stands alone, says what is true of every kind of study, and lets nothing in but text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from reported import OWN, alike, append, confirmed, lost, measured, night, write
from rich_night import HOSTILE, rich_night

from sweep.redact import Redactor
from sweep.report import Wishes, open_source
from sweep.report.html import as_html
from sweep.report.html.markup import el, json_script, table
from sweep.report.html.words import change, duration, metric_words, number
from sweep.report.page import facts_of, page_trouble, write_page
from sweep.report.source import PAGE
from sweep.store import Schema, Store
from sweep.study_folder import StudyFolder
from sweep.trial import TrialKind, TrialSpec


class Page(HTMLParser):
    """A page as a browser would read it: its elements, its text outside of scripts, its data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, Mapping[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(text)
        self.text = re.sub(r"\s+", " ", " ".join(self.words))
        (found,) = (script for script in self.scripts if script.startswith("{"))
        self.data: dict[str, Any] = json.loads(found)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, _: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.words.append(data)

    def ids(self) -> set[str | None]:
        return {attributes.get("id") for _, attributes in self.elements} - {None}


def text_of(folder: Path, wishes: Wishes | None = None) -> str:
    return as_html(facts_of(open_source(str(folder)), wishes))


def page_of(folder: Path, wishes: Wishes | None = None) -> Page:
    return Page(text_of(folder, wishes))


@pytest.fixture(scope="module")
def rich_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return text_of(rich_night(tmp_path_factory.mktemp("rich")))


@pytest.fixture(scope="module")
def rich(rich_text: str) -> Page:
    return Page(rich_text)


class TestOnItsOwn:
    def test_it_refers_to_nothing_outside_of_itself(self, rich: Page) -> None:
        for tag, attributes in rich.elements:
            assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
            assert "src" not in attributes, tag
            assert (attributes.get("href") or "#").startswith("#"), tag
            assert not any(name.startswith("on") for name in attributes), tag

    def test_its_policy_lets_its_own_scripts_run_and_nothing_else(self, rich: Page) -> None:
        (policy,) = (a["content"] for tag, a in rich.elements if tag == "meta" and "http-equiv" in a)
        assert policy is not None
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "connect-src 'none'" in policy
        own = [script for script in rich.scripts if not script.startswith("{")]
        assert len(own) == 2
        for script in own:
            digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy

    def test_every_link_and_every_plot_has_its_place(self, rich: Page) -> None:
        ids = rich.ids()
        for tag, attributes in rich.elements:
            if tag == "a":
                assert (attributes["href"] or "")[1:] in ids
            if tag == "button":
                assert attributes["data-copy"] in ids
        assert set(rich.data["plots"]) <= ids
        assert {
            "plot-confirmation",
            "plot-costs",
            "plot-flag-0",
            "plot-front-0",
            "plot-parallel",
            "plot-history",
        } <= ids

    def test_plotly_takes_every_figure(self, rich: Page) -> None:
        for name, spec in rich.data["plots"].items():
            figure = go.Figure(spec)  # raises for an attribute that plotly does not know
            assert len(figure.data) > 0, name

    def test_a_plot_says_what_it_shows_to_who_cannot_see_it(self, rich: Page) -> None:
        drawn = {a["id"]: a for _, a in rich.elements if a.get("class") == "plot"}
        assert all(len(one["aria-label"] or "") > 20 for one in drawn.values())
        assert "trial 1: 0." in (drawn["plot-confirmation"]["aria-label"] or "")

    def test_states_differ_in_more_than_colour(self, rich: Page) -> None:
        for spec in rich.data["plots"].values():
            looks = [(t["marker"]["symbol"]) for t in spec["data"] if t.get("mode") == "markers" and "marker" in t]
            assert len(looks) == len(set(map(str, looks))), looks

    def test_it_stays_small(self, rich_text: str) -> None:
        assert len(rich_text.encode()) < 5.5 * 2**20


class TestWhatItSays:
    def test_verdict_then_what_to_set_then_how_sure_then_the_price_then_why(self, tmp_path: Path) -> None:
        page = page_of(confirmed(tmp_path))
        order = [a["id"] for tag, a in page.elements if tag == "section"]
        assert order == ["use", "confirmation", "costs", "why", "wrong", "trials", "remarks"]
        assert page.text.index("Configuration 1 is") < page.text.index("What to set")
        assert "✓ confirmed on fresh servers" in page.text
        assert "vllm serve m --max-num-seqs 16" in page.text
        assert re.search(r"--max-num-seqs 8 16 ", page.text)

    def test_what_was_only_replayed_is_called_that_first_and_is_confirmed_by_nothing(self, tmp_path: Path) -> None:
        append(confirmed(tmp_path), [measured(40, alike(300.0), stood_in="replayed")])
        page = page_of(tmp_path)
        assert "× replayed, not measured: no recommendation for production" in page.text
        assert "✓ confirmed on fresh servers" not in page.text
        assert 'id="command"' not in text_of(tmp_path)

    def test_an_unconfirmed_winner_is_called_that_in_every_place(self, tmp_path: Path) -> None:
        page = page_of(night(tmp_path))
        assert "! unconfirmed" in page.text
        assert "✓" not in page.text
        assert "nothing here is confirmed" in page.text
        assert "the changes themselves have none" in page.text

    def test_a_running_study_says_that_it_may_change_and_where_it_is(self, tmp_path: Path) -> None:
        with StudyFolder.open(tmp_path, "night") as held:
            append(held.path, (measured(0, alike(100.0)),))
            (held.path / "study.json").write_text(json.dumps({"study": {"trials": 6}, "objective": dict(OWN)}))
            place = held.log_folder(1)
            progress = {"number": 1, "attempt": 2, "phase": "load", "since_wall_s": 1.0, "done": 7, "total": 20}
            (place / "progress.json").write_text(json.dumps(progress))
            page = page_of(held.path)
            ended = Page(write_page(held.path, ended=True).read_text())
        assert "still running: this may change" in page.text
        assert "Now: trial 1, attempt 2, load, 7 of 20 requests answered." in page.text
        assert "Now:" not in ended.text
        assert "may change" not in ended.text

    def test_a_study_of_nothing_is_an_honest_page(self, tmp_path: Path) -> None:
        page = page_of(write(tmp_path, ()))
        assert "Nothing measured yet." in page.text
        assert "Nothing ran yet." in page.text
        assert page.data["plots"] == {}

    def test_all_failed_says_why_and_what_to_do(self, tmp_path: Path) -> None:
        baseline = TrialSpec(0, TrialKind.BASELINE, {"max-num-seqs": 8})
        page = page_of(write(tmp_path, (lost(0, baseline), lost(1))))
        assert "No trial could be measured." in page.text
        assert "2 trials of 2 failed." in page.text
        assert "CUDA out of memory" in page.text
        assert "lower it" in page.text

    def test_without_a_baseline_nothing_is_recommended(self, tmp_path: Path) -> None:
        baseline = TrialSpec(0, TrialKind.BASELINE, {"max-num-seqs": 8})
        page = page_of(write(tmp_path, (lost(0, baseline), measured(1, alike(50.0)))))
        assert "today's flags could not be measured" in page.text

    def test_keep_your_flags_shows_no_difference(self, tmp_path: Path) -> None:
        page = page_of(write(tmp_path, (measured(0, alike(50.0)), measured(1, alike(90.0)))))
        assert "No difference: today's flags stay." in page.text

    def test_importance_is_held_back_and_says_from_when(self, rich: Page) -> None:
        assert "it needs 20 trials that were measured to their end, undisturbed, and there are 6" in rich.text

    def test_importance_is_drawn_from_twenty_trials_on(self, tmp_path: Path) -> None:
        page = page_of(write(tmp_path, (measured(n, alike(200.0 - 5 * n)) for n in range(22)), trials=22))
        assert "plot-importance" in page.data["plots"]
        assert "best quarter of 22 trials" in page.text

    def test_an_slo_that_breaks_is_said(self, tmp_path: Path) -> None:
        wishes = Wishes(weights={"p95_ttft_ms": 1.0}, slo={"p95_tpot_ms": 5.0})
        assert "5: BROKEN" in page_of(night(tmp_path), wishes).text

    def test_a_trial_has_its_curves_its_load_its_engine_and_its_log(self, rich: Page) -> None:
        one = rich.data["trials"]["40"]
        assert set(one["curves"]) == {"ttft", "tpot", "itl", "e2el"}
        assert len(one["curves"]["ttft"]) == len(rich.data["shares"])
        assert [track["name"] for track in one["timeline"]["tracks"]][:4] == [
            "running",
            "waiting",
            "KV cache in use",
            "preemptions",
        ]
        assert one["timeline"]["throttles"][0]["bad"] is True
        assert "81,920" in rich.text
        assert "The end of logs/0040/server-1.log" in rich.text
        assert rich.data["trials"]["41"] == {"curves": {}, "timeline": None}


class TestHostileWords:
    def test_html_in_commands_logs_failures_and_engine_words_stays_text(self, rich: Page) -> None:
        assert not any(tag == "img" for tag, _ in rich.elements)
        assert len(rich.scripts) == 3
        assert rich.text.count("<img src=x onerror=") >= 5  # command, log, failure twice, engine

    def test_html_in_flags_reaches_neither_page_nor_plot(self, tmp_path: Path) -> None:
        words = {HOSTILE: HOSTILE, "<b>plain</b>": "<a href='http://x.example'>1</a>"}
        schema = Schema(dict.fromkeys(words, str), ())
        store = Store(tmp_path, schema, metadata={}, redactor=Redactor({}), reserve_bytes=0)
        for place, flags in enumerate((dict.fromkeys(words, "auto"), words)):
            spec = TrialSpec(place, TrialKind.SEARCH if place else TrialKind.BASELINE, flags)
            trial = measured(place, alike(100.0 - 10 * place), spec=spec, metrics={}, command=f"vllm serve {HOSTILE}")
            store.append(trial, engine_summary={})
        (tmp_path / "study.json").write_text(json.dumps({"study": {"trials": 2}, "objective": dict(OWN)}))
        (tmp_path / "fingerprint.json").write_text(json.dumps({"model": HOSTILE, "vllm": "<i>0.32</i>"}))
        page = page_of(tmp_path)
        assert not any(tag in ("img", "i") for tag, _ in page.elements)
        assert all((attributes.get("href") or "#").startswith("#") for _, attributes in page.elements)
        assert "<b>plain</b>" in page.text
        assert "<i>0.32</i>" in page.text
        assert HOSTILE.split("<img")[0] in page.text
        shown = [json.dumps(spec) for spec in page.data["plots"].values()]
        assert not any("<img" in text or "<a href" in text or "<b>" in text for text in shown)
        for spec in page.data["plots"].values():
            go.Figure(spec)

    def test_data_in_a_script_cannot_end_it(self) -> None:
        text = json_script("data", {"x": "</script><!--<script>\u2028&"})
        assert text.count("<") == 2
        assert text.count("&") == 0
        assert json.loads(text.partition(">")[2].rpartition("<")[0]) == {"x": "</script><!--<script>\u2028&"}

    def test_what_is_no_finite_number_is_nothing(self) -> None:
        text = json_script("data", {"x": [float("nan"), (float("inf"), 1.5)]})
        assert '>{"x":[null,[null,1.5]]}<' in text

    def test_elements_escape_text_and_attributes(self) -> None:
        made = el("p", "<", el("b", "&"), None, class_='"><', hidden=True, id=None)
        assert made == '<p class="&quot;&gt;&lt;" hidden>&lt;<b>&amp;</b></p>'
        assert "<td>&lt;</td>" in table(("a",), [("<",)])


class TestFiles:
    def test_it_is_written_beside_the_record(self, tmp_path: Path) -> None:
        folder = night(tmp_path)
        path = write_page(folder)
        assert path == folder / PAGE
        assert path.read_text().startswith("<!doctype html>")
        assert page_trouble(folder, str) is None
        assert {one.name for one in folder.iterdir() if one.is_file()} == {PAGE, "study.json"}

    def test_secrets_that_only_the_study_knows_are_kept_out_of_logs(self, tmp_path: Path) -> None:
        folder = night(tmp_path)
        (folder / "logs" / "0001").mkdir(parents=True)
        (folder / "logs" / "0001" / "server-1.log").write_text("the word is swordfish-9\n")
        text = write_page(folder, redact=Redactor({}, ["swordfish-9"]).text).read_text()
        assert "the word is [redacted]" in text
        assert "swordfish-9" not in text

    def test_what_stands_in_the_way_is_a_line(self, tmp_path: Path) -> None:
        folder = night(tmp_path)
        (folder / PAGE).mkdir()
        line = page_trouble(folder, str)
        assert line is not None
        assert line.startswith("the report could not be written: ")
        assert "\n" not in line
        (folder / "study.json").write_text('{"objective": {"weights": {"nonsense": 1}}}')
        assert "nonsense" in (page_trouble(folder, str) or "")


def test_words() -> None:
    assert [duration(s) for s in (0.4, 59.6, 61, 3_661, 90_000)] == [
        "0 s",
        "1 min 0 s",
        "1 min 1 s",
        "1 h 1 min",
        "25 h 0 min",
    ]
    assert [change(ratio) for ratio in (0.88, 1.0, 1.205)] == ["−12.0 %", "+0.0 %", "+20.5 %"]
    assert [number(value) for value in (None, 1234.5, 0.01234)] == ["–", "1,234", "0.0123"]
    assert metric_words("p95_ttft_ms") == "p95 TTFT"
    assert metric_words("request_throughput_per_s") == "requests/s"
