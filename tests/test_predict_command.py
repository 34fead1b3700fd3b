"""`python -m sweep.predict` from its command line to its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from predicted import changed, changed_request, flags, trial, write

from sweep.predict.__main__ import main

pytestmark = pytest.mark.night  # numba compiles for half a minute

ROOT = Path(__file__).parents[1]


def small(folder: Path, **known: Any) -> Path:
    """A study of two trials of a few requests: costs are soon learnt."""
    return write(folder, [trial(0, flags(8), requests=16), trial(1, flags(4, 512), requests=16)], **known)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(
        tmp_path_factory.mktemp("studies") / "night", slo={"p95_ttft_ms": 800, "output_throughput_tokens_per_s": 1}
    )


@pytest.fixture(scope="module")
def lines(study: Path) -> list[str]:
    """What the command prints for another setting at another rate, with the highest one: from a process of its own."""
    words = ["--set", "max-num-seqs=6", "--request-rate", "5", "--max-rate"]
    script = (
        "import sys; from sweep.predict.__main__ import main\n"
        "code = main(sys.argv[1:])\n"
        "heavy = {'ray', 'vllm', 'torch', 'optuna', 'pynvml', 'transformers'} & set(sys.modules)\n"
        "sys.exit(code if not heavy else ' '.join(sorted(heavy)))"
    )
    before = {path: path.stat().st_mtime_ns for path in sorted(study.rglob("*"))}
    done = subprocess.run(
        [sys.executable, "-c", script, str(study), *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), "neither Ray, nor vLLM, nor Optuna, nor a GPU"
    assert {path: path.stat().st_mtime_ns for path in sorted(study.rglob("*"))} == before, "nothing is written"
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of studies that tell little or nothing."""
    place = tmp_path_factory.mktemp("home")
    whole = trial(0, flags(8), requests=2)
    write(place / "night", [whole])
    write(place / "disturbed", [changed(whole, disturbances=("GPU 0 throttled",))])
    write(place / "empty", [])
    timeless = tuple(changed_request(one, start_s=None, scheduled_s=None) for one in whole.requests)
    write(place / "timeless", [changed(whole, requests=timeless)])
    return place


def test_the_answer_is_labelled_and_stands_beside_what_was_measured(lines: list[str]) -> None:
    assert lines[0].startswith("Simulated, not measured: the baseline with max-num-seqs 6, under the study's prompts")
    assert "at 5 requests/s" in lines[0]
    rows = {words[0]: words for line in lines if len(words := line.split()) > 5 and words[0].startswith("p")}
    assert set(rows) == {f"p{rank}_{stem}_ms" for rank in (50, 95, 99) for stem in ("ttft", "tpot", "e2el")}
    assert rows["p95_ttft_ms"][1] == "ms"
    assert float(rows["p95_ttft_ms"][3].replace(",", "")) < float(rows["p95_ttft_ms"][5].replace(",", ""))
    assert any(line.split()[:2] == ["output_throughput_tokens_per_s", "tokens/s"] for line in lines)
    assert any("measured, trial 0" in line for line in lines)
    text = "\n".join(lines)
    assert "Nearest measured: trial 0 (baseline), with max-num-seqs 8 instead of 6, under 4 requests/s, 32" in text
    assert "Step costs are learnt from 64 requests of trials 0, 1" in text
    assert "Caution: request rate" in text
    assert "Caution: fitted to 2 trials" in text
    assert not any(name in text for name in ("step_s", "token_s", "offset_s")), "costs are named in words"


def test_the_highest_rate_comes_last_and_is_labelled(lines: list[str]) -> None:
    assert "Highest request rate with p95_ttft_ms at most 800 ms (simulated, not measured, " in lines[-2]
    assert "requests/s as expected" in lines[-2]
    assert lines[-1].startswith("At the upper end of the intervals")


def test_json_says_that_it_is_simulated(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(study), "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    (line,) = captured.out.splitlines()
    found = json.loads(line)
    assert (found["simulated"], found["label"], found["own_load"]) == (True, "simulated, not measured", True)
    assert (found["changed"], found["flags"]["max-num-seqs"], found["flags"]["dtype"]) == ([], 8, "bfloat16")
    assert found["request_rates_per_s"] == [4.0]
    interval = found["metrics"]["p95_tpot_ms"]
    assert interval["low"] <= interval["expected"] <= interval["high"]
    nearest = found["nearest_measured"]
    assert (nearest["trial"], nearest["simulated"], nearest["flags_that_differ"]) == (0, False, {})
    assert nearest["metrics"]["p95_tpot_ms"] == pytest.approx(interval["expected"], rel=0.1)
    assert found["learnt_from"] == {"trials": [0, 1], "requests": 64}
    assert found["kv_tokens"]["launched"] is True
    assert (found["max_rate"], found["running"]) == (None, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{night}", "--set", "max-num-seq=64"], "did you mean 'max-num-seqs'"),
        (["{night}", "--set", "max-num-seqs"], "not FLAG=VALUE"),
        (["{night}", "--set", "max-num-seqs=many"], "a whole number of at least 1"),
        (["{night}", "--set", "kv-cache-dtype=fp8"], "no complete trial has kv-cache-dtype=fp8"),
        (["{night}", "--set", "dtype=float16"], "no complete trial has dtype=float16"),
        (["{night}", "--set", "max-model-len=16"], "longer than max-model-len 16"),
        (["{night}", "--request-rate", "fast"], "--request-rate"),
        (["{night}", "--request-rate", "0"], "above 0"),
        (["{night}", "--request-rate", "inf"], "above 0"),
        (["{night}", "--slo", "p95_ttft_ms=500"], "goes with --max-rate"),
        (["{night}", "--max-rate"], "needs --slo"),
        (["{night}", "--max-rate", "--slo", "p95_tftt_ms=500"], "did you mean 'p95_ttft_ms'"),
        (["{night}", "--max-rate", "--slo", "p95_ttft_ms"], "not METRIC=LIMIT"),
        (["{night}", "--max-rate", "--slo", "p95_ttft_ms=soon"], "no number"),
        (["{night}", "--max-rate", "--slo", "p95_ttft_ms=1,p95_ttft_ms=2"], "stands twice"),
        (["{night}", "--max-rate", "--slo", "mean_ttft_ms=1"], "no percentile of a latency"),
        (["{night}", "--max-rat"], "--max-rat"),
        (["{night}/trials"], "holds no study"),
        (["{home}/nothing"], "no folder of results, no study file"),
        (["{home}/disturbed"], "no trial is complete and undisturbed yet"),
        (["{home}/empty"], "no baseline yet"),
        (["{home}/timeless"], "no load to simulate"),
        ([], "STUDY"),
    ],
)
def test_mistakes_cost_one_line(home: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main([word.format(night=home / "night", home=home) for word in words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("sweep.predict: ")
    assert said in line
