"""What goes into a diagnosis and what comes out: values only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class FailureClass(StrEnum):
    """The name of a cause."""

    WEIGHTS_OOM = "weights_oom"
    KV_CACHE_TOO_SMALL = "kv_cache_too_small"
    STARTUP_OOM = "startup_oom"
    LOAD_OOM = "load_oom"
    MEMORY_TAKEN_BY_OTHER = "memory_taken_by_other"
    INVALID_FLAGS = "invalid_flags"
    UNSUPPORTED_BLOCK_SIZE = "unsupported_block_size"
    PORT_IN_USE = "port_in_use"
    WORKER_INIT_FAILED = "worker_init_failed"
    ENGINE_DIED = "engine_died"
    HEALTH_TIMEOUT = "health_timeout"
    CLIENT_ERROR = "client_error"
    DATASET_MALFORMED = "dataset_malformed"
    TOKENIZER_ERROR = "tokenizer_error"
    DRIVER_ERROR = "driver_error"
    OTHER = "other"
    UNKNOWN = "unknown"


class Policy(StrEnum):
    """What a study does about a cause.

    INFEASIBLE: deterministic and caused by the flags: told to the search, never tried again.
    STOP: deterministic and not caused by the flags: ends the study, see `Diagnosis.stop_at_once`.
    RETRY: transient: wait, try the same point again up to a limit, the search hears nothing until then.
    HOST: this machine needs a person or time (disk, shared memory, RAM, a lost node): pause or stop, plainly.
    KEEP: nothing failed: the trial counts, with a remark.
    """

    INFEASIBLE = "infeasible"
    STOP = "stop"
    RETRY = "retry"
    HOST = "host"
    KEEP = "keep"


class Phase(StrEnum):
    """When it happened."""

    STARTUP = "startup"
    LOAD = "load"
    TEARDOWN = "teardown"
    CLIENT = "client"
    DATASET = "dataset"
    HOST = "host"


_OTHER_WORDS = {"start": Phase.STARTUP, "ready": Phase.STARTUP, "warmup": Phase.LOAD, "stop": Phase.TEARDOWN}


def phase_of(word: str) -> Phase:
    """The phase of a word: those of `Phase` and start, ready, warmup, stop. Raises ValueError for any other."""
    return _OTHER_WORDS.get(word) or Phase(word)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about a failure. Everything but the phase may be missing.

    `log` is a file, or the text of a log, or its lines. `error` is the text of our own error and `reason` its stable
    word (see `reasons.REASONS`). `memory_before_gib` is the device memory that others used before the launch, on the
    device where it was largest. `phase` None lets the log tell.
    """

    phase: str | None
    exit_code: int | None = None
    log: Path | str | Iterable[str] | None = None
    error: str | None = None
    reason: str | None = None
    memory_before_gib: float | None = None
    memory_total_gib: float | None = None
    disk_free_gib: float | None = None
    shm_free_gib: float | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A cause and its consequences.

    `line` is the matched line of the log without logger prefixes, None when no line tells; an assert without words has
    its code beside it. `retryable`: the same configuration could work on another try. `informative_for_search`: the
    search should learn that this configuration is infeasible. `stop_at_once` belongs to policy STOP: False means after
    several failures of the same cause in a row (three, unless the study says otherwise; see `cause_of`). `advice` is
    one line for a person. `nothing_found`: nothing in the evidence speaks of a failure at all.
    """

    failure_class: FailureClass
    line: str | None
    phase: Phase
    retryable: bool
    informative_for_search: bool
    policy: Policy
    advice: str
    stop_at_once: bool = False
    nothing_found: bool = False
