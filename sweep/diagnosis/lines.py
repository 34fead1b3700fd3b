"""From a log of any size to the few lines that may matter, without colours and logger prefixes.

A log may be hundreds of megabytes, nearly all of it answered requests and progress. So it is read in blocks of about a
mebibyte, and lines that plainly are of that kind are dropped before anything is parsed.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_BLOCK = 1 << 20
_LONGEST_LINE = 1 << 14  # a request log may hold a whole prompt; no error text is longer than this

# What a collector of logs says of all that it collects, "INFO 2025-11-19T20:16:36.09Z [...] ", is no level of the line.
_COLLECTED = r"\d{4}-\d\d-\d\dT[\d:.]+Z?"
_INFORMS = re.compile(rf"(?:^|[\s)\]|])(?:INFO|DEBUG)(?! {_COLLECTED})(?::? +[\[\d]|: )")
_FOREIGN_PREFIX = 160
# The only informing lines that matter: progress, statistics, readings, refused requests, hints of a hang.
# fmt: off
_TELLING = (
    "tartup complete", "Uvicorn", "KV cache", "GPU blocks", " took ", "takes", "to load", "oading", "apturing",
    "init engine", "efore", "reempt", '" 4', '" 5', "engine dead", "block found", "enchmark", "versampl", "NCCL",
    "Xid", "GPU has", "hutdown", "hutting down", "SIGTERM",
    "illed", "oom", "OOM", "/dev/shm", "shm_open", "usage:", "failed requests", "not ready", "ll requests failed",
)
# fmt: on

# Control characters as they are, and as syslog (#033), cat -v (^[) and copies of terminals (ESC) write them.
_COLOUR = re.compile(r"(?:\x1b|#033|\^\[|ESC|\ufffd)\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|(?:#015|\^M)$")
_MAYBE_COLOUR = re.compile(r"[\x1b\ufffd]|#033|\^\[|ESC\[|#015|\^M")
# Where vLLM's own prefix begins, whatever other tools put in front of it.
_OWN_PREFIX = re.compile(
    r"\([\w.:/ =,-]*\bpid=\d+[^)]*\)"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d[ .,\d]+\[?[\w./-]+:\d+\]"
)
_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        # (EngineCore_DP0 pid=1094), (VllmWorker rank=3 pid=1090), (RayWorkerWrapper pid=335, ip=10.1.0.67)
        r"\((?P<speaker>[\w.:/ =,-]*\bpid=\d+)[^)]*\) ?",
        # ERROR 02-08 10:22:31 [core.py:946], ERROR 12-21 09:14:02 engine.py:366]
        r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? "
        r"\[?(?P<file>[\w./-]+):\d+\] ?",
        rf"(?:DEBUG|INFO|WARNING|ERROR) {_COLLECTED} (?:\[[^\]]*\] )?",
        r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):? +(?:\[(?P<file>[\w./-]+):\d+\] ?)?",
        # [rank0]:[W409 20:31:12.118 TCPStore.cpp:125], [E ProcessGroupNCCL.cpp:563], [rank0]:, [Rank 2], [c10d]
        r"\[(?P<letter>[IWEF])(?:\d{3,4} [\d:.]+)? [\w./]+\.(?:cpp|h|cu|py):\d+\] ?",
        r"\[(?P<speaker>rank\d+)\]: ?",
        r"\[(?:PG \w+ (?:\([^)]*\) )?)?Rank \d+\] ?|\[c10d\] ?",
        # CRI's stream of a container, a platform's name of a worker
        r"std(?:out|err) [FP] ?|[\w-]{6,40}\[(?:info|warn|warning|error|debug)\]",
        # tags of tools that merge several logs, container and pod names, journals, Python's loggers, times, glog
        r"[\[(](?P<source>server|client|tuner|kernel|raylet|vllm)[\])]:? ",
        r"- (?:[\w.]+ - )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) - (?:[\w.]+:\d+ - )?",
        r"[\w.-]*\s+\| +(?=\S)|\[[\w.-]+/[\w./-]+\]:? ",
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [\w./-]+(?:\[\d+\])?: ",
        r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?[ \t]+(?:\[[^\]=]*\] (?=\())?",
        r"(?P<letter>[IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w.]+:\d+\] ",
    )
)


_SOURCE = re.compile(r"\[(server|client|tuner|kernel|raylet)\]")


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its prefixes. `level` None: printed, not logged. `source`: server, client ... where tagged."""

    text: str
    level: str | None = None
    speaker: str = ""
    source: str = ""
    file: str = ""

    @property
    def quiet(self) -> bool:
        """Whether a logger said that this is no error."""
        return self.level in ("DEBUG", "INFO", "WARNING")


def parse(raw: str) -> Line:
    """Strip colours and every known prefix; the innermost logger's level counts."""
    raw = _unpacked(raw) if raw.startswith('{"log":') else raw
    text = _COLOUR.sub("", raw) if _MAYBE_COLOUR.search(raw) else raw
    found = {"level": "", "speaker": "", "source": "", "file": ""}
    if tag := _SOURCE.match(text):
        found["source"] = tag[1]
    if own := _OWN_PREFIX.search(text, 0, _FOREIGN_PREFIX):
        text = text[own.start() :]
    for _ in range(8):
        text = text.lstrip()
        for prefix in _PREFIXES:
            match = prefix.match(text)
            if match is not None and match.end() > 0:
                groups = {name: value for name, value in match.groupdict().items() if value}
                if letter := groups.pop("letter", ""):
                    groups["level"] = _LEVELS[letter]
                found.update(groups)
                text = text[match.end() :]
                break
        else:
            break
    return Line(text.strip(), found["level"] or None, found["speaker"], found["source"], found["file"])


def _unpacked(raw: str) -> str:
    """The line inside an object of Docker's `json-file`; what is none stays."""
    try:
        return str(json.loads(raw)["log"]).rstrip()
    except (ValueError, KeyError, TypeError, RecursionError):
        return raw


def candidates(log: Path | str | Iterable[str] | None) -> Iterator[str]:
    """The raw lines that may matter, in order. A file that cannot be read yields nothing."""
    if log is None:
        return
    if isinstance(log, Path):
        try:
            with log.open("rb") as stream:
                yield from _worthwhile(_decoded(stream))
        except OSError:
            return
    elif isinstance(log, str):
        yield from _worthwhile((log,))
    else:
        yield from _worthwhile(line if line.endswith("\n") else f"{line}\n" for line in log)


def _decoded(stream: BinaryIO) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while block := stream.read(_BLOCK):
        yield decoder.decode(block)
    yield decoder.decode(b"", final=True)


def _worthwhile(pieces: Iterable[str]) -> Iterator[str]:
    """Lines that are not plainly noise, from text cut anywhere. Carriage returns (progress bars) end a line, too."""
    waiting: list[str] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size < _BLOCK:
            continue
        *lines, rest = "".join(waiting).replace("\r", "\n").split("\n")
        yield from (line[:_LONGEST_LINE] for line in lines if not _noise(line))
        waiting = [rest[:_LONGEST_LINE]]  # an endless line keeps its head only
        size = len(waiting[0])
    last = "".join(waiting).replace("\r", "\n").split("\n")
    yield from (line[:_LONGEST_LINE] for line in last if not _noise(line))


def _noise(line: str) -> bool:
    """Whether a line is an answered request or informs of nothing that matters here: nearly all of a long log."""
    if not line or ('" 200' in line and "HTTP/1" in line):
        return True
    return _INFORMS.search(line, 0, _FOREIGN_PREFIX) is not None and not any(word in line for word in _TELLING)
