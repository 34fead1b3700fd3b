"""A whole study on the fake of vLLM: one refusal teaches the gate, which then costs no further launch."""

from __future__ import annotations

import json
from pathlib import Path

import fake_study
import pytest
from studies import Studies

from sweep.report import make_report, open_source
from sweep.report.as_json import as_json
from sweep.store import read_passed, read_trials
from sweep.trial import TrialStatus

REFUSED = (16, 48, 80, 96 + 16)
SPACE = {
    "parameters": {
        "max-num-seqs": {"type": "choice", "values": [8, 64]},
        "gpu-memory-utilization": {"type": "choice", "values": [0.5, 0.8]},
        "block-size": {"type": "choice", "values": [32, *REFUSED]},
    }
}


@pytest.mark.night
def test_a_refusal_of_one_block_size_costs_one_launch(studies: Studies, tmp_path: Path) -> None:
    rules = [
        {
            "if": {"block-size": size},
            "then": {
                "log": f"ValueError: No common block size for {size} (CPU_ATTN: [MultipleOf(32)]).",
                "exit_code": 1,
            },
        }
        for size in REFUSED
    ]
    content = fake_study.study(
        tmp_path,
        fake={"rules": rules},
        study={"trials": 8, "sampler": "random", "audit_share": 0},
        search_space=SPACE,
        baseline={"max-num-seqs": 8, "gpu-memory-utilization": 0.5, "block-size": 32},
    )
    driver = studies.start(fake_study.write(tmp_path / "night.yaml", content), tmp_path / "results" / "night")
    assert driver.wait() == 0
    folder = tmp_path / "results" / "night"
    trials, passed = read_trials(folder), read_passed(folder)
    failed = [trial for trial in trials if trial.status is TrialStatus.INFEASIBLE]
    assert [trial.failure.failure_class for trial in failed if trial.failure] == ["unsupported_block_size"]
    # four points work; all others are refused once the first has failed
    assert sum(trial.status is TrialStatus.COMPLETE for trial in trials) == 4
    assert passed
    assert {one.refusal.rule for one in passed if one.refusal} == {"block_size"}
    assert not {json.dumps(dict(one.flags)) for one in passed} & {json.dumps(dict(one.flags)) for one in trials}
    named = f"block-size must be a multiple of 32 (named by the refusal of trial {failed[0].number})"
    assert named in driver.text()
    assert "candidates refused without a launch; none of its refusals was checked by a launch" in driver.text()
    report = as_json(make_report(open_source(str(folder))))
    assert report["gate"] == {
        "refused": {"block_size": len({json.dumps(dict(one.flags)) for one in passed})},
        "audited": 0,
        "audited_failed": 0,
        "precision": None,
    }
