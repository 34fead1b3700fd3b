"""The look itself, on the machine it is about. Bounded: nothing here waits for more than a program's own help."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import resource
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sweep.errors import FlagError, HostError, HostNotReady
from sweep.fingerprint import cpu_model, hash_file, hash_model, installed_version, ram_gib
from sweep.flags import Dialect, check_flags, discover
from sweep.gpu import Gpus
from sweep.node.values import NodeFacts, Wanted
from sweep.server import reserve_port
from sweep.study_folder import StudyFolder
from sweep.vllm_cpu import installed

# A mount that is not there leaves an empty folder.
_NO_FILES = hashlib.sha256().hexdigest()


def look(wanted: Wanted, dialect: Dialect | None = None, *, starts_ray: bool = False) -> NodeFacts:
    """What this machine has of `wanted`. `dialect`: what its vLLM knows, where the caller has asked already.
    `starts_ray`: whether Ray is still to be started here, which then raises the limit of open files to the hard one.

    Never raises for what it finds: what cannot be read is None.
    """
    known = _dialect(wanted) if dialect is None else dialect
    own = installed() if wanted.own_vllm else None
    with Gpus() as gpus:
        devices = gpus.devices
        return NodeFacts(
            hostname=socket.gethostname(),
            python=platform.python_version(),
            program=_program(wanted),
            vllm=own.version if own is not None else known.version,
            torch=installed_version("torch") if wanted.own_vllm else None,
            unknown_flags=_unknown(wanted, known),
            model_sha256=_hash(wanted.model),
            tokenizer_sha256=_hash(wanted.tokenizer),
            chat_template_sha256=_hash_of_file(wanted.chat_template),
            disk_free_gib=_free_gib(wanted.folder),
            scratch_free_gib=_free_gib(Path(tempfile.gettempdir())),
            shm_free_gib=_free_gib(Path("/dev/shm")),
            port_problem=_port_problem(wanted.host),
            gpus=tuple(device.name or "unknown GPU" for device in devices),
            driver=devices[0].driver_version if devices else None,
            cuda=devices[0].cuda_version if devices else None,
            gpu_notice=gpus.notice,
            files=resource.getrlimit(resource.RLIMIT_NOFILE)[1 if starts_ray else 0],
            cpu_model=cpu_model(),
            cpu_cores=len(os.sched_getaffinity(0)),
            ram_gib=ram_gib(),
            kernel=platform.release(),
            shared=shares(wanted.folder, wanted.holder),
            resting=gpus.baseline() if devices else (),
            dialect=known,
        )


def shares(folder: Path, holder: str) -> bool:
    """Whether this machine sees the study's folder as its holder does, and may write there.

    The content of the lock names host, process and start: no other folder of that path has the same.
    """
    return bool(holder) and StudyFolder.holder(folder) == holder and os.access(folder, os.W_OK | os.X_OK)


def _dialect(wanted: Wanted) -> Dialect:
    if _program(wanted) is None:
        return Dialect(None, None, None)
    own = installed() if wanted.own_vllm else None
    env = {**os.environ, **wanted.server_env}
    return discover(
        wanted.server_command,
        wanted.client_command,
        env=env,
        version=None if own is None else own.version,
        timeout_s=wanted.vllm_timeout_s,
    )


def _program(wanted: Wanted) -> str | None:
    return shutil.which(wanted.server_command[0], path=wanted.server_env.get("PATH") or os.environ.get("PATH"))


def _unknown(wanted: Wanted, dialect: Dialect) -> tuple[str, ...] | None:
    if dialect.server is None:
        return None
    unknown = []
    for name in wanted.flags:
        try:
            check_flags([name], dialect.server, what="")
        except FlagError:
            unknown.append(name)
    return tuple(unknown)


def _hash(model: str) -> str | None:
    """The hash of a model's files; None where there are none, an empty folder included."""
    try:
        found = hash_model(model)
    except HostError:
        return None
    return None if found == _NO_FILES else found


def _hash_of_file(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return hash_file(Path(path))
    except HostError:
        return None


def _free_gib(path: Path) -> float | None:
    """Free space for this user where `path` lies, or would lie; None when it cannot be had."""
    for place in _upwards(path):
        with contextlib.suppress(OSError):
            status = os.statvfs(place)
            return status.f_bavail * status.f_frsize / 2**30
    return None


def _upwards(path: Path) -> Iterator[Path]:
    yield path
    yield from path.absolute().parents


def _port_problem(host: str) -> str | None:
    try:
        reserve_port(host).release()
    except (HostNotReady, HostError) as error:
        return str(error)
    except OSError as error:
        return f"{host}: {error.strerror or error}"
    return None
