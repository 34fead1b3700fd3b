"""Whole studies through `python -m sweep.tune`, on the executable fake of vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

TESTS = Path(__file__).parent
FAKE = str(TESTS / "fake_vllm.py")

# A landscape with an optimum at 64 sequences and 0.8: smooth, a little noisy, the same on every run.
LANDSCAPE = {
    "both": {
        "max-num-seqs": {"best": 64, "weight": 0.3, "log": True, "default": 256},
        "gpu-memory-utilization": {"best": 0.8, "weight": 2.0, "scale": 1.0, "default": 0.92},
    },
    "noise": 0.02,
}

SPACE: dict[str, dict[str, Any]] = {
    "parameters": {
        "max-num-seqs": {"type": "int", "low": 8, "high": 256, "step": 8},
        "gpu-memory-utilization": {"type": "float", "low": 0.5, "high": 0.95, "step": 0.05},
    }
}


def make_model(folder: Path) -> Path:
    """A folder that passes for a model: a configuration and a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"architectures": ["Fake"]}')
    return folder


def study(folder: Path, *, fake: Mapping[str, Any] | None = None, **changes: Mapping[str, Any]) -> dict[str, Any]:
    """A study of the fake; `changes` are merged into its sections."""
    words = [sys.executable, FAKE]
    behaviour = {"ttft_ms": 2, "itl_ms": 0.2, "seed": 1, "landscape": LANDSCAPE, **(fake or {})}
    content: dict[str, Any] = {
        "study": {
            "name": "night",
            "seed": 3,
            "trials": 4,
            "results": str(folder / "results"),
            "retry_wait_s": 0,
            "sampler": "random",  # no twin of a fake
            "equivalence": False,  # the landscape follows the flags, whether they bind or not
        },
        "model": {"path": str(make_model(folder / "model")), "served_name": "fake"},
        "serve": {
            "command": [*words, "serve"],
            "flags": {"max-model-len": 4096},
            "env": {"FAKE_VLLM": json.dumps(behaviour)},
            "startup_timeout_s": 300,
            "stop_timeout_s": 2,
        },
        "search_space": SPACE,
        "load": {
            "command": [*words, "bench", "serve"],
            "output_tokens": 4,
            "num_prompts": 12,
            "rounds": 1,
            "held_out_share": 0,
            "warmup_prompts": 2,
            "request_timeout_s": 120,
            "env": {"FAKE_VLLM": json.dumps(behaviour)},
        },
        "baseline": {"max-num-seqs": 8, "gpu-memory-utilization": 0.5},
        "confirm": {"candidates": 0, "drift": False, "second_looks": 0},
        "resources": {"gpus": 0},
    }
    for section, values in changes.items():
        content[section] = {**content.get(section, {}), **values}
    return content


def write(path: Path, content: Mapping[str, Any]) -> Path:
    """The study as a file."""
    path.write_text(yaml.safe_dump(dict(content), sort_keys=False))
    return path


def environment(**extra: str) -> dict[str, str]:
    """For `python -m sweep.tune` in a process of its own."""
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    path = os.pathsep.join(part for part in (str(TESTS.parent), os.environ.get("PYTHONPATH", "")) if part)
    return {**os.environ, **quiet, "PYTHONPATH": path, **extra}


def tune(path: Path, *options: str, timeout_s: float = 400.0, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m sweep.tune` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "sweep.tune", str(path), *options],
        cwd=path.parent,
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def processes_with(text: str) -> list[str]:
    """Command lines of live processes that contain `text`; the fake's paths make them ours."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in words:
                found.append(words)
    return found


def json_lines(output: str) -> list[dict[str, Any]]:
    """The objects of `--json`."""
    return [json.loads(line) for line in output.splitlines() if line]


def flags_of(trials: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """The points of trials, in their order."""
    return [tuple(trial["flags"].values()) for trial in trials]
