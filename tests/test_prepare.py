"""From a study file to everything a night needs: what is found, what is said, what is refused."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_study
import pytest

from sweep.config import load
from sweep.errors import ConfigError, DatasetError, FlagError, UserError
from sweep.gpu import Gpus
from sweep.prepare import Prepared, prepare

DATA = Path(__file__).with_name("data")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The fake is asked for its flags once."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture
def folder(tmp_path: Path, cache: Path) -> Path:
    assert cache.is_dir()
    return tmp_path


def prepared(folder: Path, *, salvage: bool = False, **changes: Any) -> Prepared:
    path = fake_study.write(folder / "study.yaml", fake_study.study(folder, **changes))
    with Gpus() as gpus:
        return prepare(load(path), path, folder / "results" / "night", gpus, salvage=salvage)


def refusal(folder: Path, kind: type[UserError] = ConfigError, **changes: Any) -> str:
    with pytest.raises(kind) as caught:
        prepared(folder, **changes)
    text = str(caught.value)
    assert "\n" not in text
    assert not (folder / "results").exists()
    return text


def line_of(folder: Path, key: str) -> int:
    """The line of a key in the study file that `refusal` wrote, counted by its indentation: two blanks a level."""
    depth = 0
    wanted = key.split(".", 2 if key.startswith(("serve.flags", "load.flags", "search_space.param")) else 1)
    for number, line in enumerate((folder / "study.yaml").read_text().splitlines(), start=1):
        if line.startswith(f"{'  ' * depth}{wanted[depth]}:"):
            depth += 1
            if depth == len(wanted):
                return number
    raise AssertionError(f"{key} is not in the file")


def space(**parameters: Any) -> dict[str, Any]:
    """The search space of the fake's study with further parameters."""
    usual = fake_study.SPACE["parameters"]
    return {"parameters": {**usual, **{name.replace("_", "-"): spec for name, spec in parameters.items()}}}


def choice(*values: Any) -> dict[str, Any]:
    return {"type": "choice", "values": list(values)}


def test_a_good_study(folder: Path) -> None:
    found = prepared(folder)
    assert found.setup.model == found.setup.tokenizer == str(folder / "model")
    assert found.setup.folder == folder / "results" / "night"
    assert len(found.setup.plan.rounds[0].prompts) == 12
    assert found.setup.plan.warmup is not None
    assert len(found.setup.plan.warmup.prompts) == 2
    assert found.notices[0].startswith("objective: weights: {p95_ttft_ms: 0.3, ")
    assert any("usable" in notice for notice in found.notices)
    assert found.setup.dialect.server is not None
    assert not (folder / "results").exists()


def test_the_same_study_is_prepared_the_same(folder: Path) -> None:
    first, second = prepared(folder), prepared(folder)
    assert first.setup.plan == second.setup.plan
    assert first.fingerprint.differences(second.fingerprint).incomparable == ()
    other = prepared(folder, load={"output_tokens": 5})
    assert first.fingerprint.differences(other.fingerprint).incomparable != ()


def test_percentiles_of_the_objective_are_stored_too(folder: Path) -> None:
    found = prepared(folder, objective={"weights": {"p90_ttft_ms": 1.0}}, load={"percentiles": [99]})
    assert found.setup.percentiles == (90.0, 99.0)
    assert {"p90_ttft_ms", "p99_e2el_ms", "mean_tpot_ms", "request_throughput_per_s"} <= set(found.schema.metrics)


def test_columns_hold_every_value_a_flag_can_have(folder: Path) -> None:
    found = prepared(
        folder,
        search_space=space(
            block_size=choice(16, 32, None),
            dtype=choice("half", "bfloat16"),
            enable_prefix_caching={"type": "bool", "or_null": True},
        ),
    )
    kinds = {"max-num-seqs": int, "block-size": int, "dtype": str, "enable-prefix-caching": bool}
    assert {name: found.schema.flags[name] for name in kinds} == kinds


class TestFlags:
    @pytest.mark.parametrize(
        ("changes", "where", "nearest"),
        [
            ({"serve": {"flags": {"max_modle_len": 4096}}}, "serve.flags.max_modle_len", "max-model-len"),
            (
                {"search_space": space(max_num_batch_tokens=choice(512))},
                "search_space.parameters.max-num-batch-tokens",
                "max-num-batched-tokens",
            ),
            ({"load": {"flags": {"temprature": 0}}}, "load.flags.temprature", "temperature"),
        ],
    )
    def test_an_unknown_one_is_refused_with_the_nearest(
        self, folder: Path, changes: dict[str, Any], where: str, nearest: str
    ) -> None:
        text = refusal(folder, FlagError, **changes)
        assert text.startswith(f"{folder / 'study.yaml'}:{line_of(folder, where)}: {where}: ")
        assert repr(nearest) in text

    @pytest.mark.parametrize(
        "spec",
        [choice("half", "bflaot16"), {"type": "bool"}, {"type": "int", "low": 1, "high": 4}],
        ids=["a word that is none", "a switch", "numbers"],
    )
    def test_searched_values_that_the_flag_cannot_have(self, folder: Path, spec: dict[str, Any]) -> None:
        assert "'dtype'" in refusal(folder, FlagError, search_space=space(dtype=spec))

    def test_numbers_for_a_switch(self, folder: Path) -> None:
        assert "is a switch" in refusal(folder, FlagError, search_space=space(enforce_eager=choice(0, 1)))

    def test_a_client_flag_that_has_a_place_of_its_own(self, folder: Path) -> None:
        text = refusal(folder, FlagError, load={"flags": {"num-prompts": 4}})
        assert f":{line_of(folder, 'load.flags.num-prompts')}: load.flags.num-prompts: " in text
        assert "use load.num_prompts" in text

    def test_a_backend_of_the_client_without_its_endpoint(self, folder: Path) -> None:
        text = refusal(folder, FlagError, load={"flags": {"backend": "odd"}})
        assert f":{line_of(folder, 'load.flags.backend')}: load.flags.backend: " in text
        assert prepared(folder, load={"flags": {"backend": "odd", "endpoint": "/v1/odd"}}).setup.client_flags

    def test_prompts_that_an_old_client_cannot_send(self, folder: Path) -> None:
        lines = [json.dumps({"prompt": f"Count to {n}", "output_tokens": 3 + n % 2}) for n in range(40)]
        (folder / "own.jsonl").write_text("\n".join(lines))
        old = folder / "old.py"
        old.write_text(f"""
import sys
help_ = open({str(DATA / "help_bench_0.32.txt")!r}).read().replace("--disable-shuffle", "--other")
print("0.10.1" if "--version" in sys.argv else help_)
""")
        changes = {"command": [sys.executable, str(old), "bench", "serve"], "output_tokens": None}
        text = refusal(folder, FlagError, load={**changes, "dataset": "custom", "path": "own.jsonl"})
        assert f":{line_of(folder, 'load')}: load: this `vllm bench serve` " in text

    def test_a_value_that_cannot_be_typed(self, folder: Path) -> None:
        flags = {"compilation-config": {"when": datetime.date(2024, 1, 1)}}
        text = refusal(folder, FlagError, serve={"flags": flags})
        assert f":{line_of(folder, 'serve.flags.compilation-config')}: serve.flags.compilation-config: " in text

    def test_a_command_that_cannot_tell_is_not_checked_and_said(self, folder: Path) -> None:
        mute = [sys.executable, "-c", "raise SystemExit(3)"]
        found = prepared(folder, serve={"command": mute, "flags": {"of-a-fork-of-vllm": 1}})
        assert any("not checked against the server" in notice for notice in found.notices)
        assert found.setup.server_argv({}, "127.0.0.1", 1)[:3] == tuple(mute)

    def test_a_baseline_that_breaks_a_constraint(self, folder: Path) -> None:
        constraints = {**space(), "constraints": ["max-num-seqs >= 16"]}
        text = refusal(folder, search_space=constraints)
        assert "'max-num-seqs >= 16'" in text
        assert f":{line_of(folder, 'baseline')}: baseline: " in text

    def test_a_baseline_of_a_kind_that_a_constraint_cannot_compare(self, folder: Path) -> None:
        parameters = space(swap_space=choice(0, 4))
        changes = {**parameters, "constraints": ["swap-space <= 4"]}
        baseline = {**fake_study.study(folder)["baseline"], "swap-space": "4GiB"}
        text = refusal(folder, search_space=changes, baseline=baseline)
        assert f":{line_of(folder, 'baseline')}: baseline: " in text
        assert "swap-space = '4GiB' is not a number" in text

    def test_a_constraint_on_a_flag_that_is_not_there(self, folder: Path) -> None:
        text = refusal(folder, search_space={**space(), "constraints": ["max-num-seqs >= 1", "max-num-sqs >= 1"]})
        assert f":{line_of(folder, 'search_space.constraints') + 2}: search_space.constraints.1: " in text
        assert "did you mean 'max-num-seqs'?" in text


class TestPaths:
    def test_a_model_folder_beside_the_study_file(self, folder: Path) -> None:
        assert prepared(folder, model={"path": "model"}).setup.model == str(folder / "model")

    def test_a_missing_folder_is_said_and_a_hub_id_is_not_looked_for(self, folder: Path) -> None:
        text = refusal(folder, model={"path": "./absent"})
        assert f":{line_of(folder, 'model.path')}: model.path: no folder './absent'" in text
        found = prepared(folder, model={"path": "org/model", "tokenizer": str(folder / "model")})
        assert found.setup.model == "org/model"

    def test_a_missing_chat_template(self, folder: Path) -> None:
        text = refusal(folder, model={"chat_template": "absent.jinja"})
        assert f":{line_of(folder, 'model.chat_template')}: model.chat_template: no file 'absent.jinja'" in text

    def test_a_missing_prompt_file(self, folder: Path) -> None:
        text = refusal(folder, load={"path": "absent.json"})
        assert f":{line_of(folder, 'load.path')}: load.path: no file 'absent.json'" in text
        assert "README" not in text
        assert "README, 'The ShareGPT file'" in refusal(folder, load={"path": "ShareGPT_V3.json"})
        (folder / "prompts").mkdir()
        assert "load.path: 'prompts' is a folder" in refusal(folder, load={"path": "prompts"})

    def test_a_folder_that_is_no_model(self, folder: Path) -> None:
        (folder / "models" / "toy").mkdir(parents=True)
        text = refusal(folder, model={"path": "models"})
        assert f":{line_of(folder, 'model.path')}: model.path: the folder 'models' has no config.json" in text
        (folder / "models" / "toy" / "config.json").write_text("{}")
        assert text != (inside := refusal(folder, model={"path": "models"}))
        assert inside.endswith("; name models/toy")

    def test_a_model_without_a_tokenizer(self, folder: Path) -> None:
        (folder / "bare").mkdir()
        (folder / "bare" / "config.json").write_text("{}")
        text = refusal(folder, model={"path": "bare"})
        assert ": model.path: the folder 'bare' holds no tokenizer" in text
        assert "set model.tokenizer to" in text
        (folder / "bare" / "tokenizer.json").write_text("{}")
        text = refusal(folder, model={"path": str(folder / "model"), "tokenizer": "bare"})
        assert f":{line_of(folder, 'model.tokenizer')}: model.tokenizer: tokenizer " in text
        assert "cannot be loaded" in text

    def test_a_model_of_one_file(self, folder: Path) -> None:
        (folder / "m.gguf").write_bytes(b"GGUF")
        assert "m.gguf' is a file; set model.tokenizer" in refusal(folder, model={"path": "./m.gguf"})
        found = prepared(folder, model={"path": "./m.gguf", "tokenizer": str(folder / "model")})
        assert found.setup.model == str(folder / "m.gguf")

    def test_salvage_of_own_prompts_means_nothing(self, folder: Path) -> None:
        (folder / "own.jsonl").write_text('{"prompt": "Count to three"}\n')
        with pytest.raises(UserError, match="--salvage is for ShareGPT files"):
            prepared(folder, salvage=True, load={"dataset": "custom", "path": "own.jsonl"})

    def test_a_name_that_is_no_folder_and_no_hub_id(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "transformers", None)  # seconds to import, to say what it says of this name
        text = refusal(folder, model={"path": "modle"})
        assert f":{line_of(folder, 'model.path')}: model.path: " in text
        assert "there is no such folder beside the study file or here" in text

    def test_a_host_that_is_none(self, folder: Path) -> None:
        text = refusal(folder, serve={"host": "not a host"})
        assert f":{line_of(folder, 'serve.host')}: serve.host: 'not a host' is no address" in text

    def test_a_command_that_is_no_program(self, folder: Path) -> None:
        text = refusal(folder, serve={"command": ["vlmm", "serve"]})
        assert f":{line_of(folder, 'serve.command')}: serve.command: 'vlmm' is no program" in text


def sharegpt(rows: int, text: str = "What is the height of tower number") -> str:
    turns = [[{"from": "human", "value": f"{text} {n}"}, {"from": "gpt", "value": "A" * 40}] for n in range(rows)]
    return json.dumps([{"id": str(number), "conversations": pair} for number, pair in enumerate(turns)])


class TestPrompts:
    def test_fewer_usable_than_asked_for(self, folder: Path) -> None:
        (folder / "few.json").write_text(sharegpt(13))
        text = refusal(folder, DatasetError, load={"path": "few.json"})
        assert "14 different prompts are needed" in text
        assert "13 of 13 conversations usable" in text

    def test_a_truncated_file_and_its_whole_conversations(self, folder: Path) -> None:
        (folder / "cut.json").write_text(sharegpt(30)[:-60])
        text = refusal(folder, DatasetError, load={"path": "cut.json"})
        assert "truncated" in text
        assert "--salvage" in text
        found = prepared(folder, salvage=True, load={"path": "cut.json"})
        assert any("29" in notice for notice in found.notices)

    def test_an_output_length_that_leaves_nothing(self, folder: Path) -> None:
        text = refusal(folder, load={"output_tokens": 2045})
        assert f":{line_of(folder, 'load.output_tokens')}: load.output_tokens: " in text
        assert "2,048" in text
        assert "leaves no conversation" in text

    def test_long_prompts_are_handed_over_in_the_clients_custom_format(self, folder: Path) -> None:
        rows = json.loads(sharegpt(20))
        rows[3]["conversations"][0]["value"] = "word " * 1500
        (folder / "long.json").write_text(json.dumps(rows))
        short = prepared(folder, load={"path": "long.json"})
        assert max(p.input_tokens for p in short.setup.plan.rounds[0].prompts) < 100
        changes = {"path": "long.json", "max_prompt_tokens": 2000, "num_prompts": 18}
        found = prepared(folder, load=changes)
        (measured,) = found.setup.plan.rounds
        assert measured.client_format == "custom"
        assert found.setup.plan.warmup is not None
        sent = [prompt.input_tokens for prompt in (*measured.prompts, *found.setup.plan.warmup.prompts)]
        assert max(sent) == 1500

    def test_prompts_fit_the_smallest_window_that_is_searched(self, folder: Path) -> None:
        content = fake_study.study(
            folder,
            search_space=space(max_model_len=choice(256, 4096)),
            baseline={"max-model-len": 4096},
            load={"num_prompts": 100, "output_tokens": 100},
        )
        content["serve"]["flags"] = {}
        path = fake_study.write(folder / "study.yaml", content)
        with Gpus() as gpus:
            found = prepare(load(path), path, folder / "results", gpus)
        assert all(p.input_tokens + p.output_tokens <= 256 for p in found.setup.plan.rounds[0].prompts)

    def test_own_prompts(self, folder: Path) -> None:
        lines = [json.dumps({"prompt": f"Count to {n}", "output_tokens": 3 + n % 2}) for n in range(20)]
        (folder / "own.jsonl").write_text("\n".join(lines))
        found = prepared(folder, load={"dataset": "custom", "path": "own.jsonl", "output_tokens": None})
        assert {prompt.output_tokens for prompt in found.setup.plan.rounds[0].prompts} == {3, 4}


class TestWarnings:
    def test_a_window_far_above_the_longest_request(self, folder: Path) -> None:
        found = prepared(folder, serve={"flags": {"max-model-len": 131072}})
        (warning,) = [notice for notice in found.notices if "131,072" in notice]
        assert "the longest request of this load has" in warning
        assert not any("the longest request" in notice for notice in prepared(folder, **narrow(folder)).notices)

    def test_a_percentile_that_the_prompts_do_not_carry(self, folder: Path) -> None:
        found = prepared(folder, objective={"weights": {"p99_ttft_ms": 1.0}})
        (warning,) = [notice for notice in found.notices if "p99" in notice and notice.startswith("warning")]
        assert "12 prompts" in warning
        assert "1000" in warning


def narrow(folder: Path) -> dict[str, Any]:
    """A load whose requests nearly fill a small window."""
    (folder / "full.json").write_text(sharegpt(30, "word " * 300))
    return {"serve": {"flags": {"max-model-len": 1024}}, "load": {"path": "full.json"}}
