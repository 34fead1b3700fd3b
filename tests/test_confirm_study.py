"""Whole studies whose winner is confirmed, through the command on the fake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_study
import pytest
from nights import Night
from studies import Studies

from sweep.store import read_requests
from sweep.trial import TrialKind, TrialStatus

pytestmark = pytest.mark.night

CONFIRM = {"candidates": 2, "launches": 2, "max_launches": 3, "drift": False}
LOAD = {"num_prompts": 20, "rounds": 2, "held_out_share": 0.3}


def night_of(home: Path, fake: dict[str, Any], **changes: dict[str, Any]) -> Night:
    sections: dict[str, dict[str, Any]] = {"load": LOAD, "confirm": CONFIRM, "study": {"trials": 5}, **changes}
    return Night(home, fake_study.study(home, fake=fake, **sections))


@pytest.fixture(scope="module")
def better(studies: Studies, tmp_path_factory: pytest.TempPathFactory) -> Night:
    """A study that ran to its end, in which today's flags are far from the best."""
    home = tmp_path_factory.mktemp("better")
    landscape = {
        "both": {"max-num-seqs": {"best": 64, "weight": 0.5, "log": True}},
        "launch_noise": 0.02,
        "launches": str(home / "launches"),
    }
    night = night_of(home, {"exact": {"ttft_ms": 50, "itl_ms": 5}, "landscape": landscape})
    done = night.share(studies, "--json")
    assert done.returncode == 0, done.stderr
    (night.home / "said.jsonl").write_text(done.stdout)
    return night


def test_a_clear_winner_is_confirmed_and_soaked(better: Night) -> None:
    verdict = fake_study.json_lines((better.home / "said.jsonl").read_text())[-1]
    assert (verdict["verdict"], verdict["confirmed"]) == ("better", True)
    low, high = verdict["gain_interval_share"]
    assert 0 < low < verdict["gain_share"] < high < 1
    kinds = [trial.kind for trial in better.trials]
    assert kinds[:5] == [TrialKind.BASELINE] + [TrialKind.SEARCH] * 4
    assert set(kinds[5:-1]) == {TrialKind.CONFIRM}
    assert len(kinds[5:-1]) in (6, 9)
    assert kinds[-1] is TrialKind.SOAK
    assert "unconfirmed" not in verdict["sentence"]


def test_blocks_are_interleaved_and_their_prompts_are_not_those_of_the_search(better: Night) -> None:
    trials = better.trials
    confirm = [trial for trial in trials if trial.kind is TrialKind.CONFIRM]
    order = [[trial.flags["max-num-seqs"] for trial in confirm if trial.block == block] for block in (0, 1)]
    assert order[0] == order[1][::-1]
    assert order[0][0] == trials[0].flags["max-num-seqs"]
    searched = {request.prompt_id for trial in trials[:5] for request in read_requests(better.folder, trial.number)}
    sent = [[request.prompt_id for request in read_requests(better.folder, one.number)] for one in confirm]
    assert not searched & {prompt for prompts in sent for prompt in prompts}
    assert sent[0] == sent[1] == sent[2]
    assert sent[2] != sent[3]


def test_the_soak_sends_the_longest_prompts_at_twice_what_may_run(better: Night) -> None:
    soak = better.trials[-1]
    requests = read_requests(better.folder, soak.number)
    assert soak.status is TrialStatus.COMPLETE
    assert len(requests) == min(2 * int(soak.flags["max-num-seqs"] or 0), len(requests))
    assert all(request.scheduled_s == 0 for request in requests)
    assert any(remark.startswith("worst burst: ") for remark in soak.remarks)
    assert soak.score is None


def test_typed_again_nothing_is_launched_and_the_same_is_said(studies: Studies, better: Night) -> None:
    before, servers = len(better.trials), len(better.servers())
    again = better.share(studies)
    assert (len(better.trials), len(better.servers())) == (before, servers)
    assert "Confirmed on fresh servers" in again.stdout
    sentence = fake_study.json_lines((better.home / "said.jsonl").read_text())[-1]["sentence"]
    assert sentence in again.stdout
    assert "It survived its worst burst." in sentence


def test_luck_is_not_confirmed(studies: Studies, tmp_path: Path) -> None:
    """All flags are alike and launches differ: whatever the search liked best is no better."""
    fake = {
        "exact": {"ttft_ms": 50, "itl_ms": 5},
        "landscape": {"launch_noise": 0.1, "launches": str(tmp_path / "launches")},
    }
    night = night_of(tmp_path, fake, confirm={**CONFIRM, "soak": False})
    done = night.share(studies, "--json")
    verdict = fake_study.json_lines(done.stdout)[-1]
    assert done.returncode == 0
    assert verdict["verdict"] in ("keep your flags", "no clear winner")
    assert verdict["flags"] == dict(night.trials[0].flags)
    assert any(trial.kind is TrialKind.CONFIRM for trial in night.trials)


def test_cut_short_before_the_confirmation_a_winner_is_unconfirmed(studies: Studies, tmp_path: Path) -> None:
    landscape = {"both": {"max-num-seqs": {"best": 64, "weight": 0.5, "log": True}}}
    night = night_of(
        tmp_path,
        {"exact": {"ttft_ms": 50, "itl_ms": 5}, "landscape": landscape},
        load={**LOAD, "held_out_share": 0},
    )
    done = night.share(studies, "--json")
    verdict = fake_study.json_lines(done.stdout)[-1]
    assert verdict["confirmed"] is False
    assert "unconfirmed" in verdict["sentence"]
    assert "held_out_share" in done.stderr
