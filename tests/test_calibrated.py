"""A calibration on the fake: what the trial leaves, and whole studies whose rate it decides."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_study
import pytest
from studies import Studies

from sweep.calibrated import auto_rate, calibration_lines, stored_knee
from sweep.config import load
from sweep.dry_run import dry_run_json
from sweep.earlier import check_record, earlier_trials, look_at_record
from sweep.fingerprint import Fingerprint
from sweep.gpu import Gpus
from sweep.knee import ROUNDS_AT_MOST, find_knee, rate_at
from sweep.prepare import Prepared, at_rate, prepare
from sweep.recommend import recommend
from sweep.redact import Redactor
from sweep.runner import TrialOutcome, run_trial
from sweep.store import Store, read_rounds, read_trials
from sweep.trial import TrialKind, TrialResult, TrialSpec, TrialStatus

TODAY = {"max-num-seqs": 4}
# Four slots and 8 ms a reply: what the fake answers a second depends on the machine, where it begins to wait follows.
FAKE = {"ttft_ms": 4, "itl_ms": 1, "landscape": {}}
SPACE = {"parameters": {"max-num-seqs": {"type": "int", "low": 4, "high": 64, "step": 4}}}
LOAD = {"calibrate": True, "request_rate": "auto", "num_prompts": 20, "rounds": 2, "held_out_share": 0.3}


def content(home: Path, **changes: Any) -> dict[str, Any]:
    keys = {**LOAD, **changes}
    study = fake_study.study(home, fake=FAKE, load=keys, study={"trials": 2}, search_space={})
    return {**study, "search_space": SPACE, "baseline": {"max-num-seqs": 4}}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    """A study at an open rate, prepared once."""
    home = tmp_path_factory.mktemp("calibrated")
    with pytest.MonkeyPatch.context() as patch, Gpus() as gpus:
        patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        path = fake_study.write(home / "study.yaml", content(home))
        yield prepare(load(path), path, home / "results" / "night", gpus)


def calibrate(prepared: Prepared, folder: Path, *, prompts: int = 30, **fake: Any) -> TrialOutcome:
    """The calibration alone, with shorter rounds."""
    behaviour = {"FAKE_VLLM": json.dumps({**FAKE, "seed": 1, **fake})}
    assert prepared.setup.calibration is not None
    setup = dataclasses.replace(
        prepared.setup,
        folder=folder,
        server_env=behaviour,
        client_env=behaviour,
        max_retries=0,
        calibration=prepared.setup.calibration.shortened(prompts),
    )
    with Gpus() as gpus:
        return run_trial(TrialSpec(1, TrialKind.CALIBRATION, TODAY), setup, redactor=Redactor({}), gpus=gpus)


@pytest.fixture(scope="module")
def climbed(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> TrialResult:
    """A calibration, stored as the only trial of the study."""
    outcome = calibrate(prepared, tmp_path_factory.mktemp("alone"))
    folder = prepared.setup.folder
    metadata = prepared.fingerprint.as_metadata()
    store = Store(folder, prepared.schema, metadata=metadata, redactor=Redactor({}))
    store.append(outcome.result, engine_summary=outcome.engine_summary, telemetry=outcome.telemetry)
    return outcome.result


def test_a_calibration_climbs_from_far_below(climbed: TrialResult) -> None:
    assert climbed.status is TrialStatus.COMPLETE
    assert climbed.attempts == 1
    rates = [one.request_rate_per_s for one in climbed.rounds]
    assert rates[0] is None
    assert 4 <= len(rates) == len(set(rates)) <= ROUNDS_AT_MOST
    assert all(one.prompts == one.completed == 30 for one in climbed.rounds)
    assert rates[1] == min(rate for rate in rates if rate is not None)
    knee = find_knee(climbed.rounds)
    assert knee is not None
    assert any(line.startswith("calibration: ") for line in climbed.remarks)
    assert climbed.remarks[-1] == f"load.request_rate: auto is {rate_at(knee, 0.8):g} requests/s, 0.8 of the knee"
    details = [event.detail for event in climbed.events if event.kind == "round"]
    assert details[0].startswith("all at once: 30 of 30 requests in ")
    assert details[1].startswith(f"at {rates[1]:.3g} requests/s: 30 of 30 requests in ")


def test_it_is_measured_against_nothing_and_disturbs_nothing(climbed: TrialResult, prepared: Prepared) -> None:
    assert climbed.score is not None
    assert climbed.score.value is None
    assert climbed.disturbances == ()
    (known,) = earlier_trials(prepared)
    assert (known.number, known.kind, known.score) == (1, TrialKind.CALIBRATION, None)
    assert recommend([known]).flags is None


def again(prepared: Prepared, **changes: Any) -> Prepared:
    """The study prepared once more, with what is stored by now."""
    folder = prepared.setup.folder
    home = folder.parents[1]
    path = fake_study.write(home / "again.yaml", {**content(home), **changes})
    with Gpus() as gpus:
        return prepare(load(path), path, folder, gpus)


def test_a_study_that_goes_on_takes_the_rate_of_the_stored_one(climbed: TrialResult, prepared: Prepared) -> None:
    knee = find_knee(climbed.rounds)
    assert knee is not None
    assert stored_knee(prepared.setup.folder, TODAY) == knee
    known = again(prepared)
    assert not known.rate_open
    assert set(known.setup.plan.rates) == {rate_at(knee, 0.8)}
    assert any(notice in climbed.remarks for notice in known.notices)
    assert list(check_record(known)) == []
    assert dry_run_json(known)["calibration"] is None


def test_today_s_flags_changed_before_the_baseline_was_measured(climbed: TrialResult, prepared: Prepared) -> None:
    assert climbed.spec.flags == TODAY
    changed = again(prepared, baseline={"max-num-seqs": 8})
    assert changed.rate_open
    assert "all at once" in dry_run_json(changed)["calibration"]
    line = "trial 1 calibrates other flags than those of today's baseline; it would be set aside and measured again"
    assert list(look_at_record(changed)) == [line]


@pytest.mark.parametrize(
    ("rate", "words"), [(0.5, "is far below the knee"), (1000.0, "is above"), (None, "all at once")]
)
def test_where_a_rate_of_the_study_file_lies(
    climbed: TrialResult, prepared: Prepared, rate: float | None, words: str
) -> None:
    assert climbed.status is TrialStatus.COMPLETE
    fixed = prepared.config.load.model_copy(update={"request_rate": rate})
    _, line = calibration_lines(prepared.setup.folder, fixed, TODAY)
    assert line.startswith("warning: ")
    assert words in line
    assert calibration_lines(prepared.setup.folder, fixed.model_copy(update={"calibrate": False}), TODAY) == []


def test_a_server_that_dies_of_a_rate_leaves_what_was_measured(prepared: Prepared, tmp_path: Path) -> None:
    # A look at readiness and two prompts of warm-up; each round 30 and the first prompt once more.
    result = calibrate(prepared, tmp_path, die_mid_stream=3 + 2 * 31 + 15).result
    assert result.status is TrialStatus.COMPLETE
    assert len(result.rounds) == 2
    knee = find_knee(result.rounds)
    assert knee is not None
    assert knee.above_per_s is None
    ended = [line for line in result.remarks if line.startswith("the calibration ended at ")]
    assert len(ended) == 1
    assert ended[0].endswith("the server ended during the load")


def test_a_server_that_dies_before_any_rate_leaves_nothing(prepared: Prepared, tmp_path: Path) -> None:
    result = calibrate(prepared, tmp_path, die_mid_stream=10).result
    assert result.status in (TrialStatus.FAILED, TrialStatus.INFEASIBLE)
    assert result.rounds == ()


def test_until_the_rate_is_known_it_is_open(prepared: Prepared) -> None:
    assert prepared.rate_open
    assert set(prepared.setup.plan.rates) == {None}
    assert prepared.fingerprint.request_rate_per_s is None
    known = at_rate(prepared, 7.5)
    assert not known.rate_open
    for plan in (known.setup.plan, *known.setup.confirmation):
        assert set(plan.rates) == {7.5}
    assert known.setup.plan.rounds[0].last_send_s == pytest.approx(10 / 7.5)
    assert known.setup.calibration == prepared.setup.calibration
    # Not known is no difference, another rate is.
    assert not prepared.fingerprint.differences(known.fingerprint).incomparable
    found = known.fingerprint.differences(at_rate(prepared, 8.0).fingerprint).incomparable
    assert found == ("request rate that auto stands for: was 7.5, is now 8.0",)


def test_a_dry_run_says_what_it_costs(prepared: Prepared, tmp_path: Path) -> None:
    new = dataclasses.replace(prepared, setup=dataclasses.replace(prepared.setup, folder=tmp_path))
    line = dry_run_json(new)["calibration"]
    assert "1 more launch of the baseline before the search, 100 requests all at once" in line
    assert "about 10 times as long as the first round" in line
    config = new.config
    fixed = config.model_copy(update={"load": config.load.model_copy(update={"request_rate": 8.0})})
    line = dry_run_json(dataclasses.replace(new, config=fixed))["calibration"]
    assert line.endswith("2 minutes if today's flags can just answer 8 requests/s")
    without = dataclasses.replace(new, setup=dataclasses.replace(new.setup, calibration=None))
    assert dry_run_json(without)["calibration"] is None


@pytest.mark.night
def test_a_study_at_an_open_rate_killed_and_gone_on_with(studies: Studies, tmp_path: Path) -> None:
    study = fake_study.write(tmp_path / "study.yaml", content(tmp_path))
    results = tmp_path / "results" / "night"
    driver = studies.start(study, results)
    driver.reach(0, "load")  # the first trial at the rate of the calibration
    driver.kill()
    first = Fingerprint.from_json((results / "fingerprint.json").read_text()).request_rate_per_s
    driver = studies.start(study, results)
    assert driver.wait() == 0, driver.text()
    trials = read_trials(results)
    assert [one.kind for one in trials] == [TrialKind.BASELINE, TrialKind.CALIBRATION, TrialKind.SEARCH]
    knee = stored_knee(results, trials[0].flags)
    assert knee is not None
    rate = rate_at(knee, 0.8)
    assert first == rate
    for number in (0, 2):
        assert {one.request_rate_per_s for one in read_rounds(results, number)} == {rate}
    assert f"load.request_rate: auto is {rate:g} requests/s, 0.8 of the knee" in driver.text()
    assert trials[1].score is None
    assert "trial 2 search" in driver.text()

    # What a later calibration would say changes nothing once the search has begun.
    (results / "trials" / "0001.parquet").unlink()
    known = load(study)
    assert auto_rate(results, known.load, known.baseline_flags()) == rate
    other = fake_study.write(tmp_path / "other.yaml", content(tmp_path, knee_share=0.5))
    refused = studies.start(other, results)
    assert refused.wait() == 2
    assert "load setting knee_share: was 0.8, is now 0.5" in refused.text()
