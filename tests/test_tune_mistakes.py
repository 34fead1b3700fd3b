"""What `python -m sweep.tune` refuses, shows and explains without a launch."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import fake_study
import pytest
from nights import Night
from stored_trials import complete
from typer.testing import CliRunner

from sweep.config import load
from sweep.gpu import Gpus
from sweep.prepare import prepare
from sweep.store import Store
from sweep.study_folder import StudyFolder
from sweep.trial import Score


class TestMistakes:
    """Whatever is wrong with what was asked: one line, exit code 2, nothing launched."""

    @pytest.mark.night
    def test_in_a_process_of_its_own(self, tmp_path: Path) -> None:
        night = Night(tmp_path, fake_study.study(tmp_path))
        night.content["serve"]["flgas"] = night.content["serve"].pop("flags")
        done = night.run()
        assert done.returncode == 2
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"sweep: {tmp_path / 'study.yaml'}:")
        assert line.endswith("did you mean 'flags'?")
        assert not (tmp_path / "results").exists()

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"serve": {"flags": {"max-modle-len": 1}}}, "did you mean 'max-model-len'?"),
            ({"load": {"path": "cut.json"}}, "truncated"),
            ({"load": {"path": "absent.json"}}, "load.path: no file 'absent.json'"),
            ({"model": {"path": "./absent"}}, "model.path: no folder './absent'"),
            ({"model": {"path": ""}}, "model.path: is empty; name the model's folder, or its hub id"),
            ({"load": {"output_tokens": 2045}}, "leaves no conversation"),
        ],
    )
    def test_one_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
    ) -> None:
        from sweep.tune import app

        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        (tmp_path / "cut.json").write_text('[{"id": "a", "conversations": [{"from": "human", "value": "x"}, {"fr')
        night = Night(tmp_path, fake_study.study(tmp_path, **changes))
        path = fake_study.write(tmp_path / "study.yaml", night.content)
        done = CliRunner().invoke(app, [str(path)])
        assert done.exit_code == 2
        assert done.stdout == ""
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("sweep: ")]
        assert words in line
        assert "Traceback" not in done.stderr
        assert night.servers() == []
        assert list((tmp_path / "results").rglob("*.parquet")) == []

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            ([], "missing argument 'STUDY'; --help shows what there is"),
            (["night.yaml", "--trials", "0"], "--trials: must be a whole number from 1 to 100,000, not 0"),
            (["night.yaml", "--trials", "many"], "--trials: must be a whole number from 1 to 100,000, not many"),
            (["night.yaml", "--trials"], "option '--trials' requires an argument; --help shows what there is"),
            (["night.yaml", "--dryrun"], "no such option: --dryrun; did you mean --dry-run?"),
            (["night.yaml", "--json=yes"], "option '--json' does not take a value; --help shows what there is"),
            (["night.yaml", "other.yaml"], "got unexpected extra argument(s) (other.yaml); --help shows what there is"),
            (["night.yaml", "--time-budget", "long"], "--time-budget: 'long' is not a duration; write 8h, 90m, 1h30m"),
            (["night.yaml", "--deadline", "25:00"], "--deadline: '25:00' is not a time of day; write 07:00"),
            (["absent.yaml"], "absent.yaml: no such file"),
        ],
    )
    def test_of_the_command_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], line: str
    ) -> None:
        from sweep.tune import app

        monkeypatch.chdir(tmp_path)
        fake_study.write(tmp_path / "night.yaml", fake_study.study(tmp_path))
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 2
        assert done.stdout == ""
        assert done.stderr.startswith(f"sweep: {line}")
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "results").exists()


def test_dry_run_shows_commands_and_launches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sweep.tune import app

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    content = fake_study.study(tmp_path)
    content["search_space"] = {**content["search_space"], "constraints": ["max-num-seqs <= 128"]}
    content["serve"]["startup_timeout_s"] = 30
    content["load"] |= {"startup_timeout_s": 60, "request_timeout_s": 60, "max_concurrency": 4}
    night = Night(tmp_path, content)
    done = CliRunner().invoke(app, [str(fake_study.write(tmp_path / "study.yaml", night.content)), "--dry-run"])
    assert done.exit_code == 0, done.stderr
    assert fake_study.processes_with(str(tmp_path)) == []
    assert "320 combinations, 160 of them within the constraints" in done.stdout
    commands = [shlex.split(line) for line in done.stdout.splitlines() if line.startswith("  ")]
    assert len(commands) == 3
    for words in commands:
        assert words.pop(0).startswith("FAKE_VLLM=")  # what the study sets of the environment comes first
        assert words[: len(night.content["serve"]["command"])] == night.content["serve"]["command"]
        assert "--gpu-memory-utilization" in words
    assert commands[0][commands[0].index("--max-num-seqs") + 1] == "8"
    # 120 s for clean devices, 30 for the server, 60 to warm up, 60 and three lots of 60 for the load, 2 x 2 to stop.
    assert "an attempt at a trial takes at most 8 minutes, a trial with all 4 that it may have 30:" in done.stdout
    assert night.servers() == []
    assert not (tmp_path / "results").exists()


def test_dry_run_for_scripts_is_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sweep.tune import app

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = fake_study.write(tmp_path / "study.yaml", fake_study.study(tmp_path))
    done = CliRunner().invoke(app, [str(path), "--dry-run", "--json"])
    assert done.exit_code == 0, done.stderr
    (found,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (found["study"], found["trials"], found["combinations"]) == ("night", 4, 320)
    assert all("--max-num-seqs" in shlex.split(command) for command in found["commands"])
    assert len(found["commands"]) == 3
    assert found["longest_trial_s"] == 4 * found["longest_attempt_s"] > 0


class TestDryRunOfAStudyThatGoesOn:
    """What the real run would refuse is refused, and nothing is touched."""

    @pytest.fixture
    def measured(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
        """A study whose baseline is stored."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        night = Night(tmp_path, fake_study.study(tmp_path))
        path = fake_study.write(tmp_path / "study.yaml", night.content)
        with Gpus() as gpus, StudyFolder.open(night.folder.parent, "night") as folder:
            found = prepare(load(path), path, night.folder, gpus)
            folder.adopt(found.fingerprint, {}, found.redactor)
            result = complete(0, found.config.baseline_flags())
            result = dataclasses.replace(result, metrics={"p95_ttft_ms": 5.0}, score=Score(1.0, violations={}))
            metadata = found.fingerprint.as_metadata()
            Store(night.folder, found.schema, metadata=metadata, redactor=found.redactor).append(
                result, engine_summary={}
            )
        return night

    @staticmethod
    def refusal(night: Night, *options: str) -> str:
        """The line that is said when the command is typed."""
        from sweep.tune import app

        path = fake_study.write(night.home / "study.yaml", night.content)
        done = CliRunner().invoke(app, [str(path), *options])
        assert (done.exit_code, done.stdout) == (2, "")
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("sweep: ")]
        return line

    @pytest.mark.parametrize(
        ("section", "values", "words"),
        [
            ("serve", {"flags": {"max-model-len": 2048}}, "fixed flag max-model-len: was 4096, is now 2048"),
            ("model", {"served_name": "other"}, 'fixed flag served-model-name: was "fake", is now "other"'),
            ("load", {"path": "other.json"}, "content of the prompt file: changed"),
            ("load", {"num_prompts": 8}, "load setting num_prompts: was 12, is now 8"),
            ("baseline", {"max-num-seqs": 16}, "baseline: max-num-seqs: was 8, is now 16"),
        ],
        ids=["fixed flag", "served name", "dataset", "load", "baseline"],
    )
    def test_a_change_is_refused_with_the_words_of_the_real_run(
        self, measured: Night, section: str, values: dict[str, Any], words: str
    ) -> None:
        ask, answer = {"from": "human", "value": "What is the height of tower"}, {"from": "gpt", "value": "A" * 40}
        rows = [{"conversations": [{**ask, "value": f"{ask['value']} {n}"}, answer]} for n in range(90)]
        (measured.home / "other.json").write_text(json.dumps(rows))
        measured.content[section] = {**measured.content[section], **values}
        before = {path: path.stat().st_mtime_ns for path in measured.folder.rglob("*")}
        line = self.refusal(measured, "--dry-run")
        assert {path: path.stat().st_mtime_ns for path in measured.folder.rglob("*")} == before
        assert words in line
        assert self.refusal(measured) == line

    def test_without_a_change_it_says_what_is_stored(self, measured: Night) -> None:
        from sweep.tune import app

        done = CliRunner().invoke(app, [str(measured.home / "study.yaml"), "--dry-run"])
        assert done.exit_code == 0, done.stderr
        assert f"going on: 1 of 4 trials are stored in {measured.folder}" in done.stderr

    def test_a_results_folder_that_cannot_be_one(self, tmp_path: Path) -> None:
        (tmp_path / "results").write_text("a file")
        night = Night(tmp_path, fake_study.study(tmp_path))
        dry, real = self.refusal(night, "--dry-run"), self.refusal(night)
        assert "cannot write in " in dry
        assert dry.endswith("choose another results folder")
        assert real.endswith("choose another results folder")

    @pytest.mark.parametrize(
        ("resources", "words"),
        [({"gpus": 99}, "99 GPUs and 1 CPU"), ({"gpus": 0, "cpus": 5000}, "0 GPUs and 5000 CPUs")],
        ids=["gpus", "cpus"],
    )
    def test_a_machine_that_is_too_small(self, tmp_path: Path, resources: dict[str, Any], words: str) -> None:
        from sweep.tune import app

        content = fake_study.study(tmp_path)
        content["resources"] = resources
        path = fake_study.write(tmp_path / "study.yaml", content)
        done = CliRunner().invoke(app, [str(path), "--dry-run"])
        assert done.exit_code == 2
        assert "nothing was launched" in done.stdout  # the commands are seen on any machine
        line = done.stderr.splitlines()[-1]
        assert line.startswith(f"sweep: a trial needs {words}, but this machine has ")
        assert line.endswith("; see resources in the study file")


def test_help_is_worth_reading() -> None:
    from sweep.tune import app

    done = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120", "TERM": "dumb"})
    assert done.exit_code == 0
    assert "Tune the serve flags of a vLLM server." in done.stdout
    assert "Exit codes" in done.stdout
    for option in ("--dry-run", "--json", "--ray-address", "--time-budget", "--deadline", "--salvage"):
        assert option in done.stdout
