"""Whole studies in which trials are raced, on the fake with latencies by the flags alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_study import study
from nights import Night
from studies import Studies

from sweep.store import read_events, read_requests, read_rounds
from sweep.trial import Phase, TrialStatus

pytestmark = pytest.mark.night

HOPELESS, EQUAL, TODAY = 256, 9, 8
FAKE: dict[str, Any] = {
    "exact": {"ttft_ms": 100, "itl_ms": 10},
    "ttft_ms": 0.2,
    "itl_ms": 0.02,
    "landscape": {"both": {"max-num-seqs": {"values": {str(HOPELESS): 6.0}}}},
}


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Night:
    """Today's flags, flags as good, and hopeless ones; 60 requests a round are the fewest that can be compared."""
    home = tmp_path_factory.mktemp("raced")
    content = study(home, fake=FAKE, load={"rounds": 2, "num_prompts": 120, "warmup_prompts": 0})
    content["search_space"] = {
        "parameters": {"max-num-seqs": {"type": "choice", "values": [TODAY, EQUAL, HOPELESS]}},
    }
    content["baseline"] = {"max-num-seqs": TODAY}
    return Night(home, content)


@pytest.fixture(scope="module")
def first(studies: Studies, night: Night) -> subprocess.CompletedProcess[str]:
    """Its first run."""
    return night.share(studies)


def verdicts(night: Night, number: int) -> list[dict[str, Any]]:
    path = night.folder / "logs" / f"{number:04d}" / "race.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def number_of(night: Night, seqs: int) -> int:
    return next(one.number for one in night.trials if one.flags["max-num-seqs"] == seqs)


def forget(night: Night, number: int) -> None:
    """As if the study had been killed before this trial was stored."""
    files = list(Path(night.folder).glob(f"*/{number:04d}.parquet"))
    assert len(files) > 3
    for path in files:
        path.unlink()


@pytest.mark.xdist_group("a raced study")  # one run for all of these
class TestARacedStudy:
    """Three trials, and the same command typed again after one was lost."""

    def test_a_hopeless_trial_is_stopped_after_its_first_round(
        self, night: Night, first: subprocess.CompletedProcess[str]
    ) -> None:
        assert first.returncode == 0, first.stderr
        number = number_of(night, HOPELESS)
        one = night.trials[number]
        assert one.status is TrialStatus.CENSORED
        assert one.stopped_because is not None
        assert one.stopped_because.startswith("6.00 times the score of trial 0 on the same 60 requests")
        assert one.score == pytest.approx(6.0, abs=0.01)
        assert len(one.round_scores) == len(read_rounds(night.folder, number)) == 1
        assert len(read_requests(night.folder, number)) == 60
        events = read_events(night.folder, number)
        assert [event.phase for event in events if event.kind == "phase"][-1] == Phase.STOP
        stopped = [event.detail for event in events if event.kind == "stopped"]
        assert len(stopped) == 1  # its server was taken down by the trial itself
        assert stopped[0].startswith("exit code 0")

    def test_it_is_shown_and_never_wins(self, night: Night, first: subprocess.CompletedProcess[str]) -> None:
        assert "stopped early, score 6.000 so far" in first.stdout
        assert "censored; 6.00 times the score" in first.stdout
        assert "Keep your flags" in first.stdout
        assert yaml.safe_load((night.folder / "best.yaml").read_text())["max-num-seqs"] == TODAY

    def test_an_equal_one_and_the_baseline_run_to_their_end(
        self, night: Night, first: subprocess.CompletedProcess[str]
    ) -> None:
        assert first.returncode == 0
        for seqs in (TODAY, EQUAL):
            one = night.trials[number_of(night, seqs)]
            assert one.status is TrialStatus.COMPLETE
            assert len(read_requests(night.folder, one.number)) == 120
        found = verdicts(night, number_of(night, EQUAL))
        assert [(one["round"], one["stop"]) for one in found] == [(0, False)]
        assert verdicts(night, 0) == []

    def test_the_search_hears_of_it(self, night: Night, first: subprocess.CompletedProcess[str]) -> None:
        """Its point is known: each of the three is tried once, and then nothing is left."""
        assert first.stdout.splitlines()[-1] == "every combination of the search space is known"
        assert len(night.trials) == 3
        assert {one.flags["max-num-seqs"] for one in night.trials} == {TODAY, EQUAL, HOPELESS}

    def test_typed_again_the_same_is_decided(
        self, studies: Studies, night: Night, first: subprocess.CompletedProcess[str]
    ) -> None:
        """Also where trials of higher number are known by now."""
        assert first.returncode == 0
        number = number_of(night, HOPELESS)
        before = night.trials[number]
        forget(night, number)
        again = night.share(studies)
        assert again.returncode == 0, again.stderr
        after = night.trials[number]
        assert (after.flags, after.status, after.stopped_because) == (
            before.flags,
            TrialStatus.CENSORED,
            before.stopped_because,
        )
        decided = [(one["round"], one["stop"], one["reason"]) for one in verdicts(night, number)]
        assert len(decided) == 2
        assert decided[0] == decided[1]
