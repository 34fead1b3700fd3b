"""What a log says besides errors: how far the start came, readings, statistics, counts of the client, exit codes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sweep.diagnosis.frames import Stage, stage_of_marker

_WORDS = (
    "tartup complete", "Uvicorn", "Starting ", "enchmark", "usage:", "took", "takes", "KV cache", "GPU blocks",
    "Loading", "apturing", "init engine", "efore ", "exit code", "core proc(s)", "| ", "requests:",
    "hutdown", "hutting down", "SIGTERM", '" 5', "a fatal error",
)  # fmt: skip
# An engine that "failed to start" never served; one that "encountered a fatal error" was up.
_SERVING = re.compile(r"Application startup complete|Uvicorn running on|EngineCore encountered a fatal error")
_CLIENT = re.compile(r"Starting (?:initial single prompt|main benchmark)|Serving Benchmark Result|usage: .*\bbench")
_FAILED_ANSWER = re.compile(r'"POST /\S+ HTTP/1\.\d" 5\d\d\b')
_STOPPING = re.compile(r"\[shutdown\]|Shutting down|SIGTERM")
_BEFORE = re.compile(r"\bbefore (?:the )?launch\b.*?(\d+(?:\.\d+)?) ?(MiB|GiB|MB|GB)\b", re.IGNORECASE)
_KV_LEFT = re.compile(r"Available KV cache memory: (-?[\d.]+) G")
_THROUGHPUT = re.compile(
    r"generation throughput: ([\d.]+) tokens/s.*Running: (\d+) reqs?, .*?(?:Waiting|Pending): (\d+) reqs?"
)
_PREEMPTIONS = re.compile(r"\bPreemptions: (\d+)\b.*KV cache usage: ([\d.]+)%")
_ALL_DONE = re.compile(r"100%\|.*\| (\d+)/\1 \[")
_SUCCEEDED = re.compile(r"Successful requests: +(\d+)")
_FAILED = re.compile(r"Failed requests: +(\d+)")
_EXIT_CODE = re.compile(r"Failed core proc\(s\): \{'[^']+': (-\d+)|\(exit code: (-\d+)\)|died, exit code: (-\d+)")
_MANY_PREEMPTIONS = 10
_FULL_PERCENT = 95.0
_SHORT_QUEUE = 8  # requests waiting of which nothing follows


@dataclass(slots=True)
class Notes:
    """Facts of a log, as they stand after the lines taken so far. None: not said."""

    serving: bool = False
    client: bool = False
    stage: Stage | None = None
    memory_before_gib: float | None = None
    kv_left_gib: float | None = None
    crowded: bool = False  # the queue was longer than what ran
    stalled: bool = False  # requests ran and no token came, at the last look
    preemptions: str | None = None  # the line that shows a storm of them
    total: int | None = None
    succeeded: int | None = None
    failed: int | None = None
    exit_code: int | None = None  # of a child, negative for a signal
    told_to_stop: bool = False
    stopping: bool = False
    failed_answers: str | None = None  # the first line of an answer with a status of 500 or above

    def take(self, text: str) -> None:
        """One line without its prefixes."""
        if "throughput: " in text:
            self._statistics(text)
        if not any(word in text for word in _WORDS):
            return
        if _SERVING.search(text):
            self.serving = True
        elif _CLIENT.search(text):
            self.client = True
        elif self.stage is not Stage.AFTER_WEIGHTS:
            self.stage = stage_of_marker(text) or self.stage
        if found := _BEFORE.search(text):
            reading = float(found[1]) / (1024 if found[2].upper().startswith("M") else 1)
            self.memory_before_gib = max(self.memory_before_gib or 0.0, reading)
        if self.failed_answers is None and not self.stopping and _FAILED_ANSWER.search(text):
            self.failed_answers = text
        if _STOPPING.search(text):
            self.stopping = True
            self.told_to_stop = self.told_to_stop or "SIGTERM" in text
        if found := _KV_LEFT.search(text):
            self.kv_left_gib = float(found[1])
        if found := _EXIT_CODE.search(text):
            self.exit_code = self.exit_code or int(found[1] or found[2] or found[3])
            self.told_to_stop = self.told_to_stop or self.exit_code == -15
        self._count(text)

    def _statistics(self, text: str) -> None:
        if found := _THROUGHPUT.search(text):
            self.serving = True
            running, waiting = int(found[2]), int(found[3])
            self.crowded = self.crowded or waiting > max(running, _SHORT_QUEUE)
            self.stalled = running > 0 and float(found[1]) == 0.0
        found = _PREEMPTIONS.search(text)
        if found and int(found[1]) >= _MANY_PREEMPTIONS and float(found[2]) >= _FULL_PERCENT:
            self.preemptions = text

    def _count(self, text: str) -> None:
        if found := _ALL_DONE.search(text):
            self.total = int(found[1])
        elif found := _SUCCEEDED.match(text):
            self.succeeded = int(found[1])
        elif found := _FAILED.match(text):
            self.failed = int(found[1])
