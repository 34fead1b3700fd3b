"""Ray: started here or joined, quietly, and what it has room for."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from sweep.errors import HostError

# Ray would otherwise print progress tables, write loggers' files for every trial and report its use.
_QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@contextmanager
def ray_cluster(address: str | None, *, gpus: int | None = None) -> Iterator[None]:
    """Ray for the duration: a local one, or the cluster at `address`. `gpus`: how many a local one is to claim.

    Raises HostError when it cannot be had.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    # Of Ray's own making, and nothing a person could act on.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"ray\..*")
    try:
        ray.init(
            address=address or "local",
            num_gpus=gpus if address is None else None,
            include_dashboard=False if address is None else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = f"no Ray cluster at {address}" if address else "Ray does not start here"
        raise HostError(f"{where}: {str(error).strip().splitlines()[0]}") from None
    try:
        yield
    finally:
        ray.shutdown()


def room_for(gpus: int, cpus: float, asked: int | None) -> int:
    """How many trials run at once. Raises HostError when the cluster cannot hold a single one."""
    import ray

    have = ray.cluster_resources()  # type: ignore[no-untyped-call]
    have_gpus, have_cpus = have.get("GPU", 0.0), have.get("CPU", 0.0)
    if gpus > have_gpus or cpus > have_cpus:
        raise HostError(
            f"a trial needs {gpus} GPUs and {cpus:g} CPUs, but the cluster has {have_gpus:g} and {have_cpus:g}; "
            "see resources in the study file"
        )
    by_cpu = int(have_cpus // cpus) if cpus else 10**6
    fits = min(int(have_gpus // gpus), by_cpu) if gpus else (by_cpu if asked else 1)
    return max(1, min(fits, asked or fits))
