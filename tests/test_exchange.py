"""Parameter files and results of `vllm bench sweep`, and Optuna's storage: read, written, and taken back."""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import optuna
import optuna_dashboard
import pytest
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from optuna_dashboard._storage_url import get_storage
from reported import alike, confirmed, measured, night
from reported import write as stored

from sweep.config import loads
from sweep.exchange.__main__ import main
from sweep.exchange.params import read_params
from sweep.search_space import SearchSpace

GRID = [
    {"max_num_seqs": seqs, "max-num-batched-tokens": tokens} for seqs, tokens in itertools.product((8, 64), (512, 2048))
]


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def lines(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[list[str], list[str]]:
    """What the command printed, on both channels."""
    assert main(words) == code
    captured = capsys.readouterr()
    return captured.out.splitlines(), captured.err.splitlines()


def vllms_own() -> Any:
    """vLLM's reader of these files, which needs nothing of the rest of it."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("no vLLM here")
    path = Path(found.origin).parent / "benchmarks" / "sweep" / "param_sweep.py"
    if not path.exists():
        pytest.skip("this vLLM has no bench sweep")
    spec = importlib.util.spec_from_file_location("param_sweep", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ParameterSweep


class TestParams:
    """A grid as a study file, and a study's flags as a grid."""

    def study(self, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, SearchSpace, list[str]]:
        out, err = lines(capsys, "import-params", "--model", "org/model", *words)
        text = "\n".join(out) + "\n"
        config = loads(text, Path("x.yaml"))
        return config, SearchSpace.from_config(config.search_space, config.serve.flags), err

    def test_the_points_of_a_full_grid(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        bench = write(
            tmp_path / "b.json", {"x": {"num_prompts": 60, "request-rate": 4, "max_concurrency": 16, "top_p": 1}}
        )
        words = ("--serve-params", str(write(tmp_path / "s.json", GRID)), "--bench-params", str(bench))
        config, space, err = self.study(capsys, *words, "--baseline", "2")
        assert err == []
        assert (space.size(), space.feasible_size(), config.study.trials) == (4, 4, 4)
        assert config.baseline == {"max-num-seqs": 8, "max-num-batched-tokens": 2048}
        load = config.load
        assert (load.num_prompts, load.request_rate, load.max_concurrency) == (60, 4.0, 16)
        assert load.flags == {"top-p": 1}
        assert config.model.path == "org/model"

    def test_nothing_but_the_points_of_one_that_is_not_full(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        records = {"small": GRID[0], "large": GRID[3], "odd": {"max_num_seqs": 16, "max-num-batched-tokens": 512}}
        config, space, _ = self.study(capsys, "--serve-params", str(write(tmp_path / "s.json", records)),
                                      "--baseline", "large")  # fmt: skip
        assert (space.size(), space.feasible_size()) == (6, 3)
        assert {tuple(point.values()) for point in space.points()} == {(8, 512), (64, 2048), (16, 512)}
        assert config.baseline == {"max-num-seqs": 64, "max-num-batched-tokens": 2048}

    def test_switches_texts_and_what_is_left_to_vllm(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        records = [
            {"enable_prefix_caching": True, "kv-cache-dtype": "fp8"},
            {"enable_prefix_caching": False},
            {"compilation_config": {"mode": 3}},
        ]
        config, space, err = self.study(capsys, "--serve-params", str(write(tmp_path / "s.json", records)))
        values = {name: spec.values for name, spec in config.search_space.parameters.items()}
        assert values["enable-prefix-caching"] == (True, False, None)
        assert values["compilation-config"] == (None, '{"mode": 3}')
        assert any("cannot be excluded" in line for line in err)
        assert (
            space.violated({"enable-prefix-caching": True, "kv-cache-dtype": "fp8", "compilation-config": None}) is None
        )

    @pytest.mark.parametrize(
        ("serve", "bench", "said"),
        [
            ("{", None, "is no JSON"),
            ([], None, "a list of objects is wanted, at least one"),
            ({"a": 1}, None, "an object of objects by name is wanted"),
            ([{}], None, "set no flag"),
            ([{"a-b": 1, "a_b": 2}], None, "entry 1 has one flag in two spellings"),
            ([{"_benchmark_name": "x", "a": 1}, {"_benchmark_name": "x", "a": 2}], None, "'x' stands twice"),
            (GRID, [{"num_prompts": 5}, {"num_prompts": 6}], "vary num-prompts, and a study has one load"),
            (GRID, [{"dataset_name": "random"}], "dataset-name random: a study sends sharegpt or custom prompts"),
            (GRID, [{"num_prompts": "many"}], "num_prompts"),
        ],
    )
    def test_what_is_no_grid(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], serve: Any, bench: Any, said: str
    ) -> None:
        path = tmp_path / "s.json"
        path.write_text(serve if isinstance(serve, str) else json.dumps(serve))
        more = () if bench is None else ("--bench-params", str(write(tmp_path / "b.json", bench)))
        out, err = lines(capsys, "import-params", "--model", "m", "--serve-params", str(path), *more, code=2)
        assert (out, len(err)) == ([], 1)
        assert said in err[0]

    def test_rates_alone_may_vary(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        bench = write(tmp_path / "b.json", [{"num_prompts": 60, "request_rate": rate} for rate in (4, 8)])
        serve = write(tmp_path / "s.json", GRID)
        config, _, _ = self.study(capsys, "--serve-params", str(serve), "--bench-params", str(bench))
        assert config.load.request_rate == (4.0, 8.0)

    def test_a_study_goes_back(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out, err = lines(capsys, "export-params", str(confirmed(tmp_path / "night")))
        path = tmp_path / "p.json"
        path.write_text("\n".join(out))
        records = {record.name: record.flags for record in read_params(path)}
        assert records == {
            "baseline": {"max-num-seqs": 8, "gpu-memory-utilization": 0.9},
            "recommended": {"max-num-seqs": 16, "gpu-memory-utilization": 0.9},
        }
        assert "better" in err[0]
        own = vllms_own().read_json(path)
        assert [item.name for item in own] == ["baseline", "recommended"]
        assert own[1].apply_to_cmd(["vllm", "serve", "m"])[3:] == [
            "--max-num-seqs", "16", "--gpu-memory-utilization", "0.9",
        ]  # fmt: skip

    def test_the_load_of_a_study_as_bench_parameters(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        folder = night(tmp_path / "night")
        load = {"num_prompts": 60, "request_rate": [4.0, None], "dataset": "custom", "path": "p.jsonl", "seed": None,
                "output_tokens": 20, "max_concurrency": None, "ignore_eos": True, "flags": {"top-p": 0.9}}  # fmt: skip
        write(folder / "study.json", {"study": {"seed": 7}, "load": load})
        _, err = lines(capsys, "export-params", str(folder), "--bench", code=2)
        assert "fingerprint.json" in err[0]
        write(folder / "fingerprint.json", {})
        out, _ = lines(capsys, "export-params", str(folder), "--bench")
        (tmp_path / "b.json").write_text("\n".join(out))
        slow, burst = vllms_own().read_json(tmp_path / "b.json")
        assert slow.name == "4 per s"
        words = slow.apply_to_cmd(["vllm", "bench", "serve"])[3:]
        said = (
            "--num-prompts 60 --seed 7 --dataset-path p.jsonl --dataset-name custom --ignore-eos --custom-output-len 20"
        )
        assert " ".join(words) == f"{said} --top-p 0.9 --request-rate 4.0"
        assert burst["request_rate"] == "inf"

    def test_a_winner_that_nothing_confirmed_is_called_so(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out, _ = lines(capsys, "export-params", str(night(tmp_path / "night")))
        assert list(json.loads("\n".join(out))) == ["baseline", "unconfirmed"]

    def test_what_was_only_replayed_recommends_nothing(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        trials = (measured(number, alike(ms), stood_in="replayed") for number, ms in ((0, 90.0), (1, 50.0)))
        out, err = lines(capsys, "export-params", str(stored(tmp_path / "again", tuple(trials))))
        assert list(json.loads("\n".join(out))) == ["baseline"]
        assert "no recommendation for production" in err[0]

    def test_flags_that_stay_are_the_baselines_alone(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        kept = stored(tmp_path / "a night", (measured(0, alike(50.0)), measured(1, alike(90.0))))
        out, err = lines(capsys, "export-params", str(kept))
        assert list(json.loads("\n".join(out))) == ["baseline"]
        assert "Keep your flags" in err[0]
        out, err = lines(capsys, "export-params", str(stored(tmp_path / "none", ())), code=2)
        assert (out, "Nothing measured yet" in err[0]) == ([], True)


def run(ttft_s: float, *, detailed: bool, number: int = 0, count: int = 20, **overrides: Any) -> dict[str, Any]:
    """What `vllm bench serve` 0.32 leaves of a run, with what the sweep adds."""
    result: dict[str, Any] = {
        "date": "20261101-120000", "backend": "vllm", "model_id": "org/model", "tokenizer_id": "org/model",
        "num_prompts": count, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": None, "duration": 10.0,
        "completed": count, "failed": 0, "total_input_tokens": 100 * count, "total_output_tokens": 3 * count,
        "request_throughput": count / 10, "output_throughput": 3 * count / 10,
    }  # fmt: skip
    for stem, value in (("ttft", ttft_s), ("tpot", 0.01), ("itl", 0.01), ("e2el", ttft_s + 0.02)):
        for stat in ("mean", "median", "std", "p99"):
            result[f"{stat}_{stem}_ms"] = 1000 * value
    if detailed:
        result |= {
            "input_lens": [100] * count, "output_lens": [3] * count, "ttfts": [ttft_s] * count, "errors": [""] * count,
            "itls": [[0.01, 0.01]] * count, "start_times": [100.0 + i for i in range(count)],
        }  # fmt: skip
    return {**result, "run_number": number, **overrides}


def sweep(folder: Path, *, detailed: bool = True, loads: tuple[Mapping[str, Any], ...] = ({},)) -> Path:
    """A folder of results: two servers, two runs each under each load, and a server that did not start."""
    for seqs, ttft_s in ((8, 0.1), (64, 0.05)):
        for load in loads:
            bench = "".join(f"-BENCH--{key}={value}" for key, value in load.items())
            place = folder / f"SERVE--max_num_seqs={seqs}{bench}"
            place.mkdir(parents=True)
            for number in range(2):
                write(
                    place / f"run={number}.json",
                    run(ttft_s, detailed=detailed, number=number, max_num_seqs=seqs, **load),
                )
            write(place / "summary.json", [])
            write(place / "warmup.json", run(9.0, detailed=detailed))
    lost = {"error_type": "RuntimeError", "error": "Server process crashed", "serve_overrides": {"max_num_seqs": 512}}
    write(folder / "SERVE-max_num_seqs=512-failure.json", lost)
    return folder


class TestResults:
    """A folder of results as a study that is reported on."""

    def report(self, capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> dict[str, Any]:
        from sweep.report.__main__ import main as report

        assert report((str(folder), "--format", "json", *words)) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    def test_detailed_results_are_ranked_by_anything(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = ("import-results", str(sweep(tmp_path / "s")), "--name", "old", "--results", str(tmp_path / "r"))
        out, _ = lines(capsys, *words)
        folder = tmp_path / "r" / "old"
        assert out == [f"{folder}: 3 trials, 2 with their requests", f"python -m sweep.report {folder}"]
        found = self.report(capsys, tmp_path / "r" / "old", "--weights", "p90_ttft_ms=1")
        assert (found["verdict"], found["trial"], found["gain_share"]) == ("better", 1, pytest.approx(0.5))
        by_number = {one["trial"]: one for one in found["trials"]}
        assert by_number[0]["metrics"]["p90_ttft_ms"] == pytest.approx(100.0)
        assert by_number[0]["completed"] == 40
        assert by_number[2]["failure_line"] == "RuntimeError: Server process crashed"
        assert found["command"] == "vllm serve org/model --max-num-seqs 64"
        again, err = lines(capsys, *words, code=2)
        assert (again, len(err)) == ([], 1)
        assert "holds a study already" in err[0]

    def test_without_details_the_figures_of_the_runs_remain(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = sweep(tmp_path / "s", detailed=False)
        words = (
            "import-results",
            str(folder),
            "--name",
            "old",
            "--results",
            str(tmp_path),
            "--baseline",
            "max_num_seqs=64",
        )
        out, _ = lines(capsys, *words)
        assert "0 with their requests" in out[0]
        found = self.report(capsys, tmp_path / "old", "--weights", "p99_ttft_ms=1,output_throughput_tokens_per_s=-1")
        assert found["verdict"] == "keep your flags"
        best = next(one for one in found["trials"] if one["trial"] == 0)
        assert best["flags"] == {"max-num-seqs": 64}
        assert best["metrics"] == {"p99_ttft_ms": pytest.approx(50.0), "output_throughput_tokens_per_s": 6.0}
        assert best["completed"] == 40
        missing = self.report(capsys, tmp_path / "old", "--weights", "p90_ttft_ms=1")
        assert missing["trials"][0]["metrics"] == {"p90_ttft_ms": None}

    def test_several_loads_are_several_studies(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        folder = sweep(tmp_path / "s", loads=({"request_rate": 4}, {"request_rate": 8}))
        out, _ = lines(capsys, "import-results", str(folder), "--name", "old", "--results", str(tmp_path))
        assert [line.split(": ")[1] for line in out[::2]] == [
            "3 trials of request_rate=4, 2 with their requests",
            "3 trials of request_rate=8, 2 with their requests",
        ]
        assert (tmp_path / "old-1" / "trials").is_dir()
        assert (tmp_path / "old-2" / "trials").is_dir()

    def test_entries_with_names_need_the_parameter_files(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        place = tmp_path / "s" / "SERVE--tuned"
        place.mkdir(parents=True)
        write(place / "run=0.json", run(0.1, detailed=True, max_num_seqs=8, _benchmark_name="tuned"))
        words = ("import-results", str(tmp_path / "s"), "--name", "old", "--results", str(tmp_path))
        _, err = lines(capsys, *words, code=2)
        assert "give --serve-params" in err[0]
        params = write(tmp_path / "p.json", {"tuned": {"max_num_seqs": 8}})
        out, _ = lines(capsys, *words, "--serve-params", str(params))
        assert "1 trials, 1 with" in out[0]

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ("{", "is no JSON"),
            ("[1]", "holds no result of vllm bench serve"),
            ('{"max_num_seqs": 8}', "holds no duration"),
            (json.dumps({**run(0.1, detailed=True, max_num_seqs=8), "ttfts": [0.1]}), "lists of different lengths"),
            (json.dumps({**run(0.1, detailed=False, max_num_seqs=8), "completed": 0}), "were not measured"),
        ],
    )
    def test_what_is_no_result(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, said: str
    ) -> None:
        place = tmp_path / "s" / "SERVE--max_num_seqs=8"
        place.mkdir(parents=True)
        (place / "run=0.json").write_text(content)
        words = ("import-results", str(tmp_path / "s"), "--name", "old", "--results", str(tmp_path / "r"))
        _, err = lines(capsys, *words, code=2)
        assert said in err[0]

    def test_a_folder_of_something_else(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for folder in (tmp_path, tmp_path / "none"):
            out, err = lines(capsys, "import-results", str(folder), "--name", "x", code=2)
            assert (out, len(err)) == ([], 1)


class TestOptuna:
    """A study in Optuna's own storage."""

    def test_every_trial_with_its_state(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "night.journal"
        out, _ = lines(capsys, "optuna", str(night(tmp_path / "night")), str(path))
        assert out == [f"{path}: 6 trials", f"optuna-dashboard {path}"]
        study = optuna.load_study(study_name="night", storage=JournalStorage(JournalFileBackend(str(path))))
        states = [trial.state for trial in study.trials]
        assert states == [*[TrialState.COMPLETE] * 3, TrialState.FAIL, *[TrialState.COMPLETE] * 2]
        assert study.trials[0].value == 1.0
        assert study.best_trial.params["max-num-seqs"] in (16, 40)
        assert study.trials[1].params == {"max-num-seqs": 16, "block-size": "(vLLM)", "gpu-memory-utilization": 0.9}
        assert study.trials[1].user_attrs["p95_ttft_ms"] == pytest.approx(50.0)
        assert study.trials[3].user_attrs["failure"] == "startup_oom"
        assert "stood_in" not in study.trials[0].user_attrs
        _, err = lines(capsys, "optuna", str(tmp_path / "night"), str(path), code=2)
        assert "exists already" in err[0]

    def test_a_trial_that_no_server_ran_says_so(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "again.journal"
        again = stored(tmp_path / "again", (measured(0, alike(50.0), stood_in="replayed"),))
        lines(capsys, "optuna", str(again), str(path))
        study = optuna.load_study(study_name="again", storage=JournalStorage(JournalFileBackend(str(path))))
        assert study.trials[0].user_attrs["stood_in"] == "replayed"

    def test_optuna_dashboard_opens_it(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "night.journal"
        lines(capsys, "optuna", str(night(tmp_path / "night")), str(path))
        # By the word that stands on its command line, read as the command reads it.
        app = optuna_dashboard.wsgi(get_storage(str(path)))
        asked: dict[str, Any] = {}
        setup_testing_defaults(asked)

        def get(place: str) -> Any:
            return json.loads(b"".join(app({**asked, "PATH_INFO": place}, lambda *_: None)))

        (summary,) = get("/api/studies")["study_summaries"]
        assert summary["study_name"] == "night"
        found = get(f"/api/studies/{summary['study_id']}")
        assert [trial["state"] for trial in found["trials"]].count("Complete") == 5


def test_words(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), ("nothing",), ("import-params",), ("export-params", "no-such-study")):
        out, err = lines(capsys, *words, code=2)
        assert (out, len(err)) == ([], 1)


def test_the_text_of_a_study_file_is_plain_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve = write(tmp_path / "s.json", [{"note": "a: b # c\nd"}, {"note": "'; rm"}])
    out, _ = lines(capsys, "import-params", "--model", "m", "--serve-params", str(serve))
    assert yaml.safe_load("\n".join(out))["search_space"]["parameters"]["note"]["values"] == ["a: b # c\nd", "'; rm"]
