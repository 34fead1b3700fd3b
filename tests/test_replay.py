"""Studies on a recorded landscape: what is drawn, what it takes, what is refused, and that it is always said."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import fake_study
import pytest
import recordings

from sweep.alone import Alone
from sweep.config import load
from sweep.errors import ConfigError, HostError
from sweep.prepare import Prepared
from sweep.replay import Replay, read_recording
from sweep.replayed import prepare_replay
from sweep.runner import RoundReport
from sweep.search_space import flags_key
from sweep.store import pack, read_launches, read_metadata, read_trials
from sweep.trial import Flag, TrialKind, TrialSpec, TrialStatus

FAST: dict[str, Flag] = {**recordings.BASELINE, "max-num-seqs": 16}
SPACE = recordings.study(Path(), Path())["search_space"]
REFUSED: dict[str, Flag] = {**recordings.BASELINE, "block-size": 16}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording as its study left it."""
    return recordings.write(tmp_path_factory.mktemp("recording") / "stored")


@pytest.fixture(scope="module")
def recording(stored: Path) -> Path:
    """The same packed, which is read faster."""
    out = stored.with_name("packed")
    pack(stored, out)
    shutil.copy(stored / "fingerprint.json", out)
    return out


def prepared(folder: Path, recording: Path, **changes: Any) -> Prepared:
    path = fake_study.write(folder / "study.yaml", recordings.study(folder, recording, **changes))
    return prepare_replay(load(path), path, folder / "results" / "again")


def replay_of(found: Prepared) -> Replay:
    assert isinstance(found.stand_in, Replay)
    return found.stand_in


def test_a_packed_recording_reads_as_the_study_does(stored: Path, tmp_path: Path) -> None:
    pack(stored, tmp_path / "packed", metadata={"recorded_by": "a command"})
    assert sorted(path.name for path in (tmp_path / "packed").iterdir()) == [
        f"{name}.parquet" for name in ("engine", "events", "requests", "rounds", "telemetry", "trials")
    ]
    before, after = read_launches(stored), read_launches(tmp_path / "packed")
    assert [one.trial for one in after] == [one.trial for one in before]
    assert [one.rounds for one in after] == [one.rounds for one in before]
    for one, other in zip(before[0].requests, after[0].requests, strict=True):
        assert other.itl_ms == pytest.approx(one.itl_ms, abs=1e-6)
    assert read_metadata(tmp_path / "packed") == {
        **{key: value for key, value in read_metadata(stored).items() if key not in ("trial", "command")},
        "recorded_by": "a command",
    }


def test_packing_applies_what_it_is_given_to_every_text(stored: Path, tmp_path: Path) -> None:
    pack(stored, tmp_path, tables=("trials",), plain=lambda text: text.replace("vllm serve m", "vllm serve MODEL"))
    assert {one.trial.command for one in read_launches(tmp_path)} == {"vllm serve MODEL"}
    with pytest.raises(HostError, match="holds no trials"):
        pack(tmp_path / "nothing", tmp_path / "out")


def test_all_launches_of_a_point_are_drawn_before_one_comes_again(recording: Path, tmp_path: Path) -> None:
    replay = replay_of(prepared(tmp_path, recording))
    numbers = [replay.drawn(FAST, times)[0].launch.trial.number for times in range(6)]
    launches = {one.launch.trial.number for one in read_recording(recording).at(FAST)}
    assert len(launches) == 2
    assert all(set(numbers[start : start + 2]) == launches for start in (0, 2, 4))
    assert [replay.drawn(FAST, times)[1] for times in range(4)] == [0, 0, 1, 1]
    others = [Replay(recording, replay.rates, seed).drawn(FAST, 0)[0].launch.trial.number for seed in range(20)]
    assert set(others) == launches  # the seed decides


def test_a_trial_is_one_of_its_launches_with_its_times(recording: Path, tmp_path: Path) -> None:
    found = prepared(tmp_path, recording)
    outcome = replay_of(found).run(TrialSpec(0, TrialKind.BASELINE, recordings.BASELINE), found.setup)
    result = outcome.result
    drawn, _ = replay_of(found).drawn(recordings.BASELINE, 0)
    assert result.status is TrialStatus.COMPLETE
    assert result.stood_in == "replayed"
    assert (result.startup_s, result.total_s) == (30.0, drawn.launch.trial.total_s)
    assert result.requests == drawn.launch.requests
    assert len(result.requests) == 2 * recordings.COUNT
    assert result.score is not None
    assert result.score.value == 1.0
    assert result.command.startswith("(replayed, not run) ")
    assert f"trial {drawn.launch.trial.number} of the recording" in result.remarks[0]
    assert all(event.detail == "replayed" for event in result.events)


def test_one_that_failed_fails_again_in_the_same_time(recording: Path, tmp_path: Path) -> None:
    found = prepared(tmp_path, recording)
    outcome = replay_of(found).run(TrialSpec(1, TrialKind.SEARCH, REFUSED, {}), found.setup)
    assert outcome.result.status is TrialStatus.INFEASIBLE
    assert outcome.result.failure == recordings.failure(REFUSED)
    assert outcome.result.total_s == 5.0
    assert outcome.finished().informative_for_search


def test_at_one_of_its_rates_it_takes_the_time_of_that_alone(recording: Path, tmp_path: Path) -> None:
    found = prepared(tmp_path, recording, load={"request_rate": 8})
    result = replay_of(found).run(TrialSpec(0, TrialKind.BASELINE, recordings.BASELINE), found.setup).result
    assert [one.request_rate_per_s for one in result.rounds] == [8.0]
    assert [one.round for one in result.rounds] == [0]
    assert {one.round for one in result.requests} == {0}
    assert result.total_s == pytest.approx(32 + recordings.COUNT / 8 + 10)
    assert found.setup.plan.rates == (8.0,)
    engine = replay_of(found).run(TrialSpec(0, TrialKind.BASELINE, FAST), found.setup).finished().engine
    assert engine is not None
    assert (engine.preemptions, engine.peak_running) == (0.0, 8.0)
    assert found.setup.plan.num_prompts == recordings.COUNT


def test_one_that_is_stopped_after_a_round_takes_no_time_for_the_rest(recording: Path, tmp_path: Path) -> None:
    found = prepared(tmp_path, recording)
    asked: list[RoundReport] = []

    def stop(report: RoundReport) -> str:
        asked.append(report)
        return "far behind"

    spec = TrialSpec(3, TrialKind.SEARCH, FAST, {})
    result = replay_of(found).run(spec, found.setup, after_round=stop).result
    assert result.status is TrialStatus.CENSORED
    assert result.stopped_because == "far behind"
    assert [one.round for one in result.rounds] == [0]
    assert result.total_s == pytest.approx(32 + recordings.COUNT / 4 + 10)
    assert [(one.round, one.planned, len(one.requests)) for one in asked] == [(0, 2, 1)]


def test_it_travels_to_a_worker_without_its_recording(recording: Path, tmp_path: Path) -> None:
    replay = replay_of(prepared(tmp_path, recording))
    assert replay.recording.launches == 25
    packet = pickle.dumps(replay)
    assert len(packet) < 1000
    assert pickle.loads(packet).recording.launches == 25


def test_only_recorded_points_are_in_the_space(recording: Path, tmp_path: Path) -> None:
    parameters = {
        "gpu-memory-utilization": {"type": "float", "low": 0.5, "high": 0.95},
        "max-num-seqs": {"type": "int", "low": 1, "high": 32},
        "max-num-batched-tokens": {"type": "choice", "values": [256, 512, 1024]},
        "block-size": {"type": "choice", "values": [32]},
    }
    space = prepared(tmp_path, recording, search_space={"parameters": parameters}).space
    assert space.feasible_size() == 2 * 2 * 2
    assert all(flags_key(point) in read_recording(recording).points for point in space.points())
    assert space.violated({**FAST, "max-num-seqs": 8}) == "one of the points of the recording"
    assert [list(point.values()) for point in space.points()][:2] == [[0.6, 4, 256, 32], [0.6, 4, 1024, 32]]


def test_a_fixed_flag_takes_the_part_of_the_recording_that_has_it(recording: Path, tmp_path: Path) -> None:
    parameters = {"max-num-seqs": {"type": "int", "low": 1, "high": 64}}
    changes = {
        "search_space": {"parameters": parameters},
        "baseline": {"max-num-seqs": 4},
        "serve": {"flags": {"gpu-memory-utilization": 0.6, "max-num-batched-tokens": 1024, "block-size": 32}},
    }
    content = {**recordings.study(tmp_path, recording), **changes}
    path = fake_study.write(tmp_path / "study.yaml", content)
    found = prepare_replay(load(path), path, tmp_path / "results" / "again")
    assert [point["max-num-seqs"] for point in found.space.points()] == [4, 16, 64]
    outcome = replay_of(found).run(TrialSpec(0, TrialKind.BASELINE, {"max-num-seqs": 4}), found.setup)
    assert outcome.result.status is TrialStatus.COMPLETE


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"baseline": {"max-num-seqs": 8}}, "one of the points of the recording"),
        ({"load": {"request_rate": 5}}, "was not recorded at a request rate of 5; its rates: 4, 8"),
        ({"load": {"calibrate": True}}, "a recording has the rates it was made with"),
        ({"replay": {"path": "nowhere"}}, "no folder 'nowhere' beside the study file"),
        (
            {"search_space": {**SPACE, "constraints": ["max-num-seqs > 100"]}},
            "none of the 21 recorded points lies in these ranges; recorded: gpu-memory-utilization 0.3, 0.6, 0.9;",
        ),
        ({"study": {"engine": "vllm"}}, "engine: replay needs replay.path beside it"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    recording: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises((ConfigError, HostError), match=said):
        prepared(tmp_path, recording, **changes)


def test_a_folder_without_a_measured_launch_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="holds no trials"):
        read_recording(tmp_path)
    recordings.write(tmp_path / "failed", [REFUSED])
    with pytest.raises(HostError, match="holds no launch that was measured to its end"):
        read_recording(tmp_path / "failed")


def test_a_whole_study_in_this_process(recording: Path, tmp_path: Path) -> None:
    # Without the gate: one refusal of a block size would leave fewer points than trials.
    study = Alone(prepared(tmp_path, recording, study={"trials": 20, "gate": False}))
    study.run()
    assert study.stop_reason == "all trials done"
    assert list(study.outcomes) == list(range(20))
    assert all(one.result.stood_in == "replayed" for one in study.outcomes.values())
    assert study.spent_s == sum(one.total_s or 0.0 for one in study.finished)
    best = min((one for one in study.finished if one.score is not None), key=lambda one: one.score or 0.0)
    assert best.flags["max-num-seqs"] == 16
    again = Alone(prepared(tmp_path, recording, study={"trials": 20, "gate": False}))
    again.run()
    assert again.finished == study.finished
    assert not (tmp_path / "results").exists()


def test_the_time_of_a_study_is_that_of_the_recorded_launches(recording: Path, tmp_path: Path) -> None:
    whole = Alone(prepared(tmp_path, recording, study={"trials": 20}))
    whole.run()
    study = Alone(prepared(tmp_path, recording, study={"trials": 20}), budget_s=400.0)
    study.run()
    assert study.stop_reason == "the time left is shorter than a trial"
    assert study.spent_s <= 400.0
    assert study.finished == whole.finished[: len(study.finished)]


@pytest.mark.night
def test_ray_and_one_process_run_the_same_trials_and_nothing_is_recommended(recording: Path, tmp_path: Path) -> None:
    changes = {"study": {"trials": 8}, "load": {"request_rate": [4, 8]}}
    alone = Alone(prepared(tmp_path, recording, **changes))
    alone.run()
    done = fake_study.tune(tmp_path / "study.yaml", "--trials", "8")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "results" / "again"
    stored = read_trials(folder)
    assert [(one.number, dict(one.flags), one.status, one.score) for one in stored] == [
        (one.number, dict(one.flags), one.status, one.score) for one in alone.finished
    ]
    assert {one.stood_in for one in stored} == {"replayed"}
    assert not (folder / "best.yaml").exists()
    assert "Replayed, not measured" in done.stdout
    assert "no recommendation for production" in done.stdout
    assert "nothing is launched and nothing here is measured" in done.stderr
    assert "vllm serve m" not in done.stdout
