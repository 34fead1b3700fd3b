"""Diagnosis against labelled cases: the shared ones, and our own with their look-alikes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sweep.diagnosis import REASONS, Diagnosis, Evidence, FailureClass, Phase, Policy, diagnose, is_farewell

HERE = Path(__file__).parent
SHARED = HERE.parents[1] / "shared" / "cases" / "failures.jsonl"
OWN = HERE / "diagnosis_cases.jsonl"
GIVEN = ("exit_code", "reason", "error", "memory_before_gib", "memory_total_gib", "disk_free_gib")
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 47.53 GiB "
    "of which 1.00 GiB is free. Including non-PyTorch memory, this process has 46.50 GiB memory in use."
)
NOISE = (
    'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK',
    "(EngineCore pid=9) INFO 11-30 01:05:19 [x.py:1] an error would be logged here if memory was low",
    "WARNING 11-30 01:05:19 [z.py:2] Using a slow tokenizer. Errors may follow: CUDA out of memory is possible",
    "/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 "
    "leaked shared_memory objects to clean up at shutdown",
)


def cases_of(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        pytest.skip(f"no labelled cases at {path}")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def judged(case: dict[str, Any], lines: Sequence[str] | None = None) -> Diagnosis:
    log = case["log"].split("\n") if lines is None else lines
    if filler := case.get("filler"):
        log = [*log[: filler[0]], *[NOISE[0]] * filler[1], *log[filler[0] :]]
    return diagnose(Evidence(case["phase"], log=log, **{key: case[key] for key in GIVEN if key in case}))


def consequences(found: Diagnosis) -> tuple[bool, bool]:
    return found.retryable, found.informative_for_search


def test_shared_cases_have_the_right_class_and_consequence() -> None:
    cases = cases_of(SHARED)
    found = {case["id"]: judged(case) for case in cases}
    wrong = {
        case["id"]: str(found[case["id"]].failure_class)
        for case in cases
        if found[case["id"]].failure_class != case["truth"]
    }
    assert len(wrong) <= 0.03 * len(cases), wrong
    for case in cases:
        if case["id"] not in wrong:
            labelled = (case["retryable"], case["informative_for_search"])
            assert consequences(found[case["id"]]) == labelled, case["id"]


@pytest.mark.parametrize("case", cases_of(OWN), ids=lambda case: str(case["id"]))
def test_own_case(case: dict[str, Any]) -> None:
    found = judged(case)
    assert found.failure_class in (case["truth"], *case.get("also", ())), found
    if found.failure_class == case["truth"]:
        assert consequences(found) == (case["retryable"], case["informative_for_search"]), found


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda line: f"vllm-1  | {line}", id="container"),
        pytest.param(lambda line: f"2026-02-24T20:21:58.123Z {line}", id="time stamp"),
        pytest.param(lambda line: f"\x1b[1;36m{line}\x1b[0;0m", id="colours"),
        pytest.param(lambda line: f"{line}\r", id="carriage return"),
        pytest.param(lambda line: f"[pod/vllm-0/main] {line}", id="pod"),
        pytest.param(lambda line: f"Nov 30 01:05:19 host vllm[123]: {line}", id="journal"),
    ],
)
def test_what_other_tools_put_in_front_changes_nothing(wrap: Callable[[str], str]) -> None:
    for case in cases_of(OWN):
        if case["log"]:
            found = judged(case, [wrap(line) for line in case["log"].split("\n")])
            assert found.failure_class == judged(case).failure_class, case["id"]


def test_noise_between_the_lines_changes_nothing() -> None:
    chance = random.Random(7)
    for case in cases_of(OWN):
        if case["log"]:
            mixed = [text for line in case["log"].split("\n") for text in (line, chance.choice(NOISE))]
            assert judged(case, mixed).failure_class == judged(case).failure_class, case["id"]


def test_the_line_is_verbatim_without_its_prefixes() -> None:
    found = diagnose(Evidence("load", log=f"(EngineCore_DP0 pid=3) ERROR 11-30 01:05:19 [core.py:700] {OOM}\n"))
    assert (found.line, found.failure_class, found.phase) == (OOM, FailureClass.LOAD_OOM, Phase.LOAD)


@pytest.mark.parametrize(
    ("phase", "failure_class"),
    [
        ("startup", FailureClass.STARTUP_OOM),
        ("start", FailureClass.STARTUP_OOM),
        ("ready", FailureClass.STARTUP_OOM),
        ("load", FailureClass.LOAD_OOM),
        ("warmup", FailureClass.LOAD_OOM),
    ],
)
def test_out_of_memory_is_told_apart_by_the_phase(phase: str, failure_class: FailureClass) -> None:
    found = diagnose(Evidence(phase, log=OOM))
    assert found.failure_class is failure_class
    assert found.policy is Policy.INFEASIBLE


@pytest.mark.parametrize("text", [OOM, "ValueError: No available memory for the cache blocks."])
@pytest.mark.parametrize(
    ("reading", "taken"),
    [(None, False), (0.0, False), (0.6, False), (20.0, True)],
    ids=["none", "0", "display", "20 GiB"],
)
def test_the_reading_before_the_launch_decides_whose_fault_it_is(text: str, reading: float | None, taken: bool) -> None:
    found = diagnose(Evidence("startup", log=text, memory_before_gib=reading, memory_total_gib=47.5))
    assert (found.failure_class is FailureClass.MEMORY_TAKEN_BY_OTHER) is taken
    assert found.policy is (Policy.RETRY if taken else Policy.INFEASIBLE)


@pytest.mark.parametrize(
    ("figures", "reading", "taken"),
    [
        ("(31.66/79.18 GiB) on startup is less than desired GPU memory utilization (0.92, 72.85 GiB)", None, True),
        ("(31.66/79.18 GiB) on startup is less than desired GPU memory utilization (0.92, 72.85 GiB)", 0.0, True),
        ("(78.61/79.18 GiB) on startup is less than desired GPU memory utilization (0.995, 78.79 GiB)", None, False),
        ("(77.90/79.18 GiB) on startup is less than desired GPU memory utilization (0.99, 78.39 GiB)", 0.6, False),
        ("(70.00/79.18 GiB) on startup is less than desired GPU memory utilization (0.92, 72.85 GiB)", 8.6, True),
    ],
)
def test_the_check_of_free_memory_is_read_with_its_figures(figures: str, reading: float | None, taken: bool) -> None:
    text = f"ValueError: Free memory on device cuda:0 {figures}. Decrease GPU memory utilization."
    found = diagnose(Evidence("startup", log=text, memory_before_gib=reading, memory_total_gib=79.18))
    expected = FailureClass.MEMORY_TAKEN_BY_OTHER if taken else FailureClass.STARTUP_OOM
    assert found.failure_class is expected


def test_a_foreign_process_that_cannot_explain_what_lacks_is_not_blamed() -> None:
    text = (
        "ValueError: To serve at least one request with the model's max seq len (262144), (24.0 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (3.18 GiB)."
    )
    found = diagnose(Evidence("startup", log=text, memory_before_gib=2.0))
    assert found.failure_class is FailureClass.KV_CACHE_TOO_SMALL


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_of_ours_has_a_class_without_any_log(reason: str) -> None:
    found = diagnose(Evidence("load", reason=reason, error="what we saw"))
    assert found.failure_class is not FailureClass.UNKNOWN
    assert found.line is None
    assert "what we saw" not in found.advice  # it is shown beside the advice, and once is enough


@pytest.mark.parametrize("reason", ["timeout_ready", "server_died", "client_exit", "success_rate"])
def test_a_cause_in_the_log_wins_over_what_we_saw_from_outside(reason: str) -> None:
    found = diagnose(Evidence("load", reason=reason, log=OOM, exit_code=1))
    assert (found.failure_class, found.line) == (FailureClass.LOAD_OOM, OOM)


@pytest.mark.parametrize(
    ("reason", "policy"),
    [
        ("disk_full", Policy.HOST),
        ("left_behind", Policy.HOST),
        ("memory_busy", Policy.RETRY),
        ("port_busy", Policy.RETRY),
    ],
)
def test_checks_before_a_launch_are_causes_themselves(reason: str, policy: Policy) -> None:
    assert diagnose(Evidence("host", reason=reason, log=OOM)).policy is policy


@pytest.mark.parametrize("code", [-9, 137])
def test_a_kill_of_our_own_after_a_timeout_is_not_taken_for_a_cause(code: int) -> None:
    assert (
        diagnose(Evidence("start", reason="timeout_ready", exit_code=code)).failure_class is FailureClass.HEALTH_TIMEOUT
    )
    assert diagnose(Evidence("load", reason="server_died", exit_code=code)).failure_class is FailureClass.ENGINE_DIED


@pytest.mark.parametrize("code", [-1, -2, -9, -11, -15, 130, 137, 143])
@pytest.mark.parametrize("log", ["", 'INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK'])
def test_a_killed_load_client_is_a_fault_of_the_client_and_tried_again(code: int, log: str) -> None:
    found = diagnose(Evidence("load", reason="client_exit", exit_code=code, log=log))
    assert (found.failure_class, found.policy, found.phase) == (FailureClass.CLIENT_ERROR, Policy.RETRY, Phase.CLIENT)
    assert consequences(found) == (True, False)
    by_hand = diagnose(Evidence("client", exit_code=code, log=log))
    assert (by_hand.failure_class, by_hand.policy) == (FailureClass.CLIENT_ERROR, Policy.RETRY)


def test_an_interrupt_that_meets_a_client_in_its_start_is_tried_again() -> None:
    log = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nKeyboardInterrupt\n'
    found = diagnose(Evidence("client", reason="client_exit", exit_code=1, log=log))
    assert (found.failure_class, found.policy, found.line) == (
        FailureClass.CLIENT_ERROR,
        Policy.RETRY,
        "KeyboardInterrupt",
    )


def test_a_cause_in_the_servers_log_wins_over_a_killed_client() -> None:
    found = diagnose(Evidence("load", reason="client_exit", exit_code=-9, log=OOM))
    assert (found.failure_class, found.line) == (FailureClass.LOAD_OOM, OOM)
    died = "ERROR [core.py:700] Failed core proc(s): {'EngineCore_DP0': -9}"
    assert diagnose(Evidence("load", reason="client_exit", exit_code=-15, log=died)).failure_class is (
        FailureClass.ENGINE_DIED
    )


@pytest.mark.parametrize("code", [1, 2, 255, -4])
def test_a_load_client_that_fails_by_itself_is_not_tried_again(code: int) -> None:
    found = diagnose(Evidence("load", reason="client_exit", exit_code=code))
    assert (found.failure_class, found.policy) == (FailureClass.CLIENT_ERROR, Policy.STOP)


@pytest.mark.parametrize(
    ("log", "policy", "at_once"),
    [
        ("OSError: /models/absent is not a local folder and is not a valid model identifier", Policy.STOP, True),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", Policy.STOP, True),
        ("RuntimeError: Error building extension 'sampling'", Policy.STOP, False),
        ("OSError: [Errno 28] No space left on device", Policy.HOST, False),
        ("OSError: [Errno 98] Address already in use", Policy.RETRY, False),
        ("vllm: error: unrecognized arguments: --max-num-sequences 64", Policy.INFEASIBLE, False),
    ],
)
def test_policies(log: str, policy: Policy, at_once: bool) -> None:
    found = diagnose(Evidence("startup", log=log))
    assert (found.policy, found.stop_at_once) == (policy, at_once)


def test_full_disk_and_full_shared_memory_explain_a_death_without_words() -> None:
    assert diagnose(Evidence("load", reason="server_died", disk_free_gib=0.0)).policy is Policy.HOST
    found = diagnose(Evidence("startup", reason="server_died", disk_free_gib=90.0, shm_free_gib=0.0))
    assert (found.failure_class, found.policy) == (FailureClass.WORKER_INIT_FAILED, Policy.HOST)


def test_no_evidence_is_said_to_be_none() -> None:
    found = diagnose(Evidence("startup", log="ERROR 11-30 01:05:19 [x.py:1] something never heard of\n", exit_code=3))
    assert (found.failure_class, found.line) == (FailureClass.UNKNOWN, None)
    assert "unknown" in found.advice
    assert "exit code 3" in found.advice
    assert "something never heard of" in found.advice


def test_a_stop_by_signal_is_no_failure_of_a_good_trial() -> None:
    log = "INFO:     Application startup complete.\nINFO [shutdown] EngineCore: trigger received signal=SIGTERM\n"
    log += "ERROR 11-30 01:05:19 [async_llm.py:906] AsyncLLM output_handler failed.\n"
    assert diagnose(Evidence("teardown", log=log)).policy is Policy.KEEP
    assert diagnose(Evidence(None, log=log)).policy is Policy.KEEP
    assert diagnose(Evidence("load", log=log)).failure_class is FailureClass.ENGINE_DIED


def test_without_a_phase_the_log_tells() -> None:
    serving = f"INFO:     Application startup complete.\n{OOM}\n"
    assert diagnose(Evidence(None, log=OOM)).failure_class is FailureClass.STARTUP_OOM
    assert diagnose(Evidence(None, log=serving)).failure_class is FailureClass.LOAD_OOM
    found = diagnose(
        Evidence(
            None,
            log="Starting initial single prompt test run...\nError: Not Found\nValueError: Initial test run failed",
        )
    )
    assert (found.failure_class, found.phase) == (FailureClass.CLIENT_ERROR, Phase.CLIENT)


def test_words_nobody_knows_are_refused() -> None:
    with pytest.raises(ValueError, match="brunch"):
        diagnose(Evidence("brunch"))
    with pytest.raises(ValueError, match="bad mood"):
        diagnose(Evidence("load", reason="bad mood"))


def test_a_log_file_of_any_kind_is_read(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    noise = b"\xff\xfe broken bytes \x80 and a progress bar 10%\r20%\r30%\n" * 40_000 + b"x" * 3_000_000 + b"\n"
    log.write_bytes(noise + OOM.encode() + b"\r\n" + noise)
    found = diagnose(Evidence("load", log=log))
    assert (found.failure_class, found.line) == (FailureClass.LOAD_OOM, OOM)
    assert diagnose(Evidence("load", log=tmp_path / "absent.log")).failure_class is FailureClass.UNKNOWN


def test_a_log_is_read_once_and_never_held() -> None:
    given = 0

    def lines() -> Any:
        nonlocal given
        for number in range(60_000):
            given += 1
            yield f"WARNING 11-30 01:05:19 [z.py:2] Running {number} of many"
        yield OOM

    assert diagnose(Evidence("load", log=lines())).failure_class is FailureClass.LOAD_OOM
    assert given == 60_000


@pytest.mark.parametrize(
    ("line", "farewell"),
    [
        ("nanobind: leaked 514 functions!", True),
        (' - leaked type "triton._C.libtriton.ir.builder"', True),
        (" - leaked instance 0x7f01 of type \"x\"", True),
        (" - ... skipped remainder", True),
        ("See https://nanobind.readthedocs.io/en/latest/refleaks.html", True),
        ("/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to "
         "be 1 leaked semaphore objects to clean up at shutdown", True),
        ("  warnings.warn('resource_tracker: There appear to be %d '", True),
        ("INFO:     Application shutdown complete.", False),
        ("ERROR nanobind: cannot load", False),
        (" - leaked money", False),
    ],
)  # fmt: skip
def test_what_a_process_counts_on_its_way_out_is_no_evidence(line: str, farewell: bool) -> None:
    assert is_farewell(line) is farewell
