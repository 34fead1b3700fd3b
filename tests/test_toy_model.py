"""The toy model: built once, whole or not there, and loadable."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "build_toy_model.py"

LOAD = """
import sys
from sweep.vllm_cpu import hide_broken_torchvision
hide_broken_torchvision()
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = (kind.from_pretrained(sys.argv[1]) for kind in (AutoModelForCausalLM, AutoTokenizer))
chat = [{"role": "user", "content": "Hello \\u00e9"}]
inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
assert tokenizer.decode(inputs.input_ids[0]) == "<|im_start|>user\\nHello \\u00e9<|im_end|>\\n<|im_start|>assistant\\n"
output = model.generate(**inputs, max_new_tokens=64, do_sample=True)
assert output.shape[1] == inputs.input_ids.shape[1] + 64, "ended early"
assert model.config.vocab_size == len(tokenizer)
keys_and_values = 2 * model.config.num_hidden_layers * model.config.num_key_value_heads * model.config.head_dim
assert keys_and_values * model.dtype.itemsize == 4096
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = run(str(SCRIPT), str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.strip() == f"{tmp_path} exists and is not a toy model; name another folder"
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_finished_model_is_left_as_it_is(tmp_path: Path) -> None:
    script = runpy.run_path(str(SCRIPT))
    (tmp_path / script["MARKER"]).write_text(json.dumps({"recipe": script["_recipe"]()}))
    script["build"](tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [script["MARKER"]]


@pytest.mark.vllm
def test_it_is_built_whole_replaces_an_older_one_and_generates(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="vLLM brings tokenizers, torch and transformers")
    out = tmp_path / "toy"
    out.mkdir()
    (out / "toy_model.json").write_text('{"recipe": "older"}')
    (out / "left.over").write_text("")
    done = run(str(SCRIPT), str(out))
    assert done.returncode == 0, done.stderr
    assert {path.name for path in out.iterdir()} == {
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "toy_model.json")
    }
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]
    loaded = run("-c", LOAD, str(out))
    assert loaded.returncode == 0, loaded.stderr
