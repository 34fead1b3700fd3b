"""The front of a search: which trials are on it, where it is shown, and a whole study that looks for one."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fake_study
import pytest
from fake_study import json_lines
from rich.console import Console
from studies import Studies

from sweep.config import load
from sweep.console import print_final, verdict_json
from sweep.front import make_front
from sweep.objective import Objective
from sweep.recommend import recommend
from sweep.report.__main__ import main
from sweep.search_space import SearchSpace
from sweep.searcher.proposer import Outcome, Proposer
from sweep.store import read_trials
from sweep.trial import Finished, TrialKind, TrialStatus

METRICS = ("p95_ttft_ms", "p95_tpot_ms")
TRIALS = 12  # the last one is proposed by TPE
FAKE: Mapping[str, Any] = {"exact": {"ttft_ms": 50, "itl_ms": 5}, "ttft_ms": 0.2, "itl_ms": 0.02}


def trial(number: int, ttft: float | None, tpot: float, **facts: Any) -> Finished:
    settings: dict[str, Any] = {
        "kind": TrialKind.SEARCH if number else TrialKind.BASELINE,
        "flags": {"max-num-seqs": 8 * (number + 1)},
        "status": TrialStatus.COMPLETE,
        "score": 1.0 - 0.1 * number,
        "metrics": {"p95_ttft_ms": ttft, "p95_tpot_ms": tpot},
        **facts,
    }
    return Finished(number, **settings)


def test_only_undisturbed_complete_trials_of_the_search_that_keep_the_slos_are_on_it() -> None:
    front = make_front(
        [
            trial(0, 100.0, 10.0, disturbed=True),  # the baseline stays what the others are compared with
            trial(1, 50.0, 20.0),
            trial(2, 120.0, 11.0),
            trial(3, 10.0, 1.0, disturbed=True),
            trial(4, 10.0, 1.0, violations={"p99_itl_ms": 0.1}),
            trial(5, None, 1.0),
            trial(6, 10.0, 1.0, kind=TrialKind.CONFIRM, block=0),
            trial(7, 10.0, 1.0, status=TrialStatus.CENSORED),
            trial(8, 10.0, 1.0, status=TrialStatus.FAILED, metrics=None),
        ],
        METRICS,
    )
    assert [(point.number, point.values) for point in front.points] == [(1, (50.0, 20.0)), (0, (100.0, 10.0))]
    assert front.dominated == (2,)
    assert front.left_out == {
        3: "disturbed",
        4: "breaks the SLO on p99_itl_ms",
        5: "p95_ttft_ms is not defined",
    }


def test_the_end_of_a_study_shows_it() -> None:
    trials = [trial(0, 100.0, 10.0), trial(1, 50.0, 20.0), trial(2, 120.0, 30.0)]
    front = make_front(trials, METRICS)
    out = io.StringIO()
    found = recommend(trials)
    facts: dict[str, Any] = {"command": None, "best_yaml": None, "stop_reason": None, "folder": "results/night"}
    print_final(Console(file=out, width=120, markup=False, highlight=False), [], found, front=front, **facts)
    lines = out.getvalue().splitlines()
    assert "Front of p95_ttft_ms and p95_tpot_ms: 2 of 3 trials (unconfirmed)" in lines
    assert [line.split() for line in lines if "max-num-seqs=" in line] == [
        ["1", "50.0", "20.0", "max-num-seqs=16"],
        ["0", "100", "10.0", "max-num-seqs=8"],
    ]
    last = verdict_json(found, study="night", trials=3, command=None, stop_reason=None, front=front)
    assert last["front"] == [1, 0]
    assert verdict_json(found, study="night", trials=3, command=None, stop_reason=None)["front"] is None


@pytest.mark.night
def test_a_study_that_looks_for_a_front_goes_on_where_it_was_and_names_a_winner(
    studies: Studies, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = fake_study.study(
        tmp_path,
        fake=FAKE,
        study={"trials": TRIALS, "results": "results", "sampler": "tpe"},
        load={"num_prompts": 5, "warmup_prompts": 1},
        objective={"front": list(METRICS), "preset": "balanced"},
    )
    study, results = fake_study.write(tmp_path / "night.yaml", content), tmp_path / "results" / "night"
    for trials in (TRIALS - 1, TRIALS):
        driver = studies.start(study, results, "--json", "--trials", str(trials))
        assert driver.wait() == 0, driver.text()
    said = json_lines("\n".join(line for line in driver.text().splitlines() if line.startswith("{")))[-1]
    assert said["front"]
    assert said["flags"] is not None
    capsys.readouterr()
    assert main([str(results), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [point["trial"] for point in found["front"]["points"]] == said["front"]
    assert (found["trial"], found["confirmed"]) == (said["trial"], False)

    config = load(study)
    stored = read_trials(results)
    assert len(stored) == TRIALS
    objective = Objective.of("balanced", {}, {}, front=METRICS)
    space = SearchSpace.from_config(config.search_space, config.serve.flags)
    proposer = Proposer(space, seed=config.study.seed, front=len(METRICS))
    for one in stored[:-1]:
        assert one.metrics is not None
        score = objective.score(one.metrics, stored[0].metrics or {})
        proposer.tell(one.number, one.flags, Outcome("complete", score.value, {}, score.front))
    assert proposer.propose(TRIALS - 1) == stored[-1].flags
