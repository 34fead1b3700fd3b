"""Ask the installed vLLM what it accepts: its own `--help`, once per version."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sweep.atomic_file import write_atomically
from sweep.errors import HostNotReady
from sweep.flags.help_text import CommandHelp, Option, parse_help

_LAYOUT = 1  # of a cached answer; raise it when Option changes
# `--help=all` is new; older versions take the word behind "=" for a search and show a part. A whole answer has these.
_SERVER_MARKS = ("port", "max-model-len", "max-num-seqs")
_CLIENT_MARKS = ("port", "dataset-name", "num-prompts")
_HELP_WORDS = ("--help=all", "--help")
_SUBCOMMANDS = ("bench", "serve")


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the installed vLLM accepts. None where it could not tell; `notice` is then one line that says why."""

    version: str | None
    server: CommandHelp | None
    client: CommandHelp | None
    notice: str | None = None


def discover(
    server_command: Sequence[str],
    client_command: Sequence[str],
    *,
    env: Mapping[str, str],
    cache_folder: Path | None = None,
    timeout_s: float = 120.0,
    version: str | None = None,
) -> Dialect:
    """The flags of server and client by their own help, both asked at once. Never raises for what they answer.

    `version` spares the question where the caller knows it. Answers are kept in `cache_folder` (default
    `$XDG_CACHE_HOME/sweep` or `~/.cache/sweep`) under a hash of command, version and executable; where the version is
    not known nothing is kept, since the same words could start another vLLM tomorrow.
    """
    folder = cache_folder or _default_folder(env)
    commands = {"server": tuple(server_command), "client": tuple(client_command)}
    marks = {"server": _SERVER_MARKS, "client": _CLIENT_MARKS}
    with ThreadPoolExecutor(max_workers=2) as pool:
        if version is None:
            asked = {stem: pool.submit(_version, stem, env, timeout_s) for stem in set(map(_stem, commands.values()))}
            versions = {name: asked[_stem(words)].result() for name, words in commands.items()}
        else:
            versions = dict.fromkeys(commands, version)
        answers = {
            name: pool.submit(_help, words, versions[name], marks[name], env, folder, timeout_s)
            for name, words in commands.items()
        }
        found = {name: answer.result() for name, answer in answers.items()}
    silent = [f"{name} ({why})" for name, (help_, why) in found.items() if help_ is None]
    notice = f"flags are not checked against the {' and the '.join(silent)}" if silent else None
    return Dialect(versions["server"], found["server"][0], found["client"][0], notice)


def _help(
    words: tuple[str, ...],
    version: str | None,
    marks: tuple[str, ...],
    env: Mapping[str, str],
    folder: Path,
    timeout_s: float,
) -> tuple[CommandHelp | None, str]:
    """The help of one command, or None and the reason."""
    path = None if version is None else folder / f"flags-{_key(words, version, env)}.json"
    if path is not None and (kept := _read(path)) is not None and all(mark in kept for mark in marks):
        return kept, ""
    why = ""
    for help_word in _HELP_WORDS:
        code, output = _ask([*words, help_word], env, timeout_s)
        help_ = parse_help(output)
        if code == 0 and all(mark in help_ for mark in marks):
            if path is not None:
                _keep(path, help_)
            return help_, ""
        why = f"its {help_word} {_outcome(code)}"
        if code is None:
            break  # too slow or not there: asking again would end the same way
    return None, why


def _outcome(code: int | None) -> str:
    if code is None:
        return "gave no answer"
    return "lists none that are known" if code == 0 else f"ended with exit code {code}"


def _stem(words: tuple[str, ...]) -> tuple[str, ...]:
    """`vllm` of `vllm bench serve`, wrapper words included; nothing where a command ends otherwise."""
    end = len(words)
    while end and words[end - 1] in _SUBCOMMANDS:
        end -= 1
    return words[:end] if end < len(words) else ()


def _version(stem: tuple[str, ...], env: Mapping[str, str], timeout_s: float) -> str | None:
    """What `vllm --version` prints last, or None."""
    if not stem:
        return None
    code, output = _ask([*stem, "--version"], env, timeout_s)
    lines = output.split("\n") if code == 0 else []
    return next((line.strip()[:80] for line in reversed(lines) if line.strip()), None)


def _ask(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> tuple[int | None, str]:
    """Exit code (None: not started, or cut after `timeout_s`) and standard output."""
    # One wide line per option: argparse then breaks neither words nor choices.
    wide = {**env, "COLUMNS": "4000", "PAGER": "cat"}
    try:
        process = subprocess.Popen(
            argv,
            env=wide,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None, ""
    with process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return None, ""
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, output.decode(errors="replace")


def _key(words: tuple[str, ...], version: str, env: Mapping[str, str]) -> str:
    found = shutil.which(words[0], path=env.get("PATH"))
    executable = [words[0]]
    if found is not None:
        real = Path(found).resolve()
        executable = [found, str(real), str(real.stat().st_mtime_ns)]
    text = json.dumps([_LAYOUT, words, version, executable])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _default_folder(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_CACHE_HOME", "")
    # The specification of that variable wants a relative path ignored.
    return (Path(base) if base.startswith("/") else Path("~/.cache").expanduser()) / "sweep"


def _keep(path: Path, help_: CommandHelp) -> None:
    options = [dataclasses.asdict(option) for option in help_.options.values()]
    # A cache that cannot be written costs a few seconds next time, nothing else.
    with contextlib.suppress(OSError, HostNotReady):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(options).encode())


def _read(path: Path) -> CommandHelp | None:
    """The kept answer, or None if there is none that can be read."""
    try:
        rows = json.loads(path.read_bytes())
        options = [
            Option(**{**row, "aliases": tuple(row["aliases"]), "choices": tuple(row["choices"])}) for row in rows
        ]
        return CommandHelp({option.name: option for option in options})
    except (OSError, ValueError, TypeError, KeyError):
        return None
