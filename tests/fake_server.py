"""The server half of `fake_vllm`: vLLM's HTTP interface with a small scheduler behind it. Asyncio, no framework."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fake_engine import Engine, Fault
from fake_vllm import VERSION, Config, Flags, parse_flags, read_config, text_of

Body = dict[str, Any]


def say(text: str) -> None:
    """A line of the log, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def serve(argv: list[str]) -> None:
    """Run until SIGTERM or until the configured fault."""
    flags = parse_flags(argv)
    config = read_config(flags)
    _dump(config, argv)
    _count(config)
    _refuse_unknown(config, flags)

    def leave(*_: object) -> None:
        say(config.get("last_words", "INFO 11-30 06:00:09 [launcher.py:110] Shutting down FastAPI HTTP server."))
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN if config.get("ignore_sigterm") else leave)
    _grandchildren(config)
    say(f"INFO 11-30 06:00:00 [api_server.py:1] vLLM API server version {VERSION}")
    say(f"INFO 11-30 06:00:00 [utils.py:233] non-default args: {json.dumps(flags)}")
    if "log" in config:
        say(text_of(config["log"]))
    for line in range(config.get("noise_lines", 0)):
        say(f"INFO 11-30 06:00:01 [noise.py:7] nothing to see in line {line}")
    time.sleep(config.get("start_delay_s", 0.0))
    if "exit_code" in config or "exit_signal" in config:
        time.sleep(config.get("after_s", 0.0))
        die(config.get("exit_code", 1), config.get("exit_signal"))
    if config.get("no_listen"):
        while True:
            time.sleep(60)
    asyncio.run(_Server(config, flags).run())


def die(code: int, number: int | None = None, log: str = "") -> None:
    """End at once, as a crash does."""
    if log:
        say(text_of(log))
    if number is not None:
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        os.kill(os.getpid(), number)
        time.sleep(1)
    os._exit(code)


def _count(config: Config) -> None:
    """Which launch this is, where the landscape wants to know."""
    path = config.get("landscape", {}).get("launches")
    if path is not None:
        with open(path, "a+") as file:  # noqa: PTH123
            file.write("launch\n")
            file.seek(0)
            config["launch"] = len(file.readlines())


def _dump(config: Config, argv: list[str]) -> None:
    for key, value in (("dump_env", dict(os.environ)), ("dump_argv", argv)):
        if key in config:
            with open(config[key], "w") as file:  # noqa: PTH123
                json.dump(value, file)


def _refuse_unknown(config: Config, flags: Flags) -> None:
    if config.get("refuse_unknown_flags"):
        import fake_help

        unknown = [f"--{name}" for name in flags if name and name not in fake_help.known("serve")]
        if unknown:
            say(f"vllm: error: unrecognized arguments: {' '.join(unknown)}")
            sys.exit(2)


def _grandchildren(config: Config) -> None:
    spec = config.get("grandchild")
    if not spec:
        return
    pids = []
    for _ in range(spec.get("count", 1)):
        ready, say_ready = os.pipe()  # nobody hears of a grandchild before it takes signals as asked
        pid = os.fork()
        if pid == 0:
            if spec.get("setsid"):
                os.setsid()
            default = signal.SIG_IGN if spec.get("ignore_sigterm") else signal.SIG_DFL
            signal.signal(signal.SIGTERM, default)
            signal.signal(signal.SIGINT, default)
            os.write(say_ready, b".")
            os.close(ready)
            os.close(say_ready)
            if spec.get("clear_env"):
                os.execve(sys.executable, [sys.executable, "-S", "-c", _SLEEP_DEAF], {})
            while True:
                time.sleep(60)
        os.close(say_ready)  # of one that was killed before, the end is read
        os.read(ready, 1)
        os.close(ready)
        pids.append(pid)
    if "pid_file" in spec:
        with open(spec["pid_file"] + ".part", "w") as file:  # noqa: PTH123
            json.dump(pids, file)
        os.replace(spec["pid_file"] + ".part", spec["pid_file"])  # noqa: PTH105


_SLEEP_DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"


class _Server:
    def __init__(self, config: Config, flags: Flags) -> None:
        self.config, self.flags = config, flags
        self.engine = Engine(config, flags)
        names = flags.get("served-model-name") or (flags[""][0] if flags[""] else flags.get("model", "model"))
        self.name = str(names[0] if isinstance(names, list) else names)
        self.key = config.get("api_key", os.environ.get("VLLM_API_KEY"))
        self.streams = 0
        self.dead = False

    async def run(self) -> None:
        host = str(self.flags.get("host", "0.0.0.0"))
        port = int(self.flags.get("port", 8000))
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as vLLM does
        try:
            sock.bind((host, port))
        except OSError as error:
            die(1, log=f"OSError: [Errno {error.errno}] {error.strerror}")
        server = await asyncio.start_server(self._connection, sock=sock, backlog=2048)
        for line in self.engine.start_log():
            say(line)
        say("INFO:     Application startup complete.")
        if self.config.get("server_dies_with_child"):
            asyncio.get_running_loop().create_task(self._watch_children())
        async with server:
            await server.serve_forever()

    async def _watch_children(self) -> None:
        while True:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(-1, os.WNOHANG)[0]:
                    die(
                        1,
                        log="ERROR [core_client.py:600] Engine core proc EngineCore died unexpectedly, shutting down.",
                    )
            await asyncio.sleep(0.05)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._request(reader, _Answer(writer)):
                pass
        writer.close()

    async def _request(self, reader: asyncio.StreamReader, answer: _Answer) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        method, target, _ = first.split(" ")
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        path = target.partition("?")[0]
        if path.startswith("/v1") and self.key and headers.get("authorization") != f"Bearer {self.key}":
            await answer.send(401, {"error": "Unauthorized"})
        elif (method, path) in self._routes() and path not in self.config.get("absent", ()):
            body: Body = json.loads(raw) if raw else {}
            await self._routes()[method, path](body, answer)
        else:
            await answer.send(404, {"detail": "Not Found"})
        return headers.get("connection", "").lower() != "close"

    def _routes(self) -> dict[tuple[str, str], Callable[[Body, _Answer], Awaitable[None]]]:
        return {
            ("GET", "/health"): self._health,
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/version"): self._version,
            ("POST", "/reset_prefix_cache"): self._reset,
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/v1/chat/completions"): self._chat,
        }

    async def _health(self, _: Body, answer: _Answer) -> None:
        await answer.send(503 if self.config.get("never_healthy") or self.dead else 200, "")

    async def _models(self, _: Body, answer: _Answer) -> None:
        row = {"id": self.name, "object": "model", "root": (self.flags[""] or [self.name])[0], "max_model_len": 4096}
        await answer.send(200, {"object": "list", "data": [row]})

    async def _version(self, _: Body, answer: _Answer) -> None:
        await answer.send(200, {"version": VERSION})

    async def _metrics(self, _: Body, answer: _Answer) -> None:
        await asyncio.sleep(self.config.pop("metrics_delay_s", 0.0))
        await answer.send(200, self.engine.metrics(self.name), kind="text/plain; version=0.0.4; charset=utf-8")

    async def _reset(self, _: Body, answer: _Answer) -> None:
        if os.environ.get("VLLM_SERVER_DEV_MODE") != "1":
            await answer.send(404, {"detail": "Not Found"})
            return
        refusals = self.config.get("reset_refused", 0)
        self.config["reset_refused"] = refusals - 1
        if refusals <= 0:
            self.engine.seen.clear()
        await answer.send(200, {"success": refusals <= 0})

    async def _completions(self, body: Body, answer: _Answer) -> None:
        await self._generate(body, str(body.get("prompt", "")), answer, chat=False)

    async def _chat(self, body: Body, answer: _Answer) -> None:
        parts = [message.get("content") or "" for message in body.get("messages", ())]
        texts = (part if isinstance(part, str) else "".join(p.get("text", "") for p in part) for part in parts)
        await self._generate(body, "\n".join(texts), answer, chat=True)

    async def _generate(self, body: Body, prompt: str, answer: _Answer, *, chat: bool) -> None:
        if body.get("model") not in (None, self.name):
            await answer.send(404, {"error": {"message": f"The model `{body['model']}` does not exist.", "code": 404}})
            return
        if self.config.get("engine_dead") or (self.dead and "one_token_from" not in self.config):
            await answer.send(500, {"error": {"message": "EngineCore encountered an issue.", "code": 500}})
            return
        wanted = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        if not body.get("ignore_eos") and "stop_after" in self.config:
            wanted = min(wanted, int(self.config["stop_after"]))
        if not body.get("stream"):
            tokens = [token async for token in self.engine.generate(prompt, wanted, Fault())]
            await answer.send(200, self._whole(prompt, tokens, chat=chat))
            return
        self.streams += 1
        fault = Fault.of(self.config, self.streams)
        if fault.exit_before:
            self._crash()
        if fault.refuse:
            await answer.send(500, {"error": {"message": "Internal Server Error", "code": 500}})
            return
        await self._stream(body, prompt, wanted, answer, fault, chat=chat)

    def _whole(self, prompt: str, tokens: list[str], *, chat: bool) -> Body:
        text = "".join(tokens)
        choice: Body = {"index": 0, "finish_reason": "length"}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        return {
            "id": "cmpl-0",
            "object": "chat.completion" if chat else "text_completion",
            "model": self.name,
            "choices": [choice],
            "usage": self.engine.usage(prompt, len(tokens)),
        }

    async def _stream(self, body: Body, prompt: str, wanted: int, answer: _Answer, fault: Fault, *, chat: bool) -> None:
        kind = "chat.completion.chunk" if chat else "text_completion"
        base: Body = {"id": f"cmpl-{self.streams}", "object": kind, "created": int(time.time()), "model": self.name}

        def chunk(choice: Body) -> Body:
            return base | {"choices": [{"index": 0, "logprobs": None, "finish_reason": None} | choice]}

        await answer.begin()
        count = 0
        async for token in self.engine.generate(prompt, math.inf if fault.endless else wanted, fault):
            if chat and count == 0:
                # vLLM sends the role in a chunk of its own, together with the first token.
                await answer.event(chunk({"delta": {"role": "assistant", "content": ""}}))
            count += 1
            choice: Body = {"delta": {"content": token}} if chat else {"text": token}
            await answer.event(chunk(choice | {"finish_reason": "length" if count == wanted else None}))
            if fault.engine_dies:
                self.dead = True
                say(text_of("@oom_load"))
                await answer.event({"error": {"message": "EngineCore encountered an issue.", "code": 500}})
                break
            if fault.exit_within and count * 2 >= wanted:
                self._crash()
        if not fault.engine_dies and (body.get("stream_options") or {}).get("include_usage"):
            await answer.event(base | {"choices": [], "usage": self.engine.usage(prompt, count)} | self.engine.exact())
        await answer.end()

    def _crash(self) -> None:
        die(self.config.get("die_code", 1), self.config.get("die_signal"), self.config.get("die_log", ""))


class _Answer:
    """Writes one HTTP/1.1 answer, whole or streamed as server-sent events."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def send(self, status: int, body: Body | str, kind: str = "application/json") -> None:
        raw = (body if isinstance(body, str) else json.dumps(body)).encode()
        reason = {200: "OK", 401: "Unauthorized", 404: "Not Found"}.get(status, "Internal Server Error")
        head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: {kind}\r\ncontent-length: {len(raw)}\r\n\r\n"
        self._writer.write(head.encode() + raw)
        await self._writer.drain()

    async def begin(self) -> None:
        self._writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        await self._writer.drain()

    async def event(self, body: Body) -> None:
        await self._chunk(f"data: {json.dumps(body)}\n\n")

    async def end(self) -> None:
        await self._chunk("data: [DONE]\n\n")
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def _chunk(self, text: str) -> None:
        raw = text.encode()
        self._writer.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")
        await self._writer.drain()
