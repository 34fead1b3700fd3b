"""Telling somebody that a study ended: a command, a webhook. What goes wrong here is a line, never a failed study."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from sweep.config import NotifySection
from sweep.errors import ConfigError

Event = str
ENDED, FAILED, STOPPED = "ended", "failed", "stopped"
_TAIL = 200


def check_notify(section: NotifySection, env: Mapping[str, str] | None = None) -> None:
    """Refuse, before anything is launched, what could not be told at the end. Raises ConfigError."""
    env = os.environ if env is None else env
    for key in ("webhook_env", "token_env"):
        name = getattr(section, key)
        if name is not None and not env.get(name):
            raise ConfigError(f"the environment variable {name} is not set", key=f"notify.{key}")
    if section.command is not None and shutil.which(section.command[0]) is None:
        raise ConfigError(f"{section.command[0]!r} is no program on this machine", key="notify.command")
    if section.token_env is not None and section.webhook_env is None:
        raise ConfigError("is for a webhook: give webhook_env, too", key="notify.token_env")
    if section.webhook_env is not None and not env[section.webhook_env].startswith(("http://", "https://")):
        raise ConfigError(f"{section.webhook_env} holds no http(s) address", key="notify.webhook_env")


def notify(section: NotifySection, event: Event, verdict: Mapping[str, Any]) -> tuple[str, ...]:
    """Run the command and call the webhook, each within `timeout_s`; returns what went wrong, one line each.

    `verdict` is the last object of `--json`. Nothing of an address or a token stands in what is returned.
    """
    said = {"event": event, **verdict}
    lines = []
    if section.command is not None:
        lines.append(_run(section.command, said, section.timeout_s))
    if section.webhook_env is not None:
        token = None if section.token_env is None else os.environ.get(section.token_env)
        address = os.environ.get(section.webhook_env, "")
        what = f"the webhook of {section.webhook_env}"
        lines.append(_bounded(lambda: _post(address, token, said, section.timeout_s), section.timeout_s, what))
    return tuple(f"notify: {line}" for line in lines if line is not None)


def _run(words: tuple[str, ...], said: Mapping[str, Any], timeout_s: float) -> str | None:
    sentence = str(said.get("sentence") or "").replace("\0", "")
    env = {
        **os.environ,
        "SWEEP_EVENT": str(said["event"]),
        "SWEEP_STUDY": str(said.get("study") or ""),
        "SWEEP_SENTENCE": sentence,
    }
    try:
        process = subprocess.Popen(
            words,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # standard output is that of --json
            stderr=subprocess.PIPE,
            start_new_session=True,  # what it starts ends with it
        )
    except (OSError, ValueError) as error:
        return f"{words[0]} cannot be run: {getattr(error, 'strerror', None) or error}"
    try:
        _, errors = process.communicate(json.dumps(said, default=str).encode(), timeout_s)
    except subprocess.TimeoutExpired:
        return f"{words[0]} took longer than {timeout_s:g} s and was ended"
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
    if process.returncode == 0:
        return None
    tail = " ".join(errors.decode(errors="replace").split())[-_TAIL:]
    return f"{words[0]} ended with exit code {process.returncode}" + (f": {tail}" if tail else "")


def _post(address: str, token: str | None, said: Mapping[str, Any], timeout_s: float) -> str | None:
    text = f"{said.get('study')}: {said.get('sentence')}" + (f" ({r})" if (r := said.get("stop_reason")) else "")
    body = json.dumps({"text": text, "content": text, **said}, default=str)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    try:
        answer = httpx.post(address, content=body, headers=headers, timeout=timeout_s)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return type(error).__name__  # its text may hold the address
    return None if answer.is_success else f"answered {answer.status_code}"


def _bounded(call: Callable[[], str | None], timeout_s: float, what: str) -> str | None:
    """The result of `call`, given up after `timeout_s`: looking up a name knows no limit of its own."""
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(call()), name="notify", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not found:
        return f"{what} did not answer within {timeout_s:g} s"
    return None if found[0] is None else f"{what}: {found[0]}"
