"""The load half of `fake_vllm`: `bench serve` with vLLM's arguments, real requests, and its result file."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from fake_report import summary
from fake_vllm import Config, Flags, parse_flags, read_config, text_of, tokens_of


@dataclass
class Outcome:
    """One request as the client saw it; times in seconds."""

    prompt_len: int
    output_tokens: int = 0
    ttft: float = 0.0
    itl: list[float] = field(default_factory=list)
    latency: float = 0.0
    start_time: float = 0.0
    queue_time: float = 0.0
    text: str = ""
    error: str = ""
    success: bool = False
    exact: tuple[float, float] | None = None

    def be_exact(self, at_s: float) -> None:
        """Times by the server's word: sent at `at_s`, first token and every gap as it says."""
        assert self.exact is not None
        self.ttft, gap_s = self.exact
        self.itl = [gap_s] * len(self.itl)
        self.start_time, self.queue_time = at_s, 0.0
        self.latency = self.ttft + sum(self.itl)


def bench(argv: list[str]) -> None:
    """Send the load and write the result file, or fail as configured under "client"."""
    flags = parse_flags(argv)
    config = read_config({name: value for name, value in flags.items() if name}).get("client", {})
    if config.get("ignore_sigterm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "log" in config:
        print(text_of(config["log"]), flush=True)
    time.sleep(config.get("start_delay_s", 0.0))
    if config.get("hang"):
        while True:
            time.sleep(60)
    if "after_requests" not in config:
        _leave(config)
    flags.setdefault("seed", 0)
    flags.setdefault("backend", flags.get("endpoint-type", "openai"))
    outcomes, duration_s = asyncio.run(_Load(flags, config).run())
    result = summary(flags, outcomes, duration_s)
    if flags.get("save-result") or flags.get("append-result"):
        _save(flags, result, config.get("result", ""))


def _leave(config: Config) -> None:
    if "exit_signal" in config:
        os.kill(os.getpid(), config["exit_signal"])
        time.sleep(1)
    if "exit_code" in config:
        sys.stdout.flush()
        os._exit(config["exit_code"])


def _save(flags: Flags, result: dict[str, Any], fault: str) -> None:
    for key, value in {"nan": math.nan, "zero": 0.0, "negative": -3.1, "null": None}.items():
        if fault == key:
            result |= {name: value for name in result if name.endswith("_ms")}
            if value is not None:
                result["ttfts"] = [value] * len(result.get("ttfts", ()))
                result["latencies"] = [value] * len(result.get("latencies", ()))
                result["itls"] = [[value] * len(row) for row in result.get("itls", ())]
    if fault == "no_failed":
        del result["failed"]
    text = json.dumps(result)
    text = {"empty": "", "html": "<html><body>502 Bad Gateway</body></html>", "braces": "{}"}.get(fault, text)
    if fault == "truncated":
        text = text[: len(text) // 2]
    name = flags.get("result-filename") or f"{flags['backend']}-{flags.get('request-rate', 'inf')}qps.json"
    if fault != "none":
        folder = flags.get("result-dir")
        if folder:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        with open(os.path.join(folder or "", str(name)), "w") as file:  # noqa: PTH118, PTH123
            file.write(text)


def _prompts(flags: Flags) -> list[tuple[str, int]]:
    """Prompt and output length of each request, in the client's own order."""
    kind, wanted = flags.get("dataset-name", "random"), int(flags.get("num-prompts", 1000))
    if kind == "random":
        words = int(flags.get("random-input-len") or flags.get("input-len") or 1024)
        size = int(flags.get("random-output-len") or flags.get("output-len") or 128)
        return [(f"{number:05d}" + " abc" * (words - 1), size) for number in range(wanted)]
    with open(flags["dataset-path"], encoding="utf-8") as file:  # noqa: PTH123
        rows = json.load(file) if kind == "sharegpt" else [json.loads(line) for line in file if line.strip()]
    asked = flags.get(f"{kind}-output-len", flags.get("output-len"))
    asked = None if asked in (None, -1) else int(asked)
    if kind == "sharegpt":
        rows = [row for row in rows if len(row.get("conversations", ())) >= 2]
    draw = random.Random(flags["seed"])
    if not flags.get("disable-shuffle"):
        draw.shuffle(rows)
    pairs = []
    for row in rows[:wanted]:
        if kind == "sharegpt":
            prompt, reply = (turn["value"] for turn in row["conversations"][:2])
            pairs.append((prompt, tokens_of(reply) if asked is None else asked))
        else:
            pairs.append((row["prompt"], int(row["output_tokens"]) if asked is None else asked))
    if not pairs:
        raise IndexError("list index out of range")
    return pairs + draw.choices(pairs, k=wanted - len(pairs))


def arrivals_s(flags: Flags, count: int) -> list[float]:
    """Send times since the start: the very numbers of vLLM's client (NumPy's legacy generator, gaps rescaled)."""
    rate = float(flags.get("request-rate", "inf"))
    shape = float(flags.get("burstiness", 1.0))
    if math.isinf(rate):
        return [0.0] * count
    if shape == 1.0:
        draw = _legacy(int(flags["seed"]))
        gaps = [-math.log(1.0 - draw.random()) / rate for _ in range(count)]
    else:
        import numpy as np

        np.random.seed(int(flags["seed"]))
        gaps = [float(np.random.gamma(shape=shape, scale=1.0 / (rate * shape))) for _ in range(count)]
    at, times = 0.0, []
    for gap in gaps:
        at += gap
        times.append(at)
    return [time_s * (count / rate) / at for time_s in times]


def _legacy(seed: int) -> random.Random:
    """Python's generator in the state that `numpy.random.seed(seed)` gives: the Mersenne twister's first seeding."""
    words = [seed & 0xFFFFFFFF]
    for number in range(1, 624):
        words.append((1812433253 * (words[-1] ^ (words[-1] >> 30)) + number) & 0xFFFFFFFF)
    draw = random.Random()
    draw.setstate((3, (*words, 624), None))
    return draw


class _Load:
    def __init__(self, flags: Flags, config: Config) -> None:
        self.flags, self.config = flags, config
        base = flags.get("base-url")
        if base:
            self.host, _, port = str(base).removeprefix("http://").rstrip("/").rpartition(":")
        else:
            self.host, port = str(flags.get("host", "127.0.0.1")), str(flags.get("port", 8000))
        self.port = int(port)
        self.chat = "chat" in str(flags["backend"])
        self.path = flags.get("endpoint", "/v1/completions")
        limit = flags.get("max-concurrency")
        self.slots = asyncio.Semaphore(int(limit)) if limit else None
        self.done = 0
        self.shown_at = 0.0

    async def run(self) -> tuple[list[Outcome], float]:
        prompts = _prompts(self.flags)
        print("Starting main benchmark run...", flush=True)
        for _ in range(int(self.flags.get("num-warmups") or 0)):
            await self._one(*prompts[0], time.perf_counter(), count=False)
        began = time.perf_counter()
        tasks: list[asyncio.Task[Outcome]] = []
        for at_s, pair in zip(arrivals_s(self.flags, len(prompts)), prompts, strict=True):
            late_s = self.config.get("late_ms", 0.0) / 1000.0 if tasks else 0.0
            wait_s = began + at_s + late_s - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            tasks.append(asyncio.create_task(self._one(*pair, time.perf_counter(), count=True)))
        outcomes = list(await asyncio.gather(*tasks))
        if all(outcome.exact for outcome in outcomes):
            for outcome, at_s in zip(outcomes, arrivals_s(self.flags, len(prompts)), strict=True):
                outcome.be_exact(at_s)
            return outcomes, max(outcome.start_time + outcome.latency for outcome in outcomes)
        return outcomes, time.perf_counter() - began

    async def _one(self, prompt: str, size: int, arrived: float, *, count: bool) -> Outcome:
        outcome = Outcome(tokens_of(prompt))
        if self.slots is None:
            await self._send(prompt, size, outcome)
        else:
            async with self.slots:
                await self._send(prompt, size, outcome)
        outcome.queue_time = outcome.start_time - arrived
        if count:
            self.done += 1
            self._show()
            if self.done >= self.config.get("after_requests", math.inf):
                _leave(self.config)
        return outcome

    def _show(self) -> None:
        """The progress bar: at most ten times a second, and at the end."""
        total = int(self.flags.get("num-prompts", 1000))
        now = time.perf_counter()
        if not self.flags.get("disable-tqdm") and (self.done == total or now > self.shown_at + 0.1):
            self.shown_at = now
            sys.stderr.write(f"\r{100 * self.done // total:3d}%|####      | {self.done}/{total} [00:01<00:01, 9.9it/s]")
            sys.stderr.flush()

    async def _send(self, prompt: str, size: int, outcome: Outcome) -> None:
        body: dict[str, Any] = {"model": self.flags.get("served-model-name") or self.flags.get("model")}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.chat:
            content = [{"type": "text", "text": prompt}]
            body |= {"messages": [{"role": "user", "content": content}], "max_completion_tokens": size}
        else:
            body |= {"prompt": prompt, "max_tokens": size}
        if self.flags.get("ignore-eos"):
            body["ignore_eos"] = True
        outcome.start_time = time.perf_counter()
        last = outcome.start_time
        try:
            async for event in self._events(json.dumps(body).encode(), outcome):
                now = time.perf_counter()
                if event.get("choices"):
                    if outcome.success:
                        outcome.itl.append(now - last)
                    else:
                        outcome.ttft, outcome.success = now - outcome.start_time, True
                    last = now
                    choice = event["choices"][0]
                    outcome.text += (choice["delta"].get("content") if self.chat else choice.get("text")) or ""
                elif usage := event.get("usage"):
                    outcome.output_tokens, outcome.prompt_len = usage["completion_tokens"], usage["prompt_tokens"]
                    outcome.exact = event.get("exact")
        except (OSError, EOFError, ValueError) as error:
            outcome.success, outcome.error = False, f"{type(error).__name__}: {error}"
        if not outcome.success and not outcome.error:
            outcome.error = "Never received a valid chunk to calculate TTFT.This response will be marked as failed!"
        outcome.latency = last - outcome.start_time

    async def _events(self, raw: bytes, outcome: Outcome) -> Any:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            key = os.environ.get("OPENAI_API_KEY")
            auth = f"authorization: Bearer {key}\r\n" if key else ""
            writer.write(
                f"POST {self.path} HTTP/1.1\r\nhost: {self.host}\r\n{auth}content-type: application/json\r\n"
                f"content-length: {len(raw)}\r\nconnection: close\r\n\r\n".encode()
                + raw
            )
            await writer.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            if head.split(" ")[1] != "200":
                outcome.error = head.partition("\r\n")[0].split(" ", 2)[2]
                return
            while size := int(await reader.readline(), 16):
                block = (await reader.readexactly(size + 2))[:-2].decode()
                for message in block.split("\n\n"):
                    if message and message != "data: [DONE]":
                        yield json.loads(message.removeprefix("data: "))
        finally:
            writer.close()
