"""Study files: what is refused, with which words, and where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sweep.config import count_of, load, loads, located, parse_duration_s
from sweep.errors import ConfigError, FlagError

GOOD = """\
study:
  name: night
  trials: 12
model:
  path: org/model
serve:
  flags:
    tensor-parallel-size: 2
    max_model_len: 4096
search_space:
  parameters:
    max-num-seqs: {type: int, low: 8, high: 64, step: 8}
    gpu-memory-utilization: {type: float, low: 0.5, high: 0.9, step: 0.1}
    block-size: {type: choice, values: [16, 32, null]}
  constraints:
    - max-num-seqs >= 8
baseline:
  max-num-seqs: 32
"""


def refusal(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        loads(text, Path("night.yaml"))
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_good_file_gives_every_value() -> None:
    config = loads(GOOD, Path("night.yaml"))
    assert config.study.trials == 12
    assert config.served_name == "org/model"
    assert config.serve.flags == {"tensor-parallel-size": 2, "max-model-len": 4096}
    assert config.baseline_flags() == {"max-num-seqs": 32, "gpu-memory-utilization": None, "block-size": None}
    assert config.gpus() == 2
    assert config.load.request_rate is None


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "words"),
    [
        ("  trials: 12", "  trails: 12", 3, "study.trails", "did you mean 'trials'?"),
        ("  trials: 12", "  trials: many", 3, "study.trials", "not 'many'"),
        ("  trials: 12", "  trials: 0", 3, "study.trials", "must be at least 1, not 0"),
        ("  trials: 12", "  trials: 1\n  trials: 2", 4, "study.trials", "stands twice"),
        ("  name: night", "  name: ../night", 2, "study.name", "plain folder name"),
        ("  name: night", "  nmae: night", 2, "study.nmae", "did you mean 'name'?"),
        (
            "low: 8, high: 64",
            "low: 80, high: 64",
            12,
            "search_space.parameters.max-num-seqs.low",
            "low 80 is above high 64",
        ),
        (
            "low: 8, high: 64, step: 8",
            "low: 8, high: 64, step: 8, log: true",
            12,
            "search_space.parameters.max-num-seqs.log",
            "log and step",
        ),
        (
            "low: 8, high: 64, step: 8",
            "low: 8, hihg: 64",
            12,
            "search_space.parameters.max-num-seqs.hihg",
            "did you mean 'high'?",
        ),
        ("{type: int, low: 8", "{low: 8", 12, "search_space.parameters.max-num-seqs", "needs a type"),
        ("    max_model_len: 4096", "    max_num_seqs: 8", 12, "search_space.parameters.max-num-seqs", "also fixed"),
        ("  max-num-seqs: 32", "  max-seqs: 32", 18, "baseline.max-seqs", "did you mean 'max-num-seqs'?"),
        ("    max_model_len: 4096", "    port: 8000", 9, "serve.flags.port", "is set by sweep"),
        ("[16, 32, null]", "[16, 16]", 14, "search_space.parameters.block-size.values.1", "16 stands twice"),
        ("    - max-num-seqs >= 8", "    - max-num-seqs >>= 8", 16, "search_space.constraints.0", "max-num-seqs >>= 8"),
        ("baseline:\n", "load: {request_rate: -1}\nbaseline:\n", 17, "load.request_rate", "above 0"),
        ("baseline:\n", "load: {request_rate: fast}\nbaseline:\n", 17, "load.request_rate", "not 'fast'"),
        ("baseline:\n", "load: {request_rate: [4, fast]}\nbaseline:\n", 17, "load.request_rate.1", "not 'fast'"),
        ("baseline:\n", "load: {request_rate: [4, 0]}\nbaseline:\n", 17, "load.request_rate.1", "above 0"),
        ("baseline:\n", "load: {request_rate: [4, 4.0]}\nbaseline:\n", 17, "load.request_rate.1", "4 stands twice"),
        ("baseline:\n", "load: {request_rate: []}\nbaseline:\n", 17, "load.request_rate", "at least one entry"),
        ("baseline:\n", "load: {request_rate: true}\nbaseline:\n", 17, "load.request_rate", "not true"),
        ("baseline:\n", "load: {request_rate: auto}\nbaseline:\n", 17, "load.request_rate", "calibrate: true"),
        (
            "baseline:\n",
            "load: {request_rate: [4, 8], num_prompts: 5}\nbaseline:\n",
            17,
            "load.request_rate",
            "each of 3 rounds at each of 2 rates needs a prompt of its own, but num_prompts is 5",
        ),
        ("baseline:\n", "load: {knee_share: 0}\nbaseline:\n", 17, "load.knee_share", "above 0"),
        (
            "baseline:\n",
            "objective: {weights: {p95_tfft_ms: 1}}\nbaseline:\n",
            17,
            "objective.weights.p95_tfft_ms",
            "'p95_ttft_ms'",
        ),
        (
            "baseline:\n",
            "objective: {weights: {p95_ttft_ms: -1}}\nbaseline:\n",
            17,
            "objective.weights.p95_ttft_ms",
            "above zero",
        ),
        ("baseline:\n", "objective: {preset: fast}\nbaseline:\n", 17, "objective.preset", "'responsive'"),
    ],
)
def test_a_mistake_is_one_line_with_place_and_remedy(
    old: str, new: str, line: int | None, key: str, words: str
) -> None:
    assert old in GOOD
    error = refusal(GOOD.replace(old, new, 1))
    assert words in str(error)
    if line is not None:
        assert (error.line, error.key) == (line, key)


SEQS = "search_space.parameters.max-num-seqs"
UTILIZATION = "search_space.parameters.gpu-memory-utilization"
MODEL_LEN = ("    max_model_len: 4096", "serve.flags.max_model_len")


@pytest.mark.parametrize(
    ("old", "new", "where", "words"),
    [
        (
            "  trials: 12",
            "  trials: '12'",
            "3: study.trials",
            "needs a whole number, not '12'; write 12, without quotes",
        ),
        ("  trials: 12", "  trials: true", "3: study.trials", "needs a whole number, not true"),
        ("  name: night", "  name: 5", "2: study.name", "needs a text, not 5; put it in quotes"),
        ("  path: org/model", "  path: ''", "5: model.path", "is empty; name the model's folder, or its hub id"),
        ("  path: org/model", "  path:", "5: model.path", "is empty; name the model's folder, or its hub id"),
        ("  path: org/model", "  path: m\n  tokenizer: ' '", "6: model.tokenizer", "is empty"),
        ("  flags:", "  command: []\n  flags:", "7: serve.command", "is empty; give at least one entry"),
        ("  flags:", "  command: vllm serve\n  flags:", "7: serve.command", "needs a list, such as [a, b]"),
        (
            "  flags:",
            "  command: [nice, -n, 5]\n  flags:",
            "7: serve.command.2",
            "needs a text, not 5; put it in quotes",
        ),
        ("  flags:", "  env: {A: null}\n  flags:", "7: serve.env.A", "needs a text or number"),
        (
            MODEL_LEN[0],
            "    max_model_len: 2024-01-01",
            f"9: {MODEL_LEN[1]}",
            "needs a list, keys and values, a number",
        ),
        (MODEL_LEN[0], "    max_model_len: .inf", f"9: {MODEL_LEN[1]}", "needs a finite number, not inf"),
        (MODEL_LEN[0], "    max_model_len: 5\n    --max-model-len: 6", "10: serve.flags.--max-model-len", "set twice"),
        (MODEL_LEN[0], "    no-max-num-seqs: true", "9: serve.flags.no-max-num-seqs", "are one flag"),
        (
            "parallel-size: 2",
            "parallel-size: 0",
            "8: serve.flags.tensor-parallel-size",
            "whole number of devices, not 0",
        ),
        ("{type: int, low: 8, high: 64, step: 8}", "5", f"12: {SEQS}", "needs keys and values below it, not 5"),
        (
            "type: int, low: 8",
            "type: intt, low: 8",
            f"12: {SEQS}",
            "needs a type: int, float, choice or bool, not intt",
        ),
        ("step: 8}", "step: 100}", f"12: {SEQS}.step", "step 100 is wider than the range"),
        ("low: 0.5", "low: 1e-4", "13: search_space.parameters.gpu-memory-utilization.low", "write 0.0001, without"),
        ("[16, 32, null]", "[[1]]", "14: search_space.parameters.block-size.values.0", "needs a number, a text, true"),
        ("[16, 32, null]", "[]", "14: search_space.parameters.block-size.values", "is empty; give at least one entry"),
        ("    - max-num", "    - 5\n    - max-num", "16: search_space.constraints.0", "needs a text, not 5"),
        ("  max-num-seqs: 32", "  max-num-seqs: [1, 2]", "18: baseline.max-num-seqs", "needs a number, a text, true"),
        ("  max-num-seqs: 32", "  max-num-seqs: lots", "18: baseline.max-num-seqs", "a whole number is searched"),
        ("  max-num-seqs: 32", "  max-num-seqs: 32\nload: 7", "19: load", "needs keys and values below it, not 7"),
        (
            "  max-num-seqs: 32",
            "  max-num-seqs: 32\nload: {percentiles: [50, 100]}",
            "19: load.percentiles.1",
            "below 100",
        ),
        (
            "  max-num-seqs: 32",
            "  max-num-seqs: 32\nload: {dataset: custom}",
            "19: load.dataset",
            "needs a path beside it",
        ),
        (
            "  max-num-seqs: 32",
            "  max-num-seqs: 32\nobjective:\n  slo:\n    p95_ttft_ms: 0",
            "21: objective.slo.p95_ttft_ms",
            "must be above zero",
        ),
        ("low: 0.5", "low: 50%", f"13: {UTILIZATION}.low", "needs a number, not '50%'; write 0.5 for 50 %"),
        ("low: 0.5, high: 0.9", "low: 50, high: 90", f"13: {UTILIZATION}.low", "at most 1, not 50.0; write 0.5"),
        ("low: 0.5", "low: 0.0", f"13: {UTILIZATION}.low", "above 0 and at most 1, not 0.0"),
        (MODEL_LEN[0], "    max_model_len: 4,096", f"9: {MODEL_LEN[1]}", "above 0, not '4,096'; write 4096, without"),
        (MODEL_LEN[0], "    max_model_len: 0", f"9: {MODEL_LEN[1]}", "needs a whole number above 0, not 0"),
        (MODEL_LEN[0], "    max_model_len: true", f"9: {MODEL_LEN[1]}", "needs a whole number above 0, not true"),
        ("[16, 32, null]", "[16, '32']", "14: search_space.parameters.block-size.values.1", "write 32, without quotes"),
        ("type: int, low: 8", "type: int, low: 0", f"12: {SEQS}.low", "needs a whole number above 0, not 0"),
        ("type: int, low: 8", "type: float, low: 8", f"12: {SEQS}", "a whole number: search it as int or choice"),
        ("{type: int, low: 8, high: 64, step: 8}", "{type: bool}", f"12: {SEQS}", "is a number: search it as int"),
        ("  max-num-seqs: 32", "  max-num-seqs: 0", "18: baseline.max-num-seqs", "whole number above 0, not 0"),
        (
            "  max-num-seqs: 32",
            "  max-num-seqs: 32\n  gpu-memory-utilization: 90",
            "19: baseline.gpu-memory-utilization",
            "a share of a device's memory, above 0 and at most 1, not 90; write 0.9",
        ),
        (
            "  max-num-seqs: 32",
            "  max-num-seqs: 32\nload: {percentiles: [0.95]}",
            "19: load.percentiles.0",
            "almost the smallest value; write 95 for p95",
        ),
        (
            "  max-num-seqs: 32",
            "  max-num-seqs: 32\nobjective: {weights: {p0.95_ttft_ms: 1}}",
            "19: objective.weights.p0.95_ttft_ms",
            "did you mean 'p95_ttft_ms'?",
        ),
        (
            "  max-num-seqs: 32",
            "  max-num-seqs: 32\nobjective: {slo: {p95_ttft_ms: 200ms}}",
            "19: objective.slo.p95_ttft_ms",
            "not '200ms'; write the number alone, the unit is given",
        ),
        (
            "  max-num-seqs: 32",
            "  max-num-seqs: 32\nload: {held_out_share: 30}",
            "19: load.held_out_share",
            "must be below 1, not 30; 30 % is 0.3",
        ),
        ("[16, 32, null]", "[16, 16.0]", "14: search_space.parameters.block-size.values.1", "16.0 stands twice"),
        ("  trials: 12", "  trials: 012", "3: study.trials", "in base 8; write it without the zero in front"),
        (
            "  trials: 12",
            "  trials: 12\n  time_budget: 8:00",
            "4: study.time_budget",
            "in base 60; write a plain number",
        ),
        ("  trials: 12", "\u00a0 trials: 12", r"3: '\xa0 trials'", "looks like a blank and is none (U+00A0)"),
        ("  flags:", "  command: nice vllm serve\n  flags:", "7: serve.command", "; write [nice, vllm, serve]"),
        (
            "  constraints:\n    - max-num-seqs >= 8",
            "  constraints: max-num-seqs >= 8",
            "15: search_space.constraints",
            '; write ["max-num-seqs >= 8"]',
        ),
        (
            "  max-num-seqs: 32",
            "  max-num-seqs: 32\nload: {dataset: custom, path: p, salvage: true}",
            "19: load.salvage",
            "is for ShareGPT files",
        ),
        (
            "  max-num-seqs: 32",
            "  max-num-seqs: 32\nload: {request_rate: '4'}",
            "19: load.request_rate",
            "not '4'; write 4, without quotes",
        ),
        (MODEL_LEN[0], "    - --a", "9", "is not valid YAML: the line does not belong where it stands"),
        ("study:\n", "1: 2\nstudy:\n", "1: 1", "unknown key; known here: study, model"),
        ("study:\n  name: night\n  trials: 12", "study: [a]", "1: study", "needs keys and values below it, not ['a']"),
    ],
)
def test_a_mistake_names_its_line_and_key_in_plain_words(old: str, new: str, where: str, words: str) -> None:
    assert old in GOOD
    text = str(refusal(GOOD.replace(old, new, 1)))
    assert text.startswith(f"night.yaml:{where}: ")
    assert words in text
    assert not re.search(r"input|valid (dict|tuple|str|int)|instance|tuple|datetime", text.lower())


@pytest.mark.parametrize(
    ("value", "length"),
    [("4096", 4096), ("32k", 32_000), ("25.6k", 25_600), ("32K", 32_768), (4096, 4096), ("auto", None), (True, None)],
)
def test_counts_are_read_as_vllm_reads_them(value: object, length: int | None) -> None:
    assert count_of(value) == length


@pytest.mark.parametrize("value", ["32K", "32k", "auto", "-1", "4096"])
def test_what_vllm_reads_as_a_length_is_taken(value: str) -> None:
    config = loads(GOOD.replace("max_model_len: 4096", f"max_model_len: {value}"), Path("night.yaml"))
    assert str(config.serve.flags["max-model-len"]) == value


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("  trials: 12", "\ttrials: 12", 3, "a tab stands where only blanks may"),
        ("  trials: 12", "  trials:12", 3, "a key needs a colon and a blank behind it (key: value)"),
        ("  trials: 12", "   trials: 12", 3, "check the indentation"),
        ("  trials: 12", "  trials: *no", 3, "undefined alias 'no'"),
        ("  flags:\n", "  flags: &f\n    x: *f\n", None, "nested without end; does an alias (*name)"),
    ],
)
def test_what_is_wrong_with_the_yaml_is_said_with_its_usual_cause(
    old: str, new: str, line: int | None, words: str
) -> None:
    assert old in GOOD
    error = refusal(GOOD.replace(old, new, 1))
    assert (error.line, words in str(error)) == (line, True), str(error)


def test_a_list_or_mapping_whose_entries_are_commented_out_is_empty() -> None:
    text = re.sub(r"(  flags:\n)(    .*\n)+", r"  flags:\n  env:\n", GOOD).replace("    - max-num-seqs >= 8\n", "")
    config = loads(text + "objective: {slo: }\n", Path("night.yaml"))
    assert (config.serve.flags, config.serve.env, config.search_space.constraints) == ({}, {}, ())


class TestLocated:
    """What is found wrong after the file was read gets its line all the same."""

    @pytest.mark.parametrize(
        ("key", "where"),
        [
            ("serve.flags.max-model-len", "9: serve.flags.max_model_len"),
            ("search_space.constraints[0]", "16: search_space.constraints.0"),
            ("load.path", "1: load.path"),
            ("model.tokenizer", "4: model.tokenizer"),
            ("baseline", "17: baseline"),
        ],
    )
    def test_by_its_key(self, tmp_path: Path, key: str, where: str) -> None:
        path = tmp_path / "night.yaml"
        path.write_text(GOOD)
        with pytest.raises(ConfigError) as caught, located(path):
            raise FlagError("odd", key=key)
        assert str(caught.value) == f"{path}:{where}: odd"
        assert isinstance(caught.value, FlagError)

    def test_names_with_dots(self, tmp_path: Path) -> None:
        path = tmp_path / "night.yaml"
        path.write_text(GOOD.replace("    max_model_len: 4096", "    a.b: 1\n    a.b.c: 2"))
        with pytest.raises(ConfigError, match=r":10: serve\.flags\.a\.b\.c: odd$"), located(path):
            raise ConfigError("odd", key="serve.flags.a.b.c")

    def test_a_file_that_is_gone_by_then(self, tmp_path: Path) -> None:
        path = tmp_path / "night.yaml"
        with pytest.raises(ConfigError, match=r"night\.yaml: load\.path: odd$"), located(path):
            raise ConfigError("odd", key="load.path")


@pytest.mark.parametrize(
    "text", ["", "- a\n- b\n", "study: [", "a: &x [*x]\n", "!!python/object/apply:os.system ['true']\n"]
)
def test_what_is_no_study_file_is_said_in_one_line(text: str) -> None:
    assert "night.yaml" in str(refusal(text))


def test_what_is_no_number_is_not_to_be_written_without_quotes() -> None:
    text = str(refusal(GOOD + "load: {max_concurrency: inf}\n"))
    assert text.endswith("load.max_concurrency: needs a whole number, not 'inf'")


def test_aliases_that_repeat_without_measure_are_cut_short() -> None:
    levels = [f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]" for n in range(1, 9)]
    error = refusal("\n".join(["x0: &x0 [1, 2, 3]", *levels, GOOD]))
    assert "more than 100,000 values" in str(error)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        load(tmp_path)
    (tmp_path / "utf16.yaml").write_bytes(GOOD.encode("utf-16"))
    with pytest.raises(ConfigError, match="UTF-8"):
        load(tmp_path / "utf16.yaml")


@pytest.mark.parametrize(
    ("text", "seconds"), [("8h", 28800), ("1h30m", 5400), ("90m", 5400), ("45s", 45), (60, 60), ("2.5h", 9000)]
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "tomorrow", "-5m", 0, True, "5 parsecs"])
def test_no_durations(text: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration_s(text)


def test_gpus_follow_the_parallel_sizes_and_the_override() -> None:
    config = loads(GOOD.replace("max_model_len: 4096", "pipeline-parallel-size: 3"), Path("x.yaml"))
    assert config.gpus() == 6
    assert config.gpus({"data-parallel-size": 2}) == 12
    assert loads(GOOD + "resources: {gpus: 0}\n", Path("x.yaml")).gpus() == 0


def test_parallel_sizes_count_as_vllm_reads_them() -> None:
    def devices(size: str) -> int:
        return loads(GOOD.replace("parallel-size: 2", f"parallel-size: {size}"), Path("x.yaml")).gpus()

    assert [devices(size) for size in ("'4'", "4.0", "null")] == [4, 4, 1]


def test_the_largest_trial_of_a_searched_parallel_size() -> None:
    searched = GOOD.replace("    tensor-parallel-size: 2\n", "").replace(
        "  constraints:", "    tensor-parallel-size: {type: choice, values: [1, 2, 4]}\n  constraints:"
    )
    config = loads(searched, Path("x.yaml"))
    assert (config.gpus(config.baseline_flags()), config.most_gpus()) == (1, 4)


@pytest.mark.parametrize(
    ("written", "rates"),
    [
        ("8", (8.0,)),
        ("inf", (None,)),
        (".inf", (None,)),
        ("auto", (None,)),
        ("[4, 8.5]", (4.0, 8.5)),
        ("[8, inf]", (8.0, None)),
    ],
)
def test_request_rates(written: str, rates: tuple[float | None, ...]) -> None:
    load_keys = f"load: {{request_rate: {written}, calibrate: true}}\nbaseline:\n"
    assert loads(GOOD.replace("baseline:\n", load_keys), Path("study.yaml")).load.rates == rates
