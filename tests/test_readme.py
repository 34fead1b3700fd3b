"""README.md says what the code does."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_tables_are_those_of_the_code() -> None:
    fresh = runpy.run_path(str(ROOT / "scripts" / "readme_tables.py"))["with_tables"](README)
    assert fresh == README, "run python scripts/readme_tables.py"


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    return [line.split("  #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("command", commands())
def test_commands_name_what_is_there(command: str) -> None:
    words = shlex.split(command)
    for word in words:
        if word.startswith(("scripts/", "search_spaces/")):
            assert (ROOT / word).exists(), f"{command}: no {word}"
    if "-m" in words and words[words.index("-m") + 1].startswith("sweep."):
        module = words[words.index("-m") + 1].replace(".", "/")
        assert (ROOT / f"{module}.py").exists() or (ROOT / module / "__main__.py").exists(), command


def test_modules_of_the_layout_exist() -> None:
    layout = README.split("## How it works")[1]
    named = set(re.findall(r"`(sweep/[a-z_/]+)`", layout))
    assert named, "the layout names no module"
    for name in named:
        assert (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file(), name
