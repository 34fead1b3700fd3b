"""Start a vLLM server, know when it is ready, look at it, stop it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from sweep.errors import HostNotReady, ServerDied, ServerNotReady
from sweep.process import StopReport, SupervisedProcess
from sweep.server.ports import port_free

_EAGER_S, _EAGER_POLL_S, _POLL_S = 20.0, 0.1, 0.5
_LOOK_S = 5.0  # /health and its like answer in milliseconds, unless the event loop is stuck
_RESET_S = 5.0  # after a load the last blocks are free within a scheduler step
_FIRST_COMPLETION_S = 300.0  # the first one may compile kernels
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start: the whole command, with --host, --port and --served-model-name, and its whole environment."""

    argv: Sequence[str]
    env: Mapping[str, str]
    log_path: Path
    record_path: Path
    host: str
    port: int
    served_name: str
    api_key: str
    startup_timeout_s: float
    stop_timeout_s: float
    cwd: Path | None = None

    def __repr__(self) -> str:
        """Without the key and the environment."""
        return f"Launch({self.served_name!r} on {self.host}:{self.port}, log {str(self.log_path)!r})"


class VllmServer:
    """One server process and its HTTP interface. Make one with `start`; always `stop` it."""

    def __init__(self, launch: Launch, process: SupervisedProcess) -> None:
        self.launch, self.process = launch, process
        self.started_at = time.monotonic()
        host = _EVERYWHERE.get(launch.host, launch.host)
        self.base_url = f"http://[{host}]:{launch.port}" if ":" in host else f"http://{host}:{launch.port}"
        # trust_env=False: a proxy of the environment must not stand between us and the loopback device.
        self._client = httpx.Client(
            base_url=self.base_url,
            trust_env=False,
            timeout=httpx.Timeout(_LOOK_S, connect=2.0),
            limits=httpx.Limits(max_connections=None),  # the default of 100 would make a warm-up wait for itself
        )
        self._auth = {"Authorization": f"Bearer {launch.api_key}"}

    @classmethod
    def start(cls, launch: Launch) -> VllmServer:
        """Start the process; do not wait for it.

        Raises HostError when the command cannot be executed, HostNotReady when something listens on the port already:
        vLLM binds with SO_REUSEPORT, so two servers could share it and each get some of the requests.
        """
        if not port_free(launch.host, launch.port):
            raise HostNotReady(f"port {launch.port} of {launch.host} is taken by another process")
        process = SupervisedProcess.start(
            launch.argv,
            env=launch.env,
            log_path=launch.log_path,
            record_path=launch.record_path,
            cwd=launch.cwd,
            stop_timeout_s=launch.stop_timeout_s,
        )
        return cls(launch, process)

    def wait_ready(self, on_wait: Callable[[float], None] | None = None) -> float:
        """Wait until *this* server serves; return the seconds since its start.

        Ready: the process lives, `/health` is 200, `/v1/models` lists our name with our key and is closed without it,
        and one completion came back with a token. Each look runs beside a watch on the process, so that its
        death is seen at once. `on_wait` is called with the seconds waited at every turn.
        Raises ServerDied, or ServerNotReady after `startup_timeout_s`.
        """
        deadline = self.started_at + self.launch.startup_timeout_s
        last = "nothing seen yet"
        while True:
            look = _Look(self._look)
            while not look.done.is_set() and time.monotonic() < deadline:
                self._watch(_EAGER_POLL_S, on_wait, until=look.done)
            if look.done.is_set():
                if look.found is None:
                    return time.monotonic() - self.started_at
                last = look.found
            waited_s = time.monotonic() - self.started_at
            if time.monotonic() >= deadline:
                raise ServerNotReady(waited_s, last)
            self._watch(_EAGER_POLL_S if waited_s < _EAGER_S else _POLL_S, on_wait)

    def healthy(self) -> bool:
        """Whether the process lives and `/health` is 200."""
        return self.process.poll() is None and self._text("/health") is not None

    def metrics_text(self) -> str | None:
        """The text of `/metrics`, or None when it cannot be had."""
        return self._text("/metrics")

    def reset_prefix_cache(self, timeout_s: float = _RESET_S) -> str | None:
        """Empty the engine's prefix cache; None when that is done, otherwise why not.

        A development endpoint: it is there where VLLM_SERVER_DEV_MODE is 1. Newer versions answer `success: false`
        while blocks are still held, older ones nothing at all; it is tried again for `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                answer = self._ask("POST", "/reset_prefix_cache", headers=self._auth)
                if answer.status_code != 200:
                    return f"/reset_prefix_cache answers {answer.status_code}"
                if not _refused(answer):
                    return None
            except httpx.HTTPError as error:
                return f"/reset_prefix_cache fails: {type(error).__name__}: {error}"
            if time.monotonic() > deadline:
                return f"/reset_prefix_cache was refused for {timeout_s:g} s: blocks are still held"
            self.process.wait(_EAGER_POLL_S)

    def exit_code(self) -> int | None:
        """The server's exit code (negative: signal), None while it runs."""
        return self.process.poll()

    def complete(self, prompt: str, max_tokens: int, timeout_s: float) -> bool:
        """Send one prompt, not streamed. Whether at least one token came back."""
        return self._complete(prompt, max_tokens, timeout_s) is None

    def stop(self, *, grace_s: float | None = None) -> StopReport:
        """End the whole process tree. Never raises: what could not be ended is in the report."""
        report = self.process.stop(grace_s=grace_s)
        self._client.close()
        return report

    def _watch(
        self, seconds: float, on_wait: Callable[[float], None] | None, until: threading.Event | None = None
    ) -> None:
        """Wait, but never longer than the process lives."""
        if until is None:
            code = self.process.wait(seconds)
        else:
            until.wait(seconds)
            code = self.process.poll()
        if code is not None:
            raise ServerDied(code, ready=False)
        if on_wait is not None:
            on_wait(time.monotonic() - self.started_at)

    def _look(self) -> str | None:
        """None when all is well, otherwise what was seen instead."""
        where = f"on port {self.launch.port}"
        try:
            health = self._ask("GET", "/health")
            if health.status_code != 200:
                return f"/health {where} answers {health.status_code}"
            models = self._ask("GET", "/v1/models", headers=self._auth)
            if models.status_code == 401:
                return f"a server {where} refuses this trial's key (401): another server, or an api-key flag"
            if models.status_code != 200:
                return f"/v1/models {where} answers {models.status_code}"
            names = _names(models)
            if self.launch.served_name not in names:
                return f"a server {where} serves {names}, not {self.launch.served_name!r}: another server"
            if self._ask("GET", "/v1/models").status_code != 401:
                return f"a server {where} answers without a key: another server, or VLLM_API_KEY does not reach it"
        except (httpx.HTTPError, ValueError) as error:
            return f"no answer {where}: {type(error).__name__}: {error}"
        return self._complete("Hello", 1, _FIRST_COMPLETION_S)

    def _complete(self, prompt: str, max_tokens: int, timeout_s: float) -> str | None:
        """None when at least one token came back, otherwise what came instead."""
        body: dict[str, Any] = {"model": self.launch.served_name, "max_tokens": max_tokens, "temperature": 0.0}
        kinds: tuple[tuple[str, dict[str, Any]], ...] = (
            ("/v1/completions", {"prompt": prompt}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}]}),
        )
        for path, words in kinds:
            try:
                answer = self._ask(
                    "POST",
                    path,
                    json=body | words,
                    headers=self._auth,
                    timeout=httpx.Timeout(timeout_s, connect=2.0),
                )
                if answer.status_code == 404:
                    continue
                if answer.status_code != 200:
                    return f"{path} answers {answer.status_code}: {answer.text[:200]}"
                return None if _tokens(answer) > 0 else f"{path} answers without a token: {answer.text[:200]}"
            except (httpx.HTTPError, ValueError) as error:
                return f"{path} fails: {type(error).__name__}: {error}"
        return "neither /v1/completions nor /v1/chat/completions is there (404)"

    def _ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            return self._client.request(method, path, **more)
        except RuntimeError as error:  # closed by stop() in another thread, at any moment
            raise httpx.ConnectError(str(error)) from error

    def _text(self, path: str) -> str | None:
        with contextlib.suppress(httpx.HTTPError):
            answer = self._ask("GET", path)
            if answer.status_code == 200:
                return answer.text
        return None


class _Look:
    """One look at the server in a thread of its own: no timeout of HTTP delays the watch on the process."""

    def __init__(self, look: Callable[[], str | None]) -> None:
        self.done = threading.Event()
        self.found: str | None = "no result"
        self._function = look
        threading.Thread(target=self._run, name="readiness", daemon=True).start()

    def _run(self) -> None:
        self.found = self._function()
        self.done.set()


def _names(answer: httpx.Response) -> list[str]:
    body = answer.json()
    rows = body.get("data") if isinstance(body, dict) else None
    return [str(row.get("id")) for row in rows or () if isinstance(row, dict)]


def _refused(answer: httpx.Response) -> bool:
    """Whether a reset says of itself that it was not done."""
    try:
        body = answer.json()
    except ValueError:
        return False
    return isinstance(body, dict) and body.get("success") is False


def _tokens(answer: httpx.Response) -> int:
    """Tokens of a completion: as counted by the server, or 1 for any text if it does not count."""
    body = answer.json()
    if not isinstance(body, dict) or not body.get("choices"):
        return 0
    usage = body.get("usage")
    if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
        return int(usage["completion_tokens"])
    choice = body["choices"][0]
    text = choice.get("text") or (choice.get("message") or {}).get("content")
    return 1 if text else 0
