"""What our own checks and a process's end mean where no log names a cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sweep.diagnosis.values import FailureClass as Class


@dataclass(frozen=True, slots=True)
class Reason:
    """What our own check means when no log names a cause. `certain`: it is the cause itself."""

    failure_class: Class
    advice: str
    certain: bool = False
    retryable: bool | None = None
    host: bool = False


_AGAIN = "Tried again."
REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        "memory_busy": Reason(
            Class.MEMORY_TAKEN_BY_OTHER, "The device is not free: wait for the process named, or end it.", certain=True
        ),
        "port_busy": Reason(Class.PORT_IN_USE, "The port is taken: tried again with another one.", certain=True),
        "disk_full": Reason(
            Class.OTHER, "The disk is full: free space (caches, results, logs), then start again.", True, host=True
        ),
        "left_behind": Reason(
            Class.OTHER,
            "Processes of the server cannot be ended, so its devices cannot be used again: look at them (state D means "
            "the driver holds them), a restart of the machine may be needed.",
            certain=True,
            host=True,
        ),
        "timeout_ready": Reason(
            Class.HEALTH_TIMEOUT,
            "The server lived and was not ready in time: tried again with warm caches; raise the start-up limit if it "
            "stays.",
        ),
        "server_died": Reason(
            Class.ENGINE_DIED,
            "The server ended by itself and its log does not say why: cause not visible. Tried again.",
        ),
        "client_exit": Reason(Class.CLIENT_ERROR, "The load client ended with an error; see its log."),
        "timeout_load": Reason(
            Class.CLIENT_ERROR, "The load did not end in its time while the server lived. " + _AGAIN, retryable=True
        ),
        "no_progress": Reason(
            Class.CLIENT_ERROR, "No request was finished for too long while the server lived. " + _AGAIN, retryable=True
        ),
        "result_missing": Reason(Class.CLIENT_ERROR, "The load client wrote no result. " + _AGAIN, retryable=True),
        "result_malformed": Reason(
            Class.CLIENT_ERROR, "The load client's result cannot be read. " + _AGAIN, retryable=True
        ),
        "implausible_latency": Reason(
            Class.CLIENT_ERROR, "The load client reports latencies that cannot be. " + _AGAIN, retryable=True
        ),
        "incomplete_outputs": Reason(
            Class.CLIENT_ERROR, "Answers broke off although the client counts them as good. " + _AGAIN, retryable=True
        ),
        "success_rate": Reason(
            Class.CLIENT_ERROR, "Too many requests failed to believe the rest; see the client's log."
        ),
        "requests_differ": Reason(
            Class.CLIENT_ERROR, "The load client did not send what was planned: its version is another than expected."
        ),
    }
)
KILLED_BY_KERNEL = Reason(
    Class.OTHER,
    "A process of the engine was killed while starting, most often by the kernel because the host's RAM ran out: see "
    "its log (dmesg).",
    host=True,
)
CLIENT_KILLED = Reason(
    Class.CLIENT_ERROR,
    "The load client was killed by a signal that this trial did not send, while the server lived: no verdict on the "
    "flags. Tried again; if it stays, the kernel's log (dmesg) says whether RAM ran out.",
    retryable=True,
)
CLIENT_CANNOT_RUN = Reason(
    Class.CLIENT_ERROR, "The load client met an illegal instruction: its build needs a newer processor."
)
SIGNALS: Mapping[int, Reason] = MappingProxyType(
    {
        4: Reason(Class.OTHER, "Illegal instruction: this build needs a newer processor."),
        6: Reason(Class.ENGINE_DIED, "Aborted by itself: tried again once before anything is blamed."),
        7: Reason(
            Class.WORKER_INIT_FAILED,
            "Bus error: /dev/shm is full or too small; clean it up or give it more.",
            retryable=False,
            host=True,
        ),
        9: Reason(
            Class.ENGINE_DIED,
            "Killed by a signal that this trial did not send; the kernel's log (dmesg) says whether RAM ran out. Tried "
            "again.",
        ),
        11: Reason(Class.ENGINE_DIED, "Segmentation fault: tried again once before anything is blamed."),
    }
)
