"""Flags: typed as a person would, in the spelling of the installed vLLM, unknown ones refused."""

from __future__ import annotations

import argparse
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sweep.errors import FlagError
from sweep.flags import CommandHelp, FlagValue, canonical, check_flags, parse_help, printable, render

DATA = Path(__file__).with_name("data")


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
        ({"kv-cache-dtype": ["auto", "fp8"]}, r"takes one value; to try several, search it: {type: choice"),
        ({"compilation-config": '{"level": 3'}, "begins as JSON, but is none: "),
        ({"chat-template-content-format": "zzz"}, "choose from auto, openai, string"),
        ({"collect-detailed-traces": ["model", "zzz"]}, "cannot be 'zzz'"),
    ],
)
def test_unknown_flags_and_values_are_refused(flags: Any, message: str, serve_help: CommandHelp) -> None:
    with pytest.raises(FlagError, match=r"^serve\.flags\.\S+: .*" + message):
        check_flags(flags, serve_help, what="serve.flags")


@pytest.mark.parametrize(
    "flags",
    [
        ["max_num_seqs", "--port", "no-enable-prefix-caching", "device-memory-utilization"],
        ["compilation-config.cudagraph_mode", "compilation-config.sizes+"],
        {"kv-cache-dtype": "fp8", "max-model-len": "32k", "headless": False, "block-size": None, "hf-token": True},
        {"compilation-config": '{"max_capture": 1.5k, "sizes": [1, 2K]}', "chat-template": "{{ messages }}"},
        {"tokenizer-mode": "of_a_plugin", "collect-detailed-traces": ["model", "worker"]},
        {"max-num-seqs": argparse.Namespace(low=1, high=2)},  # a range to search: names alone are judged
    ],
)
def test_known_flags_pass(flags: Any, serve_help: CommandHelp) -> None:
    check_flags(flags, serve_help, what="serve.flags")


def test_nothing_known_nothing_refused() -> None:
    check_flags({"anything": 1}, None, what="serve.flags")
