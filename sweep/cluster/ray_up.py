"""Ray: started here or joined, quietly, watched while it runs."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sweep.errors import ClusterLost, HostError

# Ray would otherwise print progress tables and tracebacks, write the files of three loggers and report its use.
_QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# Trials pass a few kilobytes through Ray; its default is a third of the machine's memory.
_OBJECT_STORE_BYTES = 100 << 20
# No idle worker for every core of the machine, busy starting while the baseline is measured. And none that steps back
# behind whatever else runs (Ray's default is a niceness of 15): servers inherit it, and in production they do not.
_LOCAL = {"prestart_worker_first_driver": False, "worker_niceness": 0}
_LOOK_EVERY_S, _CONNECT_WAIT_S, _LOOKS_UNTIL_LOST = 1.0, 5.0, 3
_STUCK_AFTER_S = 5.0


@contextmanager
def ray_cluster(
    address: str | None,
    *,
    messages: Path,
    when_stuck: Callable[[ClusterLost], object],
    starting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    gpus: int | None = None,
) -> Iterator[Callable[[], None]]:
    """Ray for the duration: a local one, or the cluster at `address`. `gpus`: how many a local one is to claim.

    Ray is started within `starting`, in which no signal may raise. Gives a function to call often, which raises
    ClusterLost once Ray is gone. Where it is not called any more because the thread hangs inside Ray, `when_stuck` is
    called from another one, to say what is left to say; then the process ends with exit code 1. What Ray wants to say
    to the terminal goes to the file `messages`. Raises HostError when Ray cannot be had.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    logging.getLogger("ray").setLevel(logging.CRITICAL)  # from the first word on; ray.init does it at its end
    _divert_messages(messages)
    _leave_sigterm_alone()
    # Of Ray's own making, and nothing a person could act on.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"ray\..*")
    if address is None:
        _stay_on_loopback(True)
    else:
        _knock(address)
    try:
        with starting():
            _start(address, gpus)
        with _watched(_symptom_of(address), when_stuck) as check:
            yield check
    finally:
        ray.shutdown()
        if address is None:
            _stay_on_loopback(False)


def _knock(address: str) -> None:
    """Look whether there is a cluster that takes us: Ray itself tries for half a minute and tells by a traceback.

    Raises HostError.
    """
    from ray._private import services
    from ray._private.authentication import authentication_token_setup as setup
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled, and not in its stub
    from ray.exceptions import AuthenticationError, RayError

    if "://" in address:
        return
    try:
        place = services.canonicalize_bootstrap_address_or_die(address)
        host, _, port = place.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_WAIT_S).close()
    except OSError as error:
        raise HostError(f"no Ray cluster at {address}: {error.strerror or first_line(error)}") from None
    except ValueError as error:
        raise HostError(f"no Ray cluster at {address}: {first_line(error)}") from None
    given = False
    try:
        if address == "auto":  # what Ray does for clusters it finds itself
            setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        setup.ensure_token_if_auth_enabled(create_token_if_missing=False)
        given = os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
        GcsClient(address=place).internal_kv_get(b"session_name", b"session", timeout=_CONNECT_WAIT_S)
    except AuthenticationError:
        raise HostError(
            f"the Ray cluster at {address} asks for a token: {'the one given here is another; ' if given else ''}"
            "set RAY_AUTH_MODE=token, and its token in RAY_AUTH_TOKEN or ~/.ray/auth_token"
        ) from None
    except RayError as error:
        raise HostError(f"no Ray cluster at {address}: {first_line(error)}") from None


def _start(address: str | None, gpus: int | None) -> None:
    import ray

    try:
        ray.init(
            address=address or "local",
            num_gpus=gpus if address is None else None,
            object_store_memory=_OBJECT_STORE_BYTES if address is None else None,
            include_dashboard=False if address is None else None,
            _system_config=_LOCAL if address is None else None,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        if address is None:
            raise HostError(f"Ray does not start here: {first_line(error)}") from None
        raise HostError(f"no Ray cluster at {address}: {first_line(error)}") from None
    # Ray's compiled part took it meanwhile, below Python: setting the same handler once more puts Python's in place.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


def first_line(error: BaseException) -> str:
    """What an error of Ray says in one line; its messages go on for pages, and some are a whole traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1] if lines[0].startswith("Traceback (") else lines[0]


def _divert_messages(log: Path) -> None:
    """Ray prints on standard output what its processes report, among it that a worker was ended for want of memory."""
    from ray._private import worker

    def keep(data: Mapping[str, Any], ignore_prefix: bool = False) -> None:
        del ignore_prefix
        with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:
            file.write("\n".join([*data.get("lines", ()), ""]))

    worker.print_to_stdstream = keep


def _stay_on_loopback(stay: bool) -> None:
    """All servers of a Ray of one machine listen on loopback alone: what Ray does where it knows no clusters.

    Otherwise they listen on every interface, whatever address Ray is given.
    """
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = not stay
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0" if stay else "1"  # for its processes


def _leave_sigterm_alone() -> None:
    """Ray takes SIGTERM for a crash of its own, from the first moment of its start on: a page of text, exit code 1."""
    from ray._private import ray_constants, utils

    utils.set_sigterm_handler = lambda _handler: None
    ray_constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER = True  # and below Python


@contextmanager
def _watched(
    symptom: Callable[[], str | None], when_stuck: Callable[[ClusterLost], object]
) -> Iterator[Callable[[], None]]:
    """Gives a function that raises ClusterLost once `symptom` has named some trouble a few times in a row.

    Ray itself tells a driver nothing for a minute and then ends its process from below, without a word to Python.
    """
    over, found = threading.Event(), [""]

    def look() -> None:
        count = 0
        while count < _LOOKS_UNTIL_LOST:
            if over.wait(_LOOK_EVERY_S):
                return
            trouble = symptom()
            count = count + 1 if trouble else 0
            found[0] = f"Ray is gone: {trouble}" if count == _LOOKS_UNTIL_LOST else ""
        if not over.wait(_STUCK_AFTER_S):
            when_stuck(ClusterLost(found[0]))
            sys.stdout.flush()
            os._exit(1)

    def check() -> None:
        if found[0]:
            raise ClusterLost(found[0])

    threading.Thread(target=look, name="ray-watch", daemon=True).start()
    try:
        yield check
    except ClusterLost:
        # Ray Tune's own complaint may come first: the watch knows better.
        over.wait(_LOOK_EVERY_S * (_LOOKS_UNTIL_LOST + 1))
        check()
        raise
    finally:
        over.set()


def _symptom_of(address: str | None) -> Callable[[], str | None]:
    """What looks whether Ray is there: its control service answers, and the processes of a local one live."""
    import ray
    from ray._private import worker

    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    node = getattr(worker, "_global_node", None) if address is None else None
    started = [(kind, info.process) for kind, infos in getattr(node, "all_processes", {}).items() for info in infos]
    needed = [(kind, process) for kind, process in started if kind in ("raylet", "gcs_server")]

    def symptom() -> str | None:
        for kind, process in needed:
            if process.poll() is not None:
                return f"its process {kind} ended with exit code {process.returncode}"
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_WAIT_S):
                pass
        except OSError as error:
            return f"nothing answers at {host}:{port} ({error.strerror or error})"
        if address is not None and not any(one["Alive"] for one in ray.nodes()):
            return f"the cluster at {host}:{port} has lost its last node"
        return None

    return symptom
