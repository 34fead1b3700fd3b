"""The page of a running study over HTTP, on this machine alone: built anew as files arrive, at a bounded cost."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sweep.errors import UserError
from sweep.report.html.markup import el

HOST = "127.0.0.1"
# Building takes this share of a core at most, and happens this often at most.
_SHARE = 0.1
_LEAST_S = 5.0
_WATCHED = ("trials", "logs")


@dataclass(slots=True)
class LivePage:
    """The newest page of the study in `folder`, made by `build` (the version it shows goes in).

    Asking is cheap: names, sizes and times of files are looked at, and only where they changed, and not sooner than the
    bound on cost allows, is the page built anew. Threads may ask together.
    """

    folder: Path
    build: Callable[[str], str]
    clock_s: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _page: bytes = b""
    _version: str = ""
    _not_before_s: float = 0.0

    def page(self) -> bytes:
        """The page, at most as old as the bound on cost makes it."""
        with self._lock:
            self._refresh()
            return self._page

    def version(self) -> str:
        """What the newest page that may be built by now goes by; another one than a page shows: reload it."""
        with self._lock:
            if self.clock_s() < self._not_before_s:
                return self._version
            return fingerprint(self.folder)

    def _refresh(self) -> None:
        version = fingerprint(self.folder)
        began_s = self.clock_s()
        if self._page and (version == self._version or began_s < self._not_before_s):
            return
        try:
            self._page = self.build(version).encode()
        except UserError as error:
            self._page = _problem(str(error), version)
        self._version = version
        ended_s = self.clock_s()
        self._not_before_s = ended_s + max(_LEAST_S, (ended_s - began_s) / _SHARE)


def fingerprint(folder: Path) -> str:
    """Words for the state of a study's files: other ones where a trial was stored or the running one went on."""
    found = []
    for name in ("study.json", "lock", *_WATCHED):
        found += _state(folder / name)
    for entry in sorted(folder.glob("trials/*.parquet")):
        found += _state(entry)
    # The phases of the trial that runs, not each answer it gets: the page would do nothing but reload.
    newest = max(folder.glob("logs/*/events.jsonl"), default=None)
    if newest is not None:
        found += _state(newest)
    return sha256("|".join(found).encode()).hexdigest()[:16]


def _state(path: Path) -> list[str]:
    try:
        seen = path.stat()
    except OSError:
        return []
    return [f"{path.name}:{seen.st_mtime_ns}:{seen.st_size}"]


def _problem(line: str, version: str) -> bytes:
    """A page that says why there is none; it goes on asking."""
    script = (
        f"setInterval(async () => {{ const a = await fetch('version'); if ((await a.text()) !== '{version}') "
        "location.reload(); }, 5000);"
    )
    body = el("body", el("p", line))
    return f"<!doctype html><meta charset=utf-8><title>sweep</title>{body}<script>{script}</script>".encode()


def serve(live: LivePage, port: int, say: Callable[[str], None]) -> None:
    """Serve until interrupted (KeyboardInterrupt ends it quietly). Port 0 takes a free one. `say` hears the address.

    Only this machine can connect, and only under its own name, so that no site in a browser can read the page through a
    name of its own. Raises UserError for a port that cannot be taken.
    """
    try:
        server = _Server((HOST, port), live)
    except OSError as error:
        raise UserError(f"--port {port}: {error.strerror}") from error
    with server:
        say(f"http://{HOST}:{server.server_port}/ (Ctrl-C ends it)")
        try:
            server.serve_forever(poll_interval=0.5)
        except KeyboardInterrupt:
            return


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    # The address of a server that just ended may be taken again.
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], live: LivePage) -> None:
        self.live = live
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away in the middle of its question is no news."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    timeout = 30.0
    server: _Server

    def do_GET(self) -> None:
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        if host not in (HOST, "localhost"):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        elif self.path == "/":
            self._answer(self.server.live.page(), "text/html; charset=utf-8")
        elif self.path == "/version":
            self._answer(self.server.live.version().encode(), "text/plain")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _answer(self, content: bytes, kind: str) -> None:
        try:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError):
            return  # the browser left

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the name is the base class's
        """Nothing: a page that asks every few seconds would fill the terminal."""
