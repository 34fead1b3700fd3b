"""Typed again, the same command goes on: killed at any moment, on a changed study file, with damaged files."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_study
import pytest
import yaml
from fake_study import json_lines
from studies import Driver, Studies, kill_again_and_again, nothing_left

from sweep.store import StoredTrial, read_events, read_trials

pytestmark = pytest.mark.night

TRIALS = 20
KILLS = 25
# Latencies by the flags alone, so that two runs score alike; one region cannot start at all.
FAKE: Mapping[str, Any] = {
    "exact": {"ttft_ms": 50, "itl_ms": 5},
    "ttft_ms": 0.2,
    "itl_ms": 0.02,
    "rules": [{"if": {"max-num-seqs": [">", 200]}, "then": {"log": "@no_kv", "exit_code": 1}}],
}
LOAD = {"num_prompts": 5, "warmup_prompts": 1}


def night(folder: Path, **changes: Mapping[str, Any]) -> Path:
    """The study file of these tests, whose only difference between folders is their path."""
    folder.mkdir(exist_ok=True)
    sections: dict[str, Mapping[str, Any]] = {
        "study": {"trials": TRIALS, "sampler": "tpe"},
        "load": LOAD,
        **changes,
    }
    content = fake_study.study(folder, fake=FAKE, **sections)
    content["study"]["results"] = "results"
    return fake_study.write(folder / "night.yaml", content)


def results(study: Path) -> Path:
    return study.parent / "results" / "night"


def start(studies: Studies, study: Path, *options: str) -> Driver:
    return studies.start(study, results(study), *options)


def last_line(driver: Driver) -> str:
    return driver.text().strip().splitlines()[-1]


@dataclass(frozen=True)
class Night:
    """A study that ran without a hitch, and what a second `sweep.tune` on it said meanwhile."""

    study: Path
    driver: Driver
    second: Driver

    @property
    def trials(self) -> tuple[StoredTrial, ...]:
        return read_trials(results(self.study))


@pytest.fixture(scope="module")
def whole(studies: Studies, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    """Twenty trials in a row, never interrupted; running while the first tests do."""
    study = night(tmp_path_factory.mktemp("whole"))
    driver = start(studies, study, "--json")
    driver.reach(0, "start")
    second = start(studies, study)
    yield Night(study, driver, second)
    driver.kill()


def test_second_tune_on_a_study_is_refused_with_the_holder(whole: Night) -> None:
    assert whole.second.wait() == 2
    assert re.search(rf"night is running already on host \S+ process {whole.driver.pid}\b", last_line(whole.second)), (
        whole.second.text()
    )


def test_killed_at_random_moments_a_study_ends_as_if_it_had_not_been(
    studies: Studies, whole: Night, tmp_path: Path
) -> None:
    """SIGKILL from the first moments of the start to the last trials; nothing depends on how often it began anew."""
    study = night(tmp_path / "killed")
    kill_again_and_again(studies, study, results(study), trials=TRIALS, kills=KILLS, seed=11)
    final = start(studies, study, "--json")
    assert final.wait() == 0, final.text()
    assert whole.driver.wait() == 0, whole.driver.text()
    again = read_trials(results(study))
    assert [trial.number for trial in again] == list(range(TRIALS))
    for one, other in zip(whole.trials, again, strict=True):
        assert (one.number, one.flags, one.status, one.score) == (other.number, other.flags, other.status, other.score)
    assert {trial.status.value for trial in again} == {"complete", "infeasible"}
    assert verdict(final) == verdict(whole.driver)
    for trial in again:
        attempts = {event.attempt for event in read_events(results(study), trial.number)}
        assert attempts == set(range(1, trial.attempts + 1))
    assert sum(trial.attempts for trial in again) > TRIALS
    nothing_left(tmp_path)


def test_study_that_is_done_says_so_at_once(studies: Studies, copied: Path) -> None:
    before = read_trials(results(copied))
    driver = start(studies, copied)
    assert driver.wait() == 0
    assert "going on: 20 of 20 trials are stored" in driver.text()
    assert last_line(driver) == "all trials done"
    assert read_trials(results(copied)) == before


def test_damaged_files_are_set_aside_and_measured_again(studies: Studies, whole: Night, copied: Path) -> None:
    torn = results(copied) / "trials" / "0004.parquet"
    torn.write_bytes(torn.read_bytes()[:200])
    (results(copied) / "requests" / "0007.parquet").write_bytes(b"")
    (results(copied) / ".writing" / ".0009.parquet.tmp").write_bytes(b"PAR1")
    driver = start(studies, copied, "--json")
    assert driver.wait() == 0, driver.text()
    assert "trials/0004.parquet is half-written or damaged; set aside as set_aside/trials-0004.parquet" in driver.text()
    assert "requests/0007.parquet is empty; set aside" in driver.text()
    again = read_trials(results(copied))
    assert [t.number for t in again] == list(range(TRIALS))
    assert [t for t in again if t.number not in (4, 7)] == [t for t in whole.trials if t.number not in (4, 7)]
    # A hole gets its old point: the search hears only of trials before it, and here they are what they were.
    assert [t.flags for t in again] == [t.flags for t in whole.trials]


REFUSED: dict[str, tuple[dict[str, dict[str, Any]], str]] = {
    "model": ({"model": {"served_name": "other"}}, 'fixed flag served-model-name: was "fake", is now "other"'),
    "fixed flag": ({"serve": {"flags": {"max-model-len": 2048}}}, "fixed flag max-model-len: was 4096, is now 2048"),
    "load": ({"load": {"num_prompts": 6}}, "load setting num_prompts: was 5, is now 6"),
    "baseline": (
        {"baseline": {"max-num-seqs": 16}},
        "baseline: max-num-seqs: was 8, is now 16; every score of {results} is a ratio to the flags of trial 0",
    ),
    "space": (
        {
            "search_space": {"parameters": {"max-num-seqs": {"type": "int", "low": 8, "high": 256, "step": 8}}},
            "baseline": {"max-num-seqs": 8},
        },
        "search_space: gpu-memory-utilization is no longer searched, but trial 19 ",
    ),
}


def changed(study: Path, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Merge `changes` into a study file, one section deep; sections of REFUSED["space"] are replaced."""
    content = yaml.safe_load(study.read_text())
    for section, values in changes.items():
        content[section] = {**content.get(section, {}), **values} if section != "baseline" else dict(values)
    fake_study.write(study, content)


@pytest.mark.parametrize("what", REFUSED)
def test_what_makes_trials_incomparable_is_refused(studies: Studies, copied: Path, what: str) -> None:
    changes, line = REFUSED[what]
    if what == "baseline":
        changes = {"baseline": {"gpu-memory-utilization": 0.5, **changes["baseline"]}}
    changed(copied, changes)
    driver = start(studies, copied)
    assert driver.wait() == 2
    assert line.format(results=results(copied)) in last_line(driver)
    assert "Traceback" not in driver.text()


def test_weights_trials_and_a_wider_space_are_welcome_and_scored_anew(
    studies: Studies, whole: Night, copied: Path
) -> None:
    wider = {"max-num-seqs": {"type": "int", "low": 8, "high": 512, "step": 8}}
    changes: dict[str, dict[str, Any]] = {
        "objective": {"weights": {"p95_ttft_ms": 1.0}},
        "study": {"trials": 21, "sampler": "tpe"},
        "search_space": {"parameters": {**yaml.safe_load(copied.read_text())["search_space"]["parameters"], **wider}},
    }
    changed(copied, changes)
    driver = start(studies, copied, "--json")
    assert driver.wait() == 0, driver.text()
    again = read_trials(results(copied))
    assert [t.number for t in again] == list(range(21))
    assert [t.score for t in again[:20]] == [t.score for t in whole.trials]  # what is stored stays as it was
    found = verdict(driver)
    measured = {t.number: t.metrics["p95_ttft_ms"] for t in again if t.metrics is not None}
    best = min(measured, key=lambda number: measured[number] or 0.0)
    assert found["trial"] == best
    assert found["score"] == pytest.approx((measured[best] or 0.0) / (measured[0] or 1.0))


def test_baseline_that_failed_is_measured_again(studies: Studies, tmp_path: Path) -> None:
    study = night(tmp_path, study={"trials": 1}, baseline={"max-num-seqs": 256, "gpu-memory-utilization": 0.5})
    failed = start(studies, study)
    assert failed.wait() == 1
    assert last_line(failed).startswith("the baseline failed: ")
    changed(study, {"baseline": {"max-num-seqs": 8, "gpu-memory-utilization": 0.5}})
    mended = start(studies, study)
    assert mended.wait() == 0, mended.text()
    assert "trial 0 failed (kv_cache_too_small); set aside to be measured again" in mended.text()
    assert [t.status.value for t in read_trials(results(study))] == ["complete"]


def test_resume_from_a_shell_that_lacks_a_secret(studies: Studies, tmp_path: Path) -> None:
    """A value of `serve.env` under an innocent name is redacted only where the shell has it under a telling one."""
    study = night(tmp_path, study={"trials": 1})
    content = yaml.safe_load(study.read_text())
    content["serve"]["env"]["GREETING"] = "s3cret-of-the-shell"
    fake_study.write(study, content)
    first = studies.start(study, results(study), env={"MY_TOKEN": "s3cret-of-the-shell"})
    assert first.wait() == 0, first.text()
    again = start(studies, study)
    assert again.wait() == 0, again.text()
    assert "going on: 1 of 1 trials are stored" in again.text()
    assert "s3cret-of-the-shell" not in (results(study) / "fingerprint.json").read_text()


@pytest.fixture
def copied(whole: Night, tmp_path: Path) -> Path:
    """The finished study, to go on with under another folder."""
    assert whole.driver.wait() == 0, whole.driver.text()
    shutil.copytree(results(whole.study), tmp_path / "results" / "night")
    return Path(shutil.copy(whole.study, tmp_path))


def verdict(driver: Driver) -> dict[str, Any]:
    """The last line of `--json`, without the paths of its folder."""
    last = json_lines("\n".join(line for line in driver.text().splitlines() if line.startswith("{")))[-1]
    return {key: value for key, value in last.items() if key not in ("command",)}
