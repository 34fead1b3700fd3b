"""`python -m sweep.check`: what is checked, which launches it takes, and what they come to."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_study
import pytest
from reported import alike, measured

from sweep.check import Result, decide, show
from sweep.check.__main__ import main
from sweep.config import load
from sweep.confirm import Confirmed
from sweep.gpu import Gpus
from sweep.metrics import summarize
from sweep.prepare import prepare
from sweep.recommend import Recommendation, Verdict
from sweep.redact import Redactor
from sweep.store import Store, read_trials
from sweep.study_folder import StudyFolder
from sweep.trial import Finished, Flags, TrialKind, TrialSpec, TrialStatus
from sweep.verdict import Effect, Interval, MetricLine, Outcome
from sweep.verdict import Verdict as Judged

BASELINE: Flags = {"max-num-seqs": 8}
BEST: Flags = {"max-num-seqs": 64}
SAID = Recommendation(Verdict.BETTER, 3, BEST, 0.8, 0.2, "better", True, 0.12, 0.28)


def judged(value: float, low: float, high: float, *, clear: bool = False, broken: float = -0.5) -> Confirmed:
    """A verdict on the recommendation alone; `low` and `high` are of its score."""
    effect = Effect(1, 4, Interval(value, low, high), {"p95_ttft_ms": broken}, 1, clear)
    verdict = Judged(Outcome.BETTER, 1, effect, (effect,), (), True, (), (), None, 4, 0, 0.95, "")
    return Confirmed(verdict, {0: BASELINE, 1: BEST}, 1, None)


def test_percentiles_of_too_few_requests_are_marked_in_the_table_and_in_json() -> None:
    now = Interval(100.0, 90.0, 110.0)
    lines = [MetricLine(f"p{p}_ttft_ms", now, now, Interval(1.0, 0.9, 1.1), thin=p == 99) for p in (95, 99)]
    _, rows = show._rows(lines, {})
    assert [row[0] for row in rows] == ["p95_ttft_ms", "~p99_ttft_ms"]
    found = show._metric(lines[1], {})
    assert (found["thin"], found["recommended_interval"]) == (True, [90.0, 110.0])


def launch(number: int, flags: Flags, status: TrialStatus = TrialStatus.COMPLETE) -> Finished:
    return Finished(number, TrialKind.CONFIRM, flags, status, failure_class="unknown_flag", failure_line="no such flag")


class TestDecide:
    """Held, regressed or cannot tell."""

    def result(self, found: Confirmed | None, *launches: Finished, said: Recommendation = SAID) -> tuple[Result, str]:
        answer = decide(found, launches, said, width=0.12, why=None)
        return answer.result, answer.sentence

    def test_better_beyond_doubt_has_held(self) -> None:
        result, sentence = self.result(judged(0.82, 0.75, 0.88, clear=True))
        assert (result, result.exit_code) == (Result.HELD, 0)
        assert sentence == (
            "Held: 18.0 % better (95 % interval 12.0 to 25.0) than the baseline; the study said 20.0 % (12.0 to 28.0)."
        )

    def test_less_than_was_said_is_said_though_it_holds(self) -> None:
        result, sentence = self.result(judged(0.95, 0.93, 0.97, clear=True))
        assert result is Result.HELD
        assert "that is less than the study said 20.0 %" in sentence

    @pytest.mark.parametrize(
        ("found", "why"),
        [
            (judged(1.1, 1.02, 1.2), "worse than the baseline beyond doubt, 10.0 % worse"),
            (judged(0.99, 0.95, 1.02), "less than the study said"),
            (judged(0.9, 0.8, 0.97, broken=0.2), "breaks the SLO on p95_ttft_ms"),
        ],
    )
    def test_what_has_regressed(self, found: Confirmed, why: str) -> None:
        result, sentence = self.result(found)
        assert (result, result.exit_code) == (Result.REGRESSED, 1)
        assert why in sentence

    def test_sharp_and_no_better_has_regressed_also_where_nothing_was_confirmed(self) -> None:
        unconfirmed = dataclasses.replace(SAID, gain_low_share=None, gain_high_share=None)
        result, sentence = self.result(judged(0.97, 0.92, 1.01), said=unconfirmed)
        assert (result, "no longer better" in sentence) == (Result.REGRESSED, True)

    def test_flags_that_no_longer_work_have_regressed(self) -> None:
        result, sentence = self.result(None, launch(2, BASELINE), launch(3, BEST, TrialStatus.INFEASIBLE))
        assert result is Result.REGRESSED
        assert "unknown_flag - no such flag" in sentence

    def test_what_cannot_be_told(self) -> None:
        result, sentence = self.result(judged(0.9, 0.7, 1.1))
        assert (result, result.exit_code) == (Result.CANNOT_TELL, 2)
        assert sentence.startswith("Cannot tell: 10.0 % better")
        assert self.result(None)[1] == ("Cannot tell: two launches of each are needed, and fewer could be measured.")
        both = (launch(2, BASELINE, TrialStatus.INFEASIBLE), launch(3, BEST, TrialStatus.INFEASIBLE))
        assert self.result(None, *both)[1].startswith("Cannot tell: the baseline does not work here")
        answer = decide(None, (), SAID, width=0.12, why="the time is out")
        assert answer.sentence == "Cannot tell: the time is out."


FAST = {"ttft_ms": 20, "itl_ms": 2}
LOAD = {"held_out_share": 0.3, "num_prompts": 8, "warmup_prompts": 0}


def study(folder: Path, **changes: Any) -> tuple[Path, Path]:
    """A study file, and the record of a night that found twice as fast flags and confirmed nothing."""
    landscape = {"both": {"max-num-seqs": {"best": 64, "weight": 0.5, "log": True}}, "launch_noise": 0.01,
                 "launches": str(folder / "launches")}  # fmt: skip
    content = fake_study.study(folder, fake={"exact": FAST, "landscape": landscape}, **{"load": LOAD, **changes})
    path = fake_study.write(folder / "night.yaml", content)
    config = load(path)
    results = Path(config.study.results) / "night"
    with Gpus() as gpus:
        prepared = prepare(config, path, results, gpus)
    with StudyFolder.open(results.parent, "night") as held:
        older = dataclasses.replace(prepared.fingerprint, vllm="0.31.0")
        held.adopt(older, config.model_dump(mode="json"), Redactor({}))
        store = Store(results, prepared.schema, metadata={}, redactor=Redactor({}), reserve_bytes=0)
        for number, seqs, ttft_ms in ((0, 8, 100.0), (1, 64, 50.0)):
            kind = TrialKind.SEARCH if number else TrialKind.BASELINE
            spec = TrialSpec(number, kind, {"max-num-seqs": seqs, "gpu-memory-utilization": 0.5})
            requests = alike(ttft_ms, ttft_ms / 10)
            metrics = summarize(requests, 10.0, percentiles=(50, 95, 99), slo={})
            kept = {name: metrics.get(name) for name in prepared.schema.metrics}
            store.append(measured(number, requests, spec=spec, metrics=kept), engine_summary={})
    return path, results


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The fake is asked for its flags once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.night
def test_a_check_is_measured_stored_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, results = study(tmp_path, confirm={"candidates": 2, "launches": 3, "max_launches": 3})
    words = (str(path), "--launches", "2", "--max-launches", "2", "--json")
    assert main((*words, "--time-budget", "0.001")) == 2
    cut = json.loads(capsys.readouterr().out)
    assert (cut["result"], cut["launches"], cut["sentence"]) == ("cannot tell", 0, "Cannot tell: the time is out.")
    assert main(words) == 0
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert said["result"] == "held"
    assert 0 < said["gain_interval_share"][0] < said["gain_share"]
    assert any(line.startswith("vLLM version: was 0.31.0, is now ") for line in said["changed"])
    assert "changed since the study: vLLM version" in captured.err
    assert said["metrics"]["p95_ttft_ms"]["recommended"] < said["metrics"]["p95_ttft_ms"]["baseline"]
    (check,) = (results / "checks").iterdir()  # the one that was cut went on
    assert said == json.loads((check / "check.json").read_text())
    trials = read_trials(check)
    assert [one.flags["max-num-seqs"] for one in trials] == [8, 64, 64, 8]
    assert len(read_trials(results)) == 2
    # Killed before its last launch was stored: that one alone is measured again, by the folder's name.
    for table in ("trials", "requests", "rounds", "engine", "events", "telemetry"):
        (check / table / f"{trials[-1].number:04d}.parquet").unlink()
    (check / "check.json").unlink()
    launched = len((tmp_path / "launches").read_text().splitlines())
    assert main((str(results), *words[1:])) == 0
    assert len((tmp_path / "launches").read_text().splitlines()) == launched + 1
    assert fake_study.processes_with(str(tmp_path)) == []


class TestWhatCannotBeChecked:
    """One line and exit code 2, and nothing is launched."""

    def line(self, capsys: pytest.CaptureFixture[str], *words: str) -> str:
        assert main(words) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        return line

    def test_no_prompts_held_out(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path, _ = study(tmp_path, load={**LOAD, "held_out_share": 0})
        assert "load.held_out_share is 0" in self.line(capsys, str(path))

    def test_flags_that_stay_and_no_record(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path, results = study(tmp_path)
        for table in ("trials", "requests"):
            (results / table / "0001.parquet").unlink()
        assert "nothing to check, the study recommends no other flags (Keep your flags" in self.line(capsys, str(path))
        (results / "trials" / "0000.parquet").unlink()
        assert "nothing is measured of it" in self.line(capsys, str(path))

    def test_a_study_that_no_server_ran(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        content = fake_study.study(tmp_path, study={"engine": "replay"}, replay={"path": str(tmp_path)})
        path = fake_study.write(tmp_path / "again.yaml", content)
        (tmp_path / "results" / "night" / "trials").mkdir(parents=True)
        assert "study.engine is replay, and what no server ran recommends nothing" in self.line(capsys, str(path))

    def test_words(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert "no folder of results" in self.line(capsys, str(tmp_path / "none"))
        assert "--launches: must be a whole number from 2 to 50" in self.line(capsys, "x", "--launches", "1")
        assert "--time-budget: 'soon' is not a duration" in self.line(capsys, "x", "--time-budget", "soon")

    def test_a_study_that_is_running(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path, results = study(tmp_path)
        with StudyFolder.open(results.parent, results.name):
            assert "night" in self.line(capsys, str(path))
        assert not (results / "checks").exists()

    def test_settings_without_their_secrets(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        _, results = study(tmp_path)
        text = (results / "study.json").read_text()
        (results / "study.json").write_text(text.replace('"served_name": "fake"', '"served_name": "[redacted]"'))
        assert self.line(capsys, str(results)).endswith("name the study file instead")

    def test_settings_of_a_group_without_their_secrets(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        _, results = study(tmp_path, resources={"group_by": "fingerprint"})
        text = (results / "study.json").read_text()
        (results / "study.json").write_text(text.replace('"served_name": "fake"', '"served_name": "[redacted]"'))
        assert self.line(capsys, str(results)).endswith("name the study file instead, with night as its study.name")
