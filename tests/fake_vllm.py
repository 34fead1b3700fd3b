#!/usr/bin/env python3
"""An executable that behaves as `vllm`: `serve`, `bench serve`, `--help`, `--version`. Standard library only.

Use it as `command: [python, tests/fake_vllm.py, serve]` and `[python, tests/fake_vllm.py, bench, serve]`. Its behaviour
comes from the environment variable FAKE_VLLM: a JSON object, or the path of a file with one. All keys are optional.

Server, start
  start_delay_s; log (text, or @name of LOGS; printed at start); noise_lines (printed after the log)
  exit_code or exit_signal: end instead of serving, after_s later
  fail_first_launches N: only so many launches end so (exit code 1 if not said), counted in the file `state`
  never_healthy (503); no_listen; refuse_unknown_flags; dump_env PATH; dump_argv PATH
  api_key (in place of VLLM_API_KEY; null: open to everybody); absent [paths that answer 404]
  metrics_delay_s (of the first answer of /metrics, which is asked for once the server is ready)
Server, process tree
  grandchild {count, setsid, ignore_sigterm, clear_env, pid_file}; server_dies_with_child; ignore_sigterm
  last_words (printed when it is told to end)
Server, load. N counts streamed requests from 1, those of a warm-up included.
  ttft_ms, prefill_ms_per_token, itl_ms, contention (slowdown per running request), jitter (log SD of each gap)
  stop_after (tokens, without ignore_eos); kv_tokens (beyond it requests are preempted); landscape (below); seed
  engine_dead (completions answer 500, health 200); all_500 (streams do); fail_share (of streams, 500)
  die_at_request N and die_mid_stream N: print die_log, end with die_code (default 1) or die_signal
  engine_dies_at N: one token, then an error chunk; health 503 and nothing but 500 afterwards
  reset_refused N: so many times a reset of the prefix cache is answered that it was not done
  one_token_from N: from there on each stream is one token, then an error chunk; health 503
  endless_stream_at N; hang_at N (no answer)
  exact {ttft_ms, itl_ms}: latencies times the landscape's factor that the fake client writes instead of what its clock
    says, so that two runs give the same numbers to the last bit
Client, all under "client"
  start_delay_s; log; exit_code; exit_signal; after_requests (end there); hang; ignore_sigterm
  late_ms (of every send but the first, behind its plan)
  result: none | empty | html | braces | nan | zero | negative | null | truncated | no_failed
Rules
  rules [{"if": {flag: value or [op, value], ...}, "then": {any of the above}}], applied in order; flags without
  dashes, a missing flag is null; "launch" (from 0, needs `state`) may be asked for too

`landscape` makes latencies depend on flags: {"ttft": {flag: RULE, ...}, "itl": {...}, "both": {...}, "noise": 0.02}.
RULE is {"best": 64, "weight": 0.5, "log": true} (factor 1 + weight x distance squared, in doublings if log, otherwise
in units of "scale") or {"values": {"true": 1.0, "false": 1.3}}; "default" is used where the flag is absent. With
"launches": FILE each start of a server adds a line there and its latencies are off by "launch_noise". The noise
is seeded by `seed` and the flags.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import random
import sys
from collections.abc import Callable
from typing import Any

VERSION = "0.32.0"

LOGS = {
    "@oom_start": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 47.41 GiB of which 1.12 GiB is free.\n"
    "RuntimeError: Engine core initialization failed. See root cause above.",
    "@oom_load": "ERROR [core.py:900] EngineCore encountered a fatal error.\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 594.00 MiB. GPU 1 has a total capacity of "
    "47.41 GiB of which 310.00 MiB is free.\n"
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the "
    "root cause.",
    "@no_kv": "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
    "initializing the engine.",
    "@block_size": "ValueError: No valid attention backend found for cpu with block_size=16",
    "@no_model": "OSError: /models/absent is not a local folder and is not a valid model identifier listed on the hub",
    "@port": "OSError: [Errno 98] Address already in use",
    "@driver": "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
}

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda value, group: value in group,
}

Flags = dict[str, Any]
Config = dict[str, Any]


def parse_flags(argv: list[str]) -> Flags:
    """Flags by name without dashes; positional words under "". Values are JSON where they look like it."""
    flags: Flags = {"": []}
    name: str | None = None
    for word in argv:
        if word.startswith("--"):
            name, equals, text = word[2:].partition("=")
            name = name.replace("_", "-")
            if equals:
                flags[name], name = _value(text), None
            elif name.startswith("no-"):
                flags[name[3:]], name = False, None
            else:
                flags[name] = True
        elif name is None:
            flags[""].append(word)
        elif flags[name] is True:
            flags[name] = _value(word)
        else:
            flags[name] = [*(flags[name] if isinstance(flags[name], list) else [flags[name]]), _value(word)]
    return flags


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_config(flags: Flags) -> Config:
    """FAKE_VLLM with its rules applied for these flags. Counts this launch if there is a `state` file."""
    text = os.environ.get("FAKE_VLLM", "{}")
    if not text.lstrip().startswith("{"):
        with open(text) as file:  # noqa: PTH123
            text = file.read()
    config: Config = json.loads(text)
    asked = dict(flags)
    if "state" in config and "" in flags:
        asked["launch"] = count_launch(config["state"])
        if asked["launch"] < config.get("fail_first_launches", 0):
            config.setdefault("exit_code", 1)
        elif "fail_first_launches" in config:
            for key in ("exit_code", "exit_signal", "log"):
                config.pop(key, None)
    for rule in config.get("rules", ()):
        if all(_holds(asked.get(name), wanted) for name, wanted in rule["if"].items()):
            config.update(rule["then"])
    return config


def count_launch(path: str) -> int:
    """How many launches there were before this one."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, b".")
    size = os.lseek(fd, 0, os.SEEK_CUR)
    os.close(fd)
    return size - 1


def _holds(value: Any, wanted: Any) -> bool:
    if not isinstance(wanted, list):
        return bool(value == wanted)
    if value is None:
        return False
    return _OPERATORS[wanted[0]](value, wanted[1])


def factor(config: Config, flags: Flags, kind: str) -> float:
    """How many times slower `kind` (ttft or itl) is with these flags."""
    landscape = config.get("landscape", {})
    result = 1.0
    for name, rule in {**landscape.get("both", {}), **landscape.get(kind, {})}.items():
        value = flags.get(name, rule.get("default"))
        if "values" in rule:
            result *= rule["values"].get(value if isinstance(value, str) else json.dumps(value), 1.0)
        elif value is not None:
            far = (
                math.log2(value / rule["best"]) if rule.get("log") else (value - rule["best"]) / rule.get("scale", 1.0)
            )
            result *= 1.0 + rule["weight"] * far * far
    if "launches" in landscape:
        launch = random.Random(f"{config.get('seed', 0)}/{config['launch']}/{kind}")
        result *= math.exp(landscape.get("launch_noise", 0.0) * launch.gauss(0.0, 1.0))
    return result * math.exp(landscape.get("noise", 0.0) * rng(config, flags, kind).gauss(0.0, 1.0))


def rng(config: Config, flags: Flags, purpose: str) -> random.Random:
    """Random numbers that depend on the seed and on the flags, but not on the port."""
    same = {name: value for name, value in flags.items() if name not in ("port", "host", "")}
    text = json.dumps([config.get("seed", 0), same, purpose], sort_keys=True)
    return random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]))


def text_of(log: str) -> str:
    """A log text, or the one of LOGS that "@name" stands for."""
    return LOGS.get(log, log)


def tokens_of(text: str) -> int:
    """Tokens by the fake's own rule: four characters each."""
    return max(1, len(text) // 4)


def main() -> None:
    argv = sys.argv[1:]
    words = argv[:2] if argv[:1] == ["bench"] else argv[:1]
    rest = argv[len(words) :]
    if words not in (["serve"], ["bench", "serve"]):
        if "--version" in argv or "-v" in argv:
            print(VERSION)
            return
        sys.exit("usage: vllm [-h] [-v] {chat,complete,serve,launch,bench,collect-env,run-batch} ...")
    if "-h" in rest or any(word.split("=")[0] == "--help" for word in rest):
        import fake_help

        print(fake_help.text(words[0], all_flags="--help=all" in rest))
    elif words == ["serve"]:
        import fake_server

        fake_server.serve(rest)
    else:
        import fake_client

        fake_client.bench(rest)


if __name__ == "__main__":
    main()
