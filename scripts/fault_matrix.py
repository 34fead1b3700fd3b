"""The cells of `bench_faults`: what goes wrong, when, and what it must be called and come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hits import PHASES, SIGNALS, TREE, lasting

INFEASIBLE, RETRY, STOP, HOST = "infeasible", "retry", "stop", "host"


@dataclass(frozen=True, slots=True)
class Row:
    """What a cell came to. `found` is the class of the first attempt."""

    fault: str
    phase: str
    expected: str
    found: str
    policy: str
    right_class: bool
    right_policy: bool
    attempts: int
    orphans: int
    lost_rows: int
    wrong_winner: bool
    turnaround_s: float | None


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault in one phase.

    `fake`: how the fake server and client behave. `hit`: whom to send which signal. `classes` and `policies`: every
    right answer. `recovers`: a second attempt at the same flags must succeed, and `classes` is about the first one.
    `again`: a second attempt is made and fails, too; elsewhere the policy is told by the first.
    """

    fault: str
    phase: str
    classes: tuple[str, ...]
    policies: tuple[str, ...]
    fake: Mapping[str, Any] = field(default_factory=dict)
    hit: tuple[str, str] | None = None
    recovers: bool = False
    again: bool = False
    setup: Mapping[str, Any] = field(default_factory=dict)


def _start(fault: str, log: str, classes: str, policy: str, **more: Any) -> Cell:
    return Cell(fault, "start", (classes,), (policy,), {"log": log, "exit_code": 1, **more})


def _client(fault: str, **client: Any) -> Cell:
    return Cell(fault, "client", ("client_error",), (STOP, RETRY), {"client": client})


_PROFILING = (
    "AssertionError: Error in memory profiling. Initial free memory 40.05 GiB, current free memory 44.21 GiB. "
    "This happens when other processes sharing the same container release GPU memory while vLLM is profiling "
    "during initialization."
)
_NCCL = "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)"
_ONCE = {"fail_first_launches": 1, "state": "STATE"}
_QUICK_START = {"startup_timeout_s": 1.5}
_QUICK_LOAD = {"request_timeout_s": 1.0}
_DEAD = ("engine_died", "unknown", "other")

CELLS: tuple[Cell, ...] = (
    _start("out of memory", "@oom_start", "startup_oom", INFEASIBLE),
    _start("no room for KV cache", "@no_kv", "kv_cache_too_small", INFEASIBLE),
    _start("cause 20,000 lines up", "@no_kv", "kv_cache_too_small", INFEASIBLE, noise_lines=20_000),
    _start("block size", "@block_size", "unsupported_block_size", INFEASIBLE),
    _start("unknown flag", "vllm: error: unrecognized arguments: --max-seqs 4", "invalid_flags", INFEASIBLE),
    _start("no such model", "@no_model", "other", STOP),
    _start("driver too old", "@driver", "driver_error", STOP),
    _start("port taken", "@port", "port_in_use", RETRY),
    _start("distributed init", _NCCL, "worker_init_failed", RETRY),
    _start("says nothing", "", "unknown", RETRY),
    Cell("port taken once", "start", ("port_in_use",), (RETRY,), {"log": "@port", **_ONCE}, recovers=True),
    Cell("memory freed meanwhile", "start", ("memory_taken_by_other",), (RETRY,), {"log": _PROFILING, **_ONCE},
         recovers=True),
    Cell("distributed init once", "start", ("worker_init_failed",), (RETRY,), {"log": _NCCL, **_ONCE}, recovers=True),
    Cell("killed", "start", _DEAD, (RETRY, HOST), {"exit_signal": 9}, again=True),
    Cell("segmentation fault", "start", _DEAD, (RETRY, INFEASIBLE), {"exit_signal": 11}),
    Cell("never healthy", "ready", ("health_timeout",), (RETRY, INFEASIBLE), {"never_healthy": True},
         setup=_QUICK_START),
    Cell("never listens", "ready", ("health_timeout",), (RETRY, INFEASIBLE), {"no_listen": True}, setup=_QUICK_START),
    Cell("engine dead, health fine", "ready", ("health_timeout", "engine_died"), (RETRY, INFEASIBLE),
         {"engine_dead": True}, setup=_QUICK_START),
    Cell("another server answers", "ready", ("port_in_use", "health_timeout"), (RETRY,), {"api_key": "another"},
         setup=_QUICK_START),
    Cell("out of memory", "load", ("load_oom",), (INFEASIBLE,), {"die_at_request": 5, "die_log": "@oom_load"}),
    Cell("engine out of memory", "load", ("load_oom",), (INFEASIBLE,), {"engine_dies_at": 4}),
    Cell("one token a stream", "load", ("load_oom",), (INFEASIBLE,), {"one_token_from": 1}),
    Cell("server dies", "load", ("engine_died",), (RETRY,), {"die_at_request": 5}, again=True),
    Cell("server dies in mid-stream", "load", ("engine_died",), (RETRY,), {"die_mid_stream": 4}, again=True),
    Cell("server ends with 0", "load", ("engine_died",), (RETRY,), {"die_at_request": 5, "die_code": 0}),
    Cell("server is killed", "load", ("engine_died", "other"), (RETRY, HOST), {"die_at_request": 5, "die_signal": 9}),
    Cell("every request 500", "load", ("client_error",), (STOP, RETRY), {"all_500": True}),
    Cell("half of the requests 500", "load", ("client_error",), (STOP, RETRY), {"fail_share": 0.5}),
    Cell("stream without end", "load", ("client_error",), (STOP, RETRY), {"endless_stream_at": 4, "itl_ms": 50},
         setup=_QUICK_LOAD),
    Cell("no answer", "load", ("client_error",), (STOP, RETRY), {"hang_at": 4}, setup=_QUICK_LOAD),
    _client("no result file", result="none"),
    _client("empty result", result="empty"),
    _client("a web page for a result", result="html"),
    _client("result without content", result="braces"),
    _client("latencies not numbers", result="nan"),
    _client("latencies zero", result="zero"),
    _client("latencies negative", result="negative"),
    _client("latencies null", result="null"),
    _client("half a result", result="truncated"),
    _client("client fails", exit_code=2),
    Cell("client is killed", "client", ("client_error",), (RETRY,), {"client": {"exit_signal": 9}}),
    _client("client ends in mid-load", after_requests=3, exit_code=1),
    Cell("deaf to SIGTERM", "stop", (), (), {"ignore_sigterm": True}, setup={"stop_timeout_s": 0.5}),
    Cell("engine deaf to SIGTERM", "stop", (), (),
         {"grandchild": {"count": 2, "setsid": True, "ignore_sigterm": True, "clear_env": True}},
         setup={"stop_timeout_s": 0.5}),
)  # fmt: skip


def _signal(who: str, name: str, phase: str) -> Cell:
    """A signal to a process of a trial: a second attempt succeeds; while the server stops nothing is lost at all."""
    fault, stopping = f"{name} to the {who}", phase == "stop"
    classes = {"client": ("client_error",), "start": _DEAD}.get(who if who == "client" else phase, ("engine_died",))
    return Cell(
        fault,
        phase,
        () if stopping else classes,
        () if stopping else (RETRY,),
        lasting(phase),
        hit=(who, name),
        recovers=not stopping,
        setup={"stop_timeout_s": 0.6} if stopping else {},
    )


SIGNAL_CELLS = (
    *(_signal(who, name, phase) for who in TREE for phase in PHASES for name in SIGNALS),
    *(_signal("client", name, "load") for name in SIGNALS),
)
# Each phase and each signal, once or twice; the tests have more of them.
SOME_SIGNAL_CELLS = (
    _signal("server", "SIGTERM", "start"),
    _signal("engine", "SIGHUP", "ready"),
    _signal("server", "SIGINT", "warmup"),
    _signal("server", "SIGKILL", "load"),
    _signal("engine", "SIGKILL", "load"),
    _signal("supervisor", "SIGKILL", "load"),
    _signal("supervisor", "SIGTERM", "stop"),
    _signal("client", "SIGTERM", "load"),
    _signal("client", "SIGKILL", "load"),
)
