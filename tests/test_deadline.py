"""The end of a study's time: what no longer starts, what is cut, and how it goes on."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from pathlib import Path

import fake_study
import pytest
from studies import Driver, Studies, nothing_left

from sweep.store import StoredTrial, read_events, read_trials

pytestmark = pytest.mark.night

# A trial of about two seconds that is almost all waiting: a busy machine changes little.
SLOW = {"start_delay_s": 1.2, "landscape": {}}
QUICK = {"num_prompts": 4, "warmup_prompts": 0}
SHORT = "the time left is shorter than a trial"
OUT = "the time is out; what was cut is measured when the same command is typed again"


def last_line(driver: Driver) -> str:
    return driver.text().strip().splitlines()[-1]


def results_of(study: Path) -> Path:
    return study.parent / "results" / "night"


def test_time_budget_starts_nothing_that_cannot_end_in_time(studies: Studies, tmp_path: Path) -> None:
    study = fake_study.write(
        tmp_path / "night.yaml", fake_study.study(tmp_path, fake=SLOW, study={"trials": 50}, load=QUICK)
    )
    results = results_of(study)
    first = studies.start(study, results, "--trials", "1")
    assert first.wait() == 0, first.text()
    budget_s = round(4 * read_trials(results)[0].total_s)
    driver = studies.start(study, results, "--time-budget", f"{budget_s}s")
    assert driver.wait() == 0, driver.text()
    assert last_line(driver) in (SHORT, OUT)  # the second only where a busy machine made a trial slower than before
    measured = [trial for trial in read_trials(results) if trial.metrics is not None]
    # As many of 50 as had the time, however fast this machine was then and now; tests/test_plan.py has the rule on a
    # clock of its own.
    assert 1 <= len(measured) < 50
    assert sum(trial.total_s for trial in measured[1:]) <= budget_s
    # What is known of earlier trials counts from the first moment.
    again = studies.start(study, results, "--time-budget", "1s")
    assert again.wait() == 0
    assert last_line(again) == SHORT
    assert list(read_trials(results)) == measured


def test_what_runs_when_the_time_is_out_is_cut_and_goes_on_next_time(studies: Studies, tmp_path: Path) -> None:
    """The baseline hangs in its load, and is mended; then the next trial does."""
    content = fake_study.study(tmp_path, study={"trials": 2}, load={**QUICK, "request_timeout_s": 300})
    behaviour = tmp_path / "fake.json"
    content["serve"]["env"] = content["load"]["env"] = {"FAKE_VLLM": str(behaviour)}
    study = fake_study.write(tmp_path / "night.yaml", content)
    results = results_of(study)

    def run(hangs: str, *options: str) -> Driver:
        rule = {"if": {"max-num-seqs": [hangs, 8]}, "then": {"hang_at": 1}}
        behaviour.write_text(json.dumps({"ttft_ms": 2, "itl_ms": 0.2, "rules": [rule] if hangs else []}))
        driver = studies.start(study, results, *options)
        driver.wait()
        nothing_left(tmp_path)
        assert not list((results / "processes").iterdir())
        return driver

    def is_cut(number: int, driver: Driver, verdict: str) -> StoredTrial:
        assert "the study ends at " in driver.text()
        said = json.loads(last_line(driver))
        assert (said["verdict"], said["stop_reason"]) == (verdict, OUT)
        cut = read_trials(results)[number]
        assert cut.failure is not None
        assert (str(cut.status), cut.failure.policy, cut.metrics, cut.score) == ("failed", "cut", None, None)
        return cut

    def is_measured(driver: Driver, cut: StoredTrial) -> None:
        assert driver.wait() == 0, driver.text()
        assert f"trial {cut.number} was cut; set aside to be measured again" in driver.text()
        trials = read_trials(results)
        assert [str(trial.status) for trial in trials] == ["complete"] * (cut.number + 1)
        assert trials[cut.number].flags == cut.flags

    baseline = run("==", "--json", "--time-budget", "4s")
    assert baseline.wait() == 1, baseline.text()
    cut = is_cut(0, baseline, "nothing measured yet")
    is_measured(run("", "--trials", "1"), cut)
    search = run("!=", "--json", "--time-budget", f"{4 + 3 * read_trials(results)[0].total_s:.0f}s")
    assert search.wait() == 0, search.text()
    cut = is_cut(1, search, "keep your flags")
    is_measured(run(""), cut)
    whole = read_trials(results)[1]
    assert {event.attempt for event in read_events(results, 1)} == set(range(1, whole.attempts + 1))


def test_baseline_whose_load_cannot_end_in_time_is_not_launched(studies: Studies, tmp_path: Path) -> None:
    """By either option; both at a time."""
    soon = datetime.now() + timedelta(minutes=3)
    ends = {"budget": ("--time-budget", "170s"), "deadline": ("--deadline", f"{soon:%H:%M}")}
    drivers = {}
    for name, words in ends.items():
        (tmp_path / name).mkdir()
        content = fake_study.study(tmp_path / name, load={"num_prompts": 100, "request_rate": 0.1})
        study = fake_study.write(tmp_path / name / "night.yaml", content)
        drivers[name] = studies.start(study, results_of(study), *words)
    for name, driver in drivers.items():
        assert driver.wait() == 1, driver.text()
        found = re.search(r"the study ends at (\d\d:\d\d:\d\d)", driver.text())
        assert found is not None, driver.text()
        if name == "deadline":  # to the second, in which it may be rounded down
            assert found[1] in (f"{soon:%H:%M:00}", f"{soon.replace(second=0) - timedelta(seconds=1):%H:%M:%S}")
        assert "(a load takes " in driver.text()
        assert "Nothing measured yet." in driver.text()
        line = r"the time left, \d{2,3} s, is shorter than the load of one trial, \d{3,4} s"
        assert re.fullmatch(line, last_line(driver)), driver.text()
        assert not (driver.results / "logs" / "0000").exists()
