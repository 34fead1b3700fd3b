"""Flags: typed as a person would, in the spelling of the installed vLLM, unknown ones refused."""

from __future__ import annotations

import argparse
import os
import pickle
import shlex
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sweep.errors import FlagError
from sweep.flags import CommandHelp, FlagValue, canonical, check_flags, discover, parse_help, printable, render
from sweep.vllm_cpu import installed

DATA = Path(__file__).with_name("data")
FAKE = (sys.executable, str(Path(__file__).with_name("fake_vllm.py")))


@pytest.fixture(scope="module")
def serve_help() -> CommandHelp:
    return parse_help((DATA / "help_serve_0.32.txt").read_text())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"max_num_seqs": 32}, "--max-num-seqs 32"),
        ({"--max-num-seqs": 32}, "--max-num-seqs 32"),
        ({"enable-prefix-caching": True}, "--enable-prefix-caching"),
        ({"enable-prefix-caching": False}, "--no-enable-prefix-caching"),
        ({"no-enable-prefix-caching": True}, "--no-enable-prefix-caching"),
        ({"no-enable-prefix-caching": False}, "--enable-prefix-caching"),
        ({"block-size": None}, ""),
        ({"gpu-memory-utilization": 0.85}, "--gpu-memory-utilization 0.85"),
        ({"gpu-memory-utilization": 0.1 + 0.2}, "--gpu-memory-utilization 0.3"),
        ({"gpu-memory-utilization": 0.6 + 5 * 0.05}, "--gpu-memory-utilization 0.85"),
        ({"request-rate": 8.0}, "--request-rate 8"),
        ({"request-rate": float("inf")}, "--request-rate inf"),
        ({"tiny": 1e-05}, "--tiny 0.00001"),
        ({"huge": 1e21}, "--huge 1000000000000000000000"),
        ({"seed": -1}, "--seed -1"),
        ({"temperature": -0.5}, "--temperature -0.5"),
        ({"chat-template": "-odd.jinja"}, "--chat-template=-odd.jinja"),
        ({"served-model-name": ""}, "--served-model-name ''"),
        ({"compilation-config": {"level": 3, "sizes": [1, 2]}}, """--compilation-config '{"level":3,"sizes":[1,2]}'"""),
        ({"compilation-config.use_inductor": True}, "--compilation-config.use_inductor true"),
        ({"lora-modules": ["a=b", "c=d"]}, "--lora-modules a=b --lora-modules c=d"),
        ({"lora-modules": []}, ""),
        ({"b": 1, "a": 2}, "--b 1 --a 2"),
    ],
)
def test_flags_are_written_as_typed(flags: dict[str, FlagValue], words: str) -> None:
    assert printable(render(flags)) == words


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"headless": False}, ""),
        ({"headless": True}, "--headless"),
        ({"enforce-eager": False}, "--no-enforce-eager"),
        ({"cudagraph-capture-sizes": [1, 2, 4]}, "--cudagraph-capture-sizes 1 2 4"),
        ({"cudagraph-capture-sizes": []}, ""),
        ({"compilation-config": ["a", "b"]}, "--compilation-config a --compilation-config b"),
        ({"kv-cache-dtype": "fp8"}, "--kv-cache-dtype fp8"),
        ({"hf-token": True}, "--hf-token"),
        ({"dtype": True}, "--dtype true"),
    ],
)
def test_the_help_decides_the_spelling(flags: dict[str, FlagValue], words: str, serve_help: CommandHelp) -> None:
    assert printable(render(flags, serve_help)) == words


def test_a_switch_named_no_something_is_left_out_when_false() -> None:
    client = parse_help((DATA / "help_bench_0.32.txt").read_text())
    assert render({"no-oversample": False}, client) == []
    assert render({"no-oversample": True}, client) == ["--no-oversample"]


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, {"a": float("nan")}, {"a": {1}}, [object()]])
def test_what_cannot_be_typed_is_refused(value: Any) -> None:
    with pytest.raises(FlagError, match="'x'"):
        render({"x": value})


def test_a_flag_in_two_spellings_is_refused() -> None:
    with pytest.raises(FlagError, match="twice"):
        render({"max_num_seqs": 1, "max-num-seqs": 2})


def test_argparse_reads_back_what_was_written() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--ratio", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--name")
    parser.add_argument("--many", nargs="+", type=int)
    parser.add_argument("--again", action="append")
    parser.add_argument("--on", action=argparse.BooleanOptionalAction)
    parser.add_argument("--off", action=argparse.BooleanOptionalAction)
    parser.add_argument("--plain", action="store_true")
    help_ = parse_help(parser.format_help())
    flags: dict[str, FlagValue] = {
        "ratio": 1e-7,
        "seed": -3,
        "name": "--x y'z\"",
        "many": [1, 2],
        "again": ["-a", "b"],
        "on": True,
        "off": False,
        "plain": False,
    }
    assert vars(parser.parse_args(render(flags, help_))) == flags


def test_a_shell_reads_the_printed_command_as_the_same_words() -> None:
    argv = ["printf", r"%s\n", "a b", '{"k":"$HOME"}', "it's", "*"]
    shown = subprocess.run(["sh", "-c", printable(argv)], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == argv[2:]
    assert shlex.split(printable(argv)) == argv


def test_canonical_keeps_the_keys_of_json_values() -> None:
    assert canonical("--compilation_config.cudagraph_mode") == "compilation-config.cudagraph_mode"


def test_help_is_read(serve_help: CommandHelp) -> None:
    options = serve_help.options
    assert len(options) == (DATA / "help_serve_0.32.txt").read_text().count("\n  --")
    assert options["tensor-parallel-size"].aliases == ("-tp",)
    assert serve_help.find("device-memory-utilization") is options["gpu-memory-utilization"]
    prefix = options["enable-prefix-caching"]
    assert (prefix.negatable, prefix.takes_value, prefix.aliases) == (True, False, ())
    assert options["enable-expert-parallel"].aliases == ("-ep",)
    assert options["chat-template-content-format"].choices == ("auto", "openai", "string")
    assert options["tokenizer-mode"].choices == ()  # a list of known words, others are taken
    assert options["port"].text == "(default: 8000)"
    traces = options["collect-detailed-traces"]
    assert (traces.many, traces.choices) == (True, ("all", "model", "worker", "None"))
    assert (options["hf-token"].value_optional, options["hf-token"].many) == (True, False)
    assert (options["headless"].takes_value, options["headless"].negatable) == (False, False)
    assert "help" not in serve_help
    assert "enable-prefix-cache" not in serve_help


def test_help_of_newer_argparse_is_read() -> None:
    # Python 3.13 writes the value once, behind the last name.
    help_ = parse_help("options:\n  -tp, --tensor-parallel-size N\n                        text\n  --x, --no-x  text\n")
    option = help_.options["tensor-parallel-size"]
    assert (option.takes_value, option.aliases, option.text) == (True, ("-tp",), "text")
    assert help_.options["x"].negatable


@pytest.mark.parametrize("text", ["", "<html>", "usage: x\n\nConfig Groups:\n  ModelConfig\n", "\0\xff"])
def test_text_without_options_gives_none(text: str) -> None:
    assert parse_help(text).options == {}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["max-num-seq"], "did you mean 'max-num-seqs'"),
        (["gpu-memory-utilisation"], "did you mean 'gpu-memory-utilization'"),
        (["enable-prefix-cache"], "did you mean 'enable-prefix-caching'"),
        (["tp"], "write 'tensor-parallel-size' for 'tp'"),
        (["no-headless"], "no flag 'no-headless'"),
        (["xyzzy"], "no flag 'xyzzy'$"),
        ({"headless": 1}, "switch"),
        ({"max-num-seqs": True}, "takes a value"),
        ({"kv-cache-dtype": "fp9"}, "cannot be 'fp9'; did you mean 'fp8'"),
        ({"chat-template-content-format": "zzz"}, "choose from auto, openai, string"),
        ({"collect-detailed-traces": ["model", "zzz"]}, "cannot be 'zzz'"),
    ],
)
def test_unknown_flags_and_values_are_refused(flags: Any, message: str, serve_help: CommandHelp) -> None:
    with pytest.raises(FlagError, match=r"^serve\.flags: .*" + message):
        check_flags(flags, serve_help, what="serve.flags")


@pytest.mark.parametrize(
    "flags",
    [
        ["max_num_seqs", "--port", "no-enable-prefix-caching", "device-memory-utilization"],
        ["compilation-config.cudagraph_mode", "compilation-config.sizes+"],
        {"kv-cache-dtype": "fp8", "max-model-len": "32k", "headless": False, "block-size": None, "hf-token": True},
        {"tokenizer-mode": "of_a_plugin", "collect-detailed-traces": ["model", "worker"]},
        {"max-num-seqs": argparse.Namespace(low=1, high=2)},  # a range to search: names alone are judged
    ],
)
def test_known_flags_pass(flags: Any, serve_help: CommandHelp) -> None:
    check_flags(flags, serve_help, what="serve.flags")


def test_nothing_known_nothing_refused() -> None:
    check_flags({"anything": 1}, None, what="serve.flags")


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
    began = time.monotonic()
    dialect = discover(vllm, vllm, env=os.environ, cache_folder=tmp_path, timeout_s=1.0, version="1")
    assert (dialect.server, dialect.client) == (None, None)
    assert time.monotonic() - began < 30.0  # not the sixty seconds of the sleep
    child = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"
    deadline = time.monotonic() + 5.0
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "the child of the cut command lives on"
        time.sleep(0.01)


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


@pytest.mark.vllm
def test_the_installed_vllm_is_understood(tmp_path: Path) -> None:
    found = installed()
    if found is None:
        pytest.skip("no vLLM is installed")
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    dialect = discover(
        found.server_command, found.client_command, env=env, cache_folder=tmp_path, version=found.version
    )
    assert dialect.notice is None
    assert dialect.server is not None
    assert dialect.client is not None
    assert len(dialect.server.options) > 200
    check_flags(
        {"gpu-memory-utilization": 0.7, "max-num-seqs": 32, "enable-chunked-prefill": True, "block-size": 32},
        dialect.server,
        what="serve.flags",
    )
    with pytest.raises(FlagError, match="'max-num-seqs'"):
        check_flags(["max-num-seq"], dialect.server, what="serve.flags")
    assert "openai-chat" in dialect.client.options["backend"].choices
