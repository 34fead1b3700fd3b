"""The question that travels to a machine and the answer that comes back: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sweep.flags import Dialect
from sweep.gpu import DeviceMemory


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a study needs of a machine that runs its trials. None is "not known here", and asks nothing.

    `flags` are names of server flags that the study sets or searches; `vllm` is the version that the study was checked
    with, of which the machine may have another with `any_vllm`. `gpus` are the devices of its largest trial, `files`
    the descriptors a load may need. `folder` is the study's, and `holder` the content of its lock: whoever reads the
    same there shares the folder.
    """

    server_command: tuple[str, ...]
    client_command: tuple[str, ...]
    server_env: Mapping[str, str]
    flags: tuple[str, ...]
    vllm: str | None
    own_vllm: bool
    model: str
    model_sha256: str | None
    tokenizer: str
    tokenizer_sha256: str | None
    chat_template: str | None
    chat_template_sha256: str | None
    host: str
    gpus: int
    files: int
    folder: Path
    holder: str
    vllm_timeout_s: float = 90.0
    any_vllm: bool = False


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a machine says of itself. None: it could not be told.

    `unknown_flags` are those of `Wanted.flags` that its vLLM does not list. `resting` is the memory of its devices with
    nobody on them. `shared`: whether it sees and may write the study's folder. `dialect`: what its vLLM accepts.
    """

    hostname: str
    python: str
    program: str | None
    vllm: str | None
    torch: str | None
    unknown_flags: tuple[str, ...] | None
    model_sha256: str | None
    tokenizer_sha256: str | None
    chat_template_sha256: str | None
    disk_free_gib: float | None
    scratch_free_gib: float | None
    shm_free_gib: float | None
    port_problem: str | None
    gpus: tuple[str, ...]
    driver: str | None
    cuda: str | None
    gpu_notice: str | None
    files: int
    cpu_model: str | None
    cpu_cores: int
    ram_gib: int | None
    kernel: str
    shared: bool
    resting: tuple[DeviceMemory, ...] = field(default=())
    dialect: Dialect | None = None
