"""The rules themselves: every sentence is found where it stands alone, and none is found where it does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sweep.diagnosis import Evidence, FailureClass, diagnose
from sweep.diagnosis.lines import candidates, parse
from sweep.diagnosis.message import unwrap
from sweep.diagnosis.resolve import others_in_message
from sweep.diagnosis.scan import RULES

HEALTHY = (Path(__file__).parent / "data" / "healthy_server.log").read_text(encoding="utf-8")


@pytest.mark.parametrize("phase", ["startup", "load", "client", "teardown", "host"])
def test_nothing_is_found_in_the_log_of_a_good_run(phase: str) -> None:
    found = diagnose(Evidence(phase, log=HEALTHY))
    assert found.line is None
    assert found.failure_class in (FailureClass.UNKNOWN, FailureClass.OTHER)


@pytest.mark.parametrize(
    "text",
    [
        "the room is full of zoom OOMPH",
        "we said CUDA out of memory in passing",
        "see also: ValueError: No available memory for the cache blocks.",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True is set",
        "no thread block found: [8,0,0]",
        "Reducing block sizes or `num_stages` may help.",
        "# [Errno 98] is what a taken port looks like",
        "Port 8000 is already in use, trying port 8001",
    ],
)
def test_sentences_in_the_middle_of_a_line_are_hearsay(text: str) -> None:
    assert diagnose(Evidence("startup", log=text)).failure_class is FailureClass.UNKNOWN


def test_rules_that_listen_to_quiet_lines_are_not_kept_from_them() -> None:
    quiet = {
        "(E pid=1) INFO 11-30 07:35:31 [shm.py:8] No available shared memory broadcast block found in 60 seconds.",
        "(A pid=1) INFO 11-30 07:35:31 [async_llm.py:789] Request cmpl-118 failed (engine dead).",
        '(A pid=1) INFO:     127.0.0.1:40274 - "POST /v1/completions HTTP/1.1" 404 Not Found',
        '(A pid=1) INFO:     127.0.0.1:40274 - "POST /v1/completions HTTP/1.1" 503 Service Unavailable',
        "INFO 11-30 07:35:31 [scheduler.py:1141] Sequence group 147 is preempted by PreemptionMode.RECOMPUTE mode",
        "INFO 11-30 07:35:31 [datasets.py:324] Oversampled requests to reach 300 total samples.",
        "(A pid=1) INFO:     Application startup complete.",
        "[kernel] INFO: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
    }
    assert set(candidates("\n".join(sorted(quiet)))) == quiet
    listeners = [rule for rule in RULES if rule.quiet_too]
    unheard = [rule for rule in listeners if not any(rule.pattern.search(parse(line).text) for line in quiet)]
    said_otherwise = re.compile("shm|Cuda failure|Killed process|NCCL WARN|server|stream|TTFT|All requests failed")
    assert all(said_otherwise.search(rule.pattern.pattern) for rule in unheard), unheard


def test_noise_is_dropped_before_anything_is_parsed() -> None:
    kept = list(candidates(HEALTHY))
    assert not [line for line in kept if "200 OK" in line or "Port 5601" in line]


@pytest.mark.parametrize(
    ("raw", "level", "text"),
    [
        (
            '(EngineCore_DP0 pid=1094) ERROR 02-08 10:22:31 [core.py:946]   File "x", line 1',
            "ERROR",
            'File "x", line 1',
        ),
        ("ERROR 12-21 09:14:02 engine.py:366] ValueError: no", "ERROR", "ValueError: no"),
        ("INFO:     Shutting down", "INFO", "Shutting down"),
        (
            "(Worker_TP0 pid=97) [rank0]:[W409 20:31:12.118 TCPStore.cpp:125] [c10d] recvValue failed",
            "WARNING",
            "recvValue failed",
        ),
        ("[server] (APIServer pid=90) INFO 11-30 04:10:10 [loggers.py:335] Engine", "INFO", "Engine"),
        (
            "2026-06-09 14:01:52.982 [Error] (Process) (EngineCore pid=4) ERROR 06-09 14:01:52 [core.py:1] x",
            "ERROR",
            "x",
        ),
        ("[Errno 98] stays", None, "[Errno 98] stays"),
    ],
)
def test_prefixes(raw: str, level: str | None, text: str) -> None:
    line = parse(raw)
    assert (line.level, line.text) == (level, text)


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        (
            "RuntimeError: Worker failed with error 'CUDA out of memory.', please check the stack trace above",
            "CUDA out of memory.",
        ),
        ("torch._inductor.exc.InductorError: RuntimeError: no compiler", "no compiler"),
        ("OutOfMemoryError('CUDA out of memory.')", "CUDA out of memory."),
        ("  Value error, World size (2) is larger", "World size (2) is larger"),
        ("ray.exceptions.RayTaskError(ValueError): ray::x", "ray::x"),
    ],
)
def test_wrappers_are_taken_off(text: str, inner: str) -> None:
    assert unwrap(parse(text)).texts[-1] == inner


@pytest.mark.parametrize(
    ("use", "others"),
    [
        ("Process 691170 has 139.65 GiB memory in use. Of the allocated memory 139.21 GiB is allocated by PyTorch", 0),
        ("Including non-PyTorch memory, this process has 139.60 GiB memory in use. Of the allocated memory 1.0 GiB", 0),
        ("Including non-PyTorch memory, this process has 60.00 GiB memory in use. Of the allocated memory 1.0 GiB", 1),
        ("Process 1 has 100.0 GiB memory in use. Process 2 has 39.0 GiB memory in use. Of the allocated memory 38.5 "
         "GiB is allocated by PyTorch", 1),
    ],
)  # fmt: skip
def test_whose_memory_it_is_by_the_message_alone(use: str, others: int) -> None:
    text = f"CUDA out of memory. GPU 0 has a total capacity of 139.72 GiB of which 60.69 MiB is free. {use}"
    assert others_in_message(text) is bool(others)
