"""`python -m sweep.report` from its command line to its exit code."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_study
import pytest
from reported import OWN, alike, confirmed, flags, lost, measured, night, report_of, request, write
from rich.console import Console

from sweep.console import LEGEND
from sweep.report.__main__ import main
from sweep.report.terminal import print_report
from sweep.trial import TrialKind, TrialSpec

ROOT = Path(__file__).parents[1]


def lines_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """What the command printed, exit code 0."""
    assert main(words) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.splitlines()


def object_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    (line,) = lines_of(capsys, *words, "--format", "json")
    found: dict[str, Any] = json.loads(line)
    return found


def test_verdict_and_command_come_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(capsys, str(night(tmp_path)))
    assert lines[-1] == "vllm serve m --max-num-seqs 16"
    assert lines[-2].startswith("Trial 1 is 50.0% better than the baseline")
    assert lines[-3] == "Changed: max-num-seqs 8 -> 16"
    assert lines[-4] == "6 of 6 trials are stored"
    rows = {words[1]: words for line in lines if len(words := line.split()) > 2 and words[0].isdigit()}
    assert rows["1"][:4] == ["1", "1", "16", "-"]
    assert rows["0"][-1] == "baseline"
    assert any(line.startswith("p95_ttft_ms rests on too few requests: 20 completed, 200") for line in lines)
    assert rows["1"][5] == "~50.0"  # of 20 requests no p95 has an interval


def test_percentiles_have_the_same_interval_in_every_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "wide", [measured(0, [request(k, 100.0 + k) for k in range(250)])])
    (trial,) = object_of(capsys, str(folder))["trials"]
    # 250 values 1 apart: the 230th and the 245th bound p95 by the binomial distribution, whatever is measured.
    assert trial["intervals"] == {"p95_ttft_ms": [329.0, 344.0]}
    assert trial["thin"] == []
    monkeypatch.setenv("COLUMNS", "80")
    for form in ("terminal", "md"):
        text = "\n".join(lines_of(capsys, str(folder), "--format", form))
        assert "337 (329-344)" in text
        assert "~" not in text.replace(LEGEND, "")
    page = tmp_path / "page.html"
    lines_of(capsys, str(folder), "--format", "html", "--output", str(page))
    (cell,) = re.findall(r"<td[^>]*>(?:<[^>]*>)*([^<]*\(329-344\))", page.read_text())
    assert cell == "337 (329-344)"


def test_eighty_columns_are_enough(tmp_path: Path) -> None:
    folder = night(tmp_path, {"preset": "balanced"})
    out = io.StringIO()
    print_report(Console(file=out, width=80, markup=False, highlight=False), report_of(folder))
    lines = out.getvalue().splitlines()
    table = lines[: lines.index(LEGEND)]
    assert all(len(line) <= 80 for line in table)
    rows = [line.split() for line in table]
    assert ["trial", "p95_ttft_ms", "p95_tpot_ms", "p99_itl_ms", "p95_e2el_ms", "tokens_per_s"] in rows
    assert ["1", "~50.0", "~20.0", "~20.0", "~90.0", "6.00"] in rows


@pytest.mark.parametrize("form", ["terminal", "md", "json"])
def test_unconfirmed_stands_wherever_a_winner_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    words = (str(night(tmp_path)), "--pareto", "p95_ttft_ms,p95_tpot_ms", "--weights", "p95_tpot_ms=1")
    text = "\n".join(lines_of(capsys, *words, "--format", form))
    for line in text.splitlines():
        assert "better than the baseline" not in line or "unconfirmed" in line
    if form == "json":
        found = json.loads(text)
        assert (found["confirmed"], found["gain_interval_share"], found["confirmation"]) == (False, None, None)
        assert "unconfirmed" in found["own_winner"]["sentence"]
    else:
        assert "best, unconfirmed" in text
        assert "(unconfirmed" in next(line for line in text.splitlines() if "Front of" in line)


@pytest.mark.parametrize("form", ["terminal", "md", "json"])
def test_a_confirmed_winner_stands_beside_what_the_search_believed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    text = "\n".join(lines_of(capsys, str(confirmed(tmp_path)), "--format", form))
    if form == "json":
        found = json.loads(text)
        assert (found["confirmed"], found["trial"], found["confirmation"]["winner"]) == (True, 1, 1)
        low, high = found["gain_interval_share"]
        assert low < found["gain_share"] < high
        (first, *_) = found["confirmation"]["effects"]
        assert first["score"]["low"] < first["score"]["value"] < first["score"]["high"]
        assert found["confirmation"]["shrinkage"][0]["search_score"] == pytest.approx(0.5)
        return
    assert "best, confirmed" in text
    assert "Launched again, on fresh servers with prompts the search never sent" in text
    row = next(line.replace("|", " ").split() for line in text.splitlines() if "% better (95 % interval" in line)
    assert row[:2] == ["1", "0.500"] or "Configuration" in row[0]
    verdict = next(line for line in text.splitlines() if line.startswith("Configuration 1 is"))
    assert "95 % interval" in verdict
    assert "unconfirmed" not in verdict


def test_options_may_be_repeated_or_separated_by_commas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(night(tmp_path))
    once = object_of(
        capsys, folder, "--weights", "p95_ttft_ms=1, p95_tpot_ms=2", "--slo", "p95_ttft_ms=95,p99_itl_ms=30"
    )
    again = object_of(
        capsys,
        folder,
        *("--weights", "p95_ttft_ms=1", "--weights", "p95_tpot_ms=2", "--slo=p95_ttft_ms=95", "--slo", "p99_itl_ms=30"),
    )
    assert once == again
    assert once["objective"] == {
        "weights": {"p95_ttft_ms": 1.0, "p95_tpot_ms": 2.0},
        "slo": {"p95_ttft_ms": 95.0, "p99_itl_ms": 30.0},
        "aggregate": "mean",
        "front": [],
        "request_rates_per_s": [],
    }
    assert once["trial"] == 2
    preset = object_of(capsys, folder, "--preset", "fluent", "--aggregate", "worst", "--slo", "none")
    assert preset["objective"]["weights"] == {"p95_tpot_ms": 0.6, "p50_tpot_ms": 0.4}
    assert preset["objective"]["aggregate"] == "worst"


def test_json_holds_every_trial_and_the_front(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = object_of(capsys, str(night(tmp_path)), "--pareto", "p95_ttft_ms,p95_tpot_ms")
    assert (found["verdict"], found["trial"], found["gain_share"]) == ("better", 1, pytest.approx(0.5))
    assert found["command"] == "vllm serve m --max-num-seqs 16"
    assert [trial["trial"] for trial in found["trials"]] == [1, 2, 0, 5, 3, 4]
    assert found["trials"][4]["failure_class"] == "startup_oom"
    assert [point["trial"] for point in found["front"]["points"]] == [1, 2]
    assert found["front"]["left_out"] == {"4": "disturbed"}
    assert (found["stored"], found["asked"], found["running"]) == (6, 6, None)


def test_an_slo_that_nothing_defines_is_null_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, [measured(0, [request(index, 9.0, tokens=1) for index in range(20)])])
    found = object_of(capsys, str(folder), "--slo", "p95_tpot_ms=5,output_throughput_tokens_per_s=1")
    violations = {"p95_tpot_ms": None, "output_throughput_tokens_per_s": pytest.approx(1 / 2 - 1)}
    assert found["trials"][0]["violations"] == violations
    assert (found["trials"][0]["place"], found["trials"][0]["feasible"]) == (None, False)


def test_markdown_shows_hostile_names_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "</td><script>alert(1)</script> | `x` *y* _z_ # [a](b)\n"
    spec = TrialSpec(1, TrialKind.SEARCH, flags(1))
    folder = write(
        tmp_path,
        (
            measured(0, alike(100.0)),
            measured(1, alike(50.0), spec=spec, command=f"vllm serve '```\n{hostile}'"),
            measured(2, alike(10.0), disturbances=(hostile,)),
        ),
    )
    text = "\n".join(lines_of(capsys, str(folder), "--format", "md"))
    outside = text.split("````")
    assert len(outside) == 3
    assert "<script" not in outside[0].replace("\\<script", "") + outside[2].replace("\\<script", "")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {row.replace("\\|", "").count("|") for row in rows} == {rows[0].count("|")}


def test_states_that_have_no_winner_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = lines_of(capsys, str(write(tmp_path / "empty", ())))
    assert empty[-1].startswith("Nothing measured yet")
    assert "0 of 6 trials are stored; the study ended before the others" in empty
    failed = lines_of(capsys, str(write(tmp_path / "failed", (lost(0), lost(1)))))
    assert failed[-1] == "No trial could be measured."
    assert sum("infeasible: startup_oom" in line for line in failed) == 2
    assert sum("CUDA out of memory" in line for line in failed) == 1


def test_a_study_is_found_by_name_by_folder_and_by_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    night(tmp_path / "results" / "night")
    study = fake_study.study(tmp_path, objective={"weights": {"p95_tpot_ms": 1.0}}, study={"results": "results"})
    fake_study.write(tmp_path / "study.yaml", study)
    by_name = object_of(capsys, "night")
    assert by_name == object_of(capsys, "results/night")
    assert by_name["trial"] == 1
    assert object_of(capsys, "results/night/study.json")["trial"] == 1
    by_file = object_of(capsys, "study.yaml")
    assert (by_file["trial"], by_file["asked"], by_file["own_winner"]) == (2, 4, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{night}", "--weights", "p95_tftt_ms=1"], "did you mean 'p95_ttft_ms'"),
        (["{night}", "--weights", "p95_ttft_ms"], "not METRIC=NUMBER"),
        (["{night}", "--weights", "p95_ttft_ms=fast"], "'fast' of p95_ttft_ms is no number"),
        (["{night}", "--weights", "p95_ttft_ms=-1"], "must be above zero"),
        (["{night}", "--weights", "p95_ttft_ms=nan"], "must be above zero"),
        (["{night}", "--weights", "p95_ttft_ms=1,p95_ttft_ms=2"], "stands twice"),
        (["{night}", "--weights", ","], "names no metric"),
        (["{night}", "--weights", "goodput_per_s=-1"], "needs an SLO on TTFT, TPOT or E2EL"),
        (["{night}", "--weights", "p95_ttft_ms=1", "--preset", "fluent"], "not both"),
        (["{night}", "--preset", "fast"], "fast"),
        (["{night}", "--slo", "p95_ttft_ms=0"], "a limit must be above zero"),
        (["{night}", "--slo", "none,p95_ttft_ms=1"], "'none' is not METRIC=NUMBER"),
        (["{night}", "--aggregate", "median"], "median"),
        (["{night}", "--pareto", "p95_ttft_ms"], "two or three different metrics"),
        (["{night}", "--pareto", "p95_ttft_ms,p95_ttft_ms"], "two or three different metrics"),
        (["{night}", "--pareto", ""], "two or three different metrics"),
        (["{night}", "--pareto", "p95_ttft_ms,p95_tpto_ms"], "did you mean 'p95_tpot_ms'"),
        (["{night}", "--pareto", "p95_ttft_ms,goodput_per_s"], "needs an SLO"),
        (["{night}", "--fromat", "json"], "--fromat"),
        (["{night}/trials"], "holds no study"),
        (["nigth"], "did you mean 'night'"),
        (["{home}/missing.yaml"], "no folder of results, no study file"),
        (["{home}/broken.yaml"], "broken.yaml:1"),
        (["{home}/fresh.yaml"], "nothing is stored of it yet"),
        ([], "STUDY"),
    ],
)
def test_mistakes_cost_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = night(tmp_path / "results" / "night")
    (tmp_path / "broken.yaml").write_text("study: [")
    fake_study.write(tmp_path / "fresh.yaml", fake_study.study(tmp_path, study={"name": "fresh"}))
    assert main([word.format(night=folder, home=tmp_path) for word in words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("sweep.report: ")
    assert said in line


def test_neither_ray_nor_vllm_nor_a_gpu_is_touched(tmp_path: Path) -> None:
    script = (
        "import sys; from sweep.report.__main__ import main\n"
        "code = main(sys.argv[1:])\n"
        "heavy = {'ray', 'vllm', 'torch', 'optuna', 'pynvml', 'transformers'} & set(sys.modules)\n"
        "sys.exit(code if not heavy else ' '.join(sorted(heavy)))"
    )
    folder = night(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "50.0% better" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))} == before


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    folder = write(tmp_path, [measured(0, alike(100.0))], OWN)
    command = f"{sys.executable} -m sweep.report {folder} --format json | head -c 10"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


class TestThePage:
    def test_it_is_written_beside_the_record_and_its_path_printed(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = night(tmp_path)
        assert lines_of(capsys, str(folder), "--format", "html") == [str(folder / "report.html")]
        assert "Trial 1 is 50.0% better" in (folder / "report.html").read_text()

    def test_it_goes_where_it_is_asked_to_and_ranks_as_asked(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder, target = night(tmp_path), tmp_path / "other.html"
        words = ("--format", "html", "--output", str(target), "--weights", "p95_tpot_ms=1")
        assert lines_of(capsys, str(folder), *words) == [str(target)]
        assert "Trial 2 is" in target.read_text()
        assert not (folder / "report.html").exists()

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--format", "html", "--output", "nowhere/at/all.html"), "--output nowhere/at/all.html: name a file"),
            (("--output", "x.html"), "--output goes with --format html"),
            (("--watch", "--format", "json"), "--watch shows the page"),
            (("--watch", "--port", "70000"), "argument --port: must be a whole number up to 65535, not 70000"),
            (("--port", "80"), "--port goes with --watch"),
        ],
    )
    def test_mistakes_are_one_line(
        self, words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([str(night(tmp_path)), *words]) == 2
        assert capsys.readouterr().err.startswith(f"sweep.report: {said}")
