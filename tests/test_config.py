"""Study files: what is refused, with which words, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweep.config import load, loads, parse_duration_s
from sweep.errors import ConfigError

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
        ("  trials: 12", "  trials: 0", 3, "study.trials", "greater than or equal to 1"),
        ("  trials: 12", "  trials: 1\n  trials: 2", 4, "study.trials", "stands twice"),
        ("  name: night", "  name: ../night", 2, "study.name", "plain folder name"),
        ("  name: night", "  nmae: night", 2, "study.nmae", "did you mean 'name'?"),
        (
            "low: 8, high: 64",
            "low: 80, high: 64",
            12,
            "search_space.parameters.max-num-seqs",
            "low 80 is above high 64",
        ),
        (
            "low: 8, high: 64, step: 8",
            "low: 8, high: 64, step: 8, log: true",
            12,
            "search_space.parameters.max-num-seqs",
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
        ("    max_model_len: 4096", "    max_num_seqs: 8", None, "", "max-num-seqs is also fixed"),
        ("  max-num-seqs: 32", "  max-seqs: 32", None, "", "max-seqs is not searched"),
        ("    max_model_len: 4096", "    port: 8000", None, "", "port is set by sweep"),
        ("[16, 32, null]", "[16, 16]", 14, "search_space.parameters.block-size.values", "stands twice"),
        ("    - max-num-seqs >= 8", "    - max-num-seqs >>= 8", 15, "search_space.constraints", "max-num-seqs >>= 8"),
        ("baseline:\n", "load: {request_rate: -1}\nbaseline:\n", 17, "load.request_rate", "greater than 0"),
        ("baseline:\n", "load: {request_rate: fast}\nbaseline:\n", 17, "load.request_rate", "not 'fast'"),
        (
            "baseline:\n",
            "objective: {weights: {p95_tfft_ms: 1}}\nbaseline:\n",
            17,
            "objective.weights",
            "'p95_ttft_ms'",
        ),
        ("baseline:\n", "objective: {weights: {p95_ttft_ms: -1}}\nbaseline:\n", 17, "objective", "above zero"),
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


@pytest.mark.parametrize(
    "text", ["", "- a\n- b\n", "study: [", "a: &x [*x]\n", "!!python/object/apply:os.system ['true']\n"]
)
def test_what_is_no_study_file_is_said_in_one_line(text: str) -> None:
    assert "night.yaml" in str(refusal(text))


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


def test_the_largest_trial_of_a_searched_parallel_size() -> None:
    searched = GOOD.replace("    tensor-parallel-size: 2\n", "").replace(
        "  constraints:", "    tensor-parallel-size: {type: choice, values: [1, 2, 4]}\n  constraints:"
    )
    config = loads(searched, Path("x.yaml"))
    assert (config.gpus(config.baseline_flags()), config.most_gpus()) == (1, 4)
