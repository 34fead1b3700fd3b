"""Every shipped study file: loaded, sampled, rendered as a command of the installed vLLM's own words."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sweep.config import StudyConfig, load
from sweep.flags import CommandHelp, check_flags, parse_help, render
from sweep.loadgen import check_load_flags
from sweep.metrics import samples_needed
from sweep.objective import Objective
from sweep.search_space import SearchSpace

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "search_spaces").glob("*.yaml"))
SAMPLES = 200


@pytest.fixture(scope="module")
def server_help() -> CommandHelp:
    """What vLLM 0.32 says of `serve`."""
    return parse_help((ROOT / "tests" / "data" / "help_serve_0.32.txt").read_text())


def space_of(config: StudyConfig) -> SearchSpace:
    return SearchSpace.from_config(config.search_space, config.serve.flags)


def test_the_files_of_the_issue_are_there() -> None:
    assert {"cpu_demo.yaml", "a6000x4_qwen32b.yaml"} <= {path.name for path in FILES}
    assert any("24gb" in path.name for path in FILES)
    assert any("80gb" in path.name for path in FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
class TestShipped:
    def test_samples_keep_the_constraints_and_become_commands(self, path: Path, server_help: CommandHelp) -> None:
        config = load(path)
        space = space_of(config)
        draw = random.Random(config.study.seed)
        keys = set()
        for _ in range(SAMPLES):
            flags = space.sample(draw)
            assert space.violated(flags) is None
            assert space.contains(flags)
            keys.add(space.key(flags))
            words = render({**config.serve.flags, **flags}, server_help)
            for name, value in flags.items():
                assert (f"--{name}" in words) is (value is not None and value is not False)
                if value is not None and not isinstance(value, bool):
                    text = words[words.index(f"--{name}") + 1]
                    assert float(text) == value if isinstance(value, (int, float)) else text == value
            assert all(word.startswith("--") or not word.startswith("-") for word in words)
        assert len(keys) > min(SAMPLES / 4, (space.size() or SAMPLES) - 1)

    def test_each_range_says_why(self, path: Path) -> None:
        lines = path.read_text().splitlines()
        for name in load(path).search_space.parameters:
            place = next(place for place, line in enumerate(lines) if line.startswith(f"    {name}: {{type:"))
            assert "#" in lines[place] or lines[place - 1].lstrip().startswith("#"), f"{name} has no comment"

    def test_every_flag_is_one_that_vllm_has(self, path: Path, server_help: CommandHelp) -> None:
        config = load(path)
        check_flags(config.serve.flags, server_help, what="serve.flags")
        check_flags(list(config.search_space.parameters), server_help, what="search_space")
        draw = random.Random(0)
        for _ in range(20):
            check_flags(space_of(config).sample(draw), server_help, what="a sample")
        check_load_flags(config.load.flags, what="load.flags")

    def test_baseline_keeps_the_constraints(self, path: Path) -> None:
        config = load(path)
        assert space_of(config).violated(config.baseline_flags()) is None

    def test_batched_tokens_are_never_fewer_than_sequences(self, path: Path) -> None:
        # vLLM refuses the reverse, whatever the file says of it.
        config = load(path)
        space = space_of(config)
        draw = random.Random(1)
        for _ in range(SAMPLES):
            flags = {**config.serve.flags, **space.sample(draw)}
            tokens, seqs = flags["max-num-batched-tokens"], flags["max-num-seqs"]
            assert isinstance(tokens, int)
            assert isinstance(seqs, int)
            assert tokens >= seqs

    def test_the_load_carries_the_percentiles_it_is_judged_by(self, path: Path) -> None:
        config = load(path)
        if path.stem.startswith("cpu_"):  # they say so themselves: minutes on 2 cores
            assert "p95 to mean little" in path.read_text()
            return
        objective = Objective.of(config.objective.preset, config.objective.weights, config.objective.slo)
        for percentile in objective.percentiles_needed():
            assert config.load.num_prompts >= samples_needed(percentile), f"p{percentile:g}"

    def test_a_reply_fits_the_window_beside_its_prompt(self, path: Path) -> None:
        config = load(path)
        window = config.serve.flags["max-model-len"]
        assert isinstance(window, int)
        assert config.load.output_tokens is not None
        assert config.load.longest_prompt_tokens is not None
        # The load client itself drops prompt and reply beyond 2,048 tokens.
        assert window >= min(2048, config.load.longest_prompt_tokens + config.load.output_tokens)


def test_first_users_own_case() -> None:
    config = load(ROOT / "search_spaces" / "a6000x4_qwen32b.yaml")
    assert dict(config.baseline) == {
        "gpu-memory-utilization": 0.7,
        "max-num-seqs": 32,
        "max-num-batched-tokens": 131072,
        "block-size": 32,
    }
    assert config.serve.flags["max-model-len"] == 65536
    assert config.serve.flags["tensor-parallel-size"] == 4
    assert config.serve.flags["enable-chunked-prefill"] is True
    assert config.served_name == "qwen32b"
    assert config.load.output_tokens == 1024
    assert config.load.request_rate == 8
    assert {95.0, 99.0} <= set(config.load.percentiles)
    assert config.gpus() == 4
