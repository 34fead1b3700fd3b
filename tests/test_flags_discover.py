"""What the installed vLLM accepts, asked of itself and kept by version."""

from __future__ import annotations

import os
import pickle
import shlex
import stat
import sys
from pathlib import Path

import pytest
from waiting import until

from sweep.flags import discover

DATA = Path(__file__).with_name("data")
FAKE = (sys.executable, str(Path(__file__).with_name("fake_vllm.py")))


def command(folder: Path, body: str) -> tuple[str, ...]:
    """An executable that logs each call to `calls` and then does `body` (shell; `$*` are its words)."""
    path = folder / "vllm"
    path.write_text(f'#!/bin/sh\necho "$*" >> {shlex.quote(str(folder / "calls"))}\n{body}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return (str(path),)


def calls(folder: Path) -> list[str]:
    return sorted((folder / "calls").read_text().splitlines())


HELP_SHELL = f"""
case "$*" in
  --version) echo noise; echo 0.32.0;;
  "serve --help=all") cat {shlex.quote(str(DATA / "help_serve_0.32.txt"))};;
  "bench serve --help=all") cat {shlex.quote(str(DATA / "help_bench_0.32.txt"))};;
  *) exit 2;;
esac
"""


def test_an_answer_is_kept_by_version(tmp_path: Path) -> None:
    vllm = command(tmp_path, HELP_SHELL)
    asked = ([*vllm, "serve"], [*vllm, "bench", "serve"])
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    first = discover(*asked, env=env)
    assert first.version == "0.32.0"
    assert first.notice is None
    assert first.server is not None
    assert first.client is not None
    assert "max-num-seqs" in first.server
    assert "num-prompts" in first.client
    assert calls(tmp_path) == ["--version", "bench serve --help=all", "serve --help=all"]

    (tmp_path / "calls").write_text("")
    assert discover(*asked, env=env) == first
    assert calls(tmp_path) == ["--version"]
    assert discover(*asked, env=env, version="0.32.0") == first
    assert calls(tmp_path) == ["--version"]
    assert discover(*asked, env=env, version="0.33.0").version == "0.33.0"
    assert calls(tmp_path) == ["--version", "bench serve --help=all", "serve --help=all"]


@pytest.mark.parametrize("content", ["", "{", "[]", "[1]", '[{"name": "port"}]', '{"a": 1}', "\0"])
def test_a_broken_cache_is_asked_again(tmp_path: Path, content: str) -> None:
    vllm = command(tmp_path, HELP_SHELL)
    cache = tmp_path / "cache"
    asked = ([*vllm, "serve"], [*vllm, "bench", "serve"])
    first = discover(*asked, env=os.environ, cache_folder=cache, version="1")
    kept = list(cache.iterdir())
    assert len(kept) == 2
    for path in kept:
        path.write_text(content)
    assert discover(*asked, env=os.environ, cache_folder=cache, version="1") == first
    assert len(calls(tmp_path)) == 4


def test_a_cache_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    vllm = command(tmp_path, HELP_SHELL)
    (tmp_path / "cache").write_text("a file where the folder should be")
    asked = ([*vllm, "serve"], [*vllm, "bench", "serve"])
    dialect = discover(*asked, env=os.environ, cache_folder=tmp_path / "cache", version="1")
    assert dialect.server is not None


def test_a_search_result_is_not_taken_for_the_whole_help(tmp_path: Path) -> None:
    # 0.10.1 searches its flags for the word behind "--help=" and prints everything on a plain --help.
    whole = shlex.quote(str(DATA / "help_serve_0.32.txt"))
    body = f"""
case "$*" in
  *--help=all) printf 'Parameters matching all:\\n  --allow-credentials  text\\n';;
  *--help) cat {whole} {shlex.quote(str(DATA / "help_bench_0.32.txt"))};;
esac
"""
    vllm = command(tmp_path, body)
    dialect = discover([*vllm, "serve"], [*vllm, "bench", "serve"], env=os.environ, cache_folder=tmp_path, version="1")
    assert dialect.notice is None
    assert dialect.server is not None
    assert "max-num-seqs" in dialect.server


def test_a_command_that_cannot_answer_gives_a_notice(tmp_path: Path) -> None:
    vllm = command(tmp_path, "exit 3")
    dialect = discover([*vllm, "serve"], ["/absent/vllm", "bench", "serve"], env=os.environ, cache_folder=tmp_path)
    assert (dialect.version, dialect.server, dialect.client) == (None, None, None)
    assert dialect.notice is not None
    assert "\n" not in dialect.notice
    assert "exit code 3" in dialect.notice
    assert "no answer" in dialect.notice


def test_a_command_that_hangs_is_cut_with_its_children(tmp_path: Path) -> None:
    vllm = command(tmp_path, f"sleep 60 & echo $! > {shlex.quote(str(tmp_path / 'child'))}; wait")
    dialect = discover(vllm, vllm, env=os.environ, cache_folder=tmp_path, timeout_s=1.5, version="1")
    assert (dialect.server, dialect.client) == (None, None)
    child = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"
    until(lambda: not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z", "the child to end")


def test_a_command_of_an_unknown_version_is_never_kept(tmp_path: Path) -> None:
    vllm = command(tmp_path, f"cat {shlex.quote(str(DATA / 'help_serve_0.32.txt'))}")
    cache = tmp_path / "cache"
    # Not ending in `serve`, it has no --version that could be asked.
    dialect = discover([*vllm, "api_server"], [*vllm, "api_server"], env=os.environ, cache_folder=cache)
    assert dialect.version is None
    assert dialect.server is not None
    assert dialect.client is None
    assert not cache.exists()


def test_the_fake_answers_like_vllm(tmp_path: Path) -> None:
    dialect = discover([*FAKE, "serve"], [*FAKE, "bench", "serve"], env=os.environ, cache_folder=tmp_path)
    assert pickle.loads(pickle.dumps(dialect)) == dialect  # it travels to workers
    assert dialect.version == "0.32.0"
    assert dialect.server is not None
    assert dialect.client is not None
    assert dialect.server.options["enable-prefix-caching"].negatable
    assert not dialect.client.options["save-result"].takes_value
