"""One configuration as every file of production needs it: words, environment, what must be mounted, what is secret."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sweep.best_yaml import YamlContent, words_of, yaml_content
from sweep.prepare import Prepared
from sweep.production.provenance import Provenance
from sweep.redact import REDACTED, Redactor
from sweep.trial import Flags

PORT = 8000
# Flags that vLLM also takes from the environment, where a secret belongs.
_SECRET_VARIABLES = {"api-key": "VLLM_API_KEY", "hf-token": "HF_TOKEN"}
_RELEASE = re.compile(r"v?(\d+\.\d+\.\d+(?:\.post\d+)?)(?:\+.*)?")


@dataclass(frozen=True, slots=True)
class Serving:
    """A configuration to write down, without secrets.

    `name` is fit for a DNS label. `command` starts a server before the model, as a person types it, `program` the same
    with its first word as an absolute path where it can be found. `flags` are groups of words, one a flag, `content`
    is the same as a file for `--config`. `secrets` are variables that the environment must bring. `mounts` are files
    and folders of this machine that the words name. `image` is vLLM's own of the version measured, None where nobody
    knows which. `prefix_caching` is what the engine said of itself.
    """

    name: str
    provenance: Provenance
    model: str
    command: tuple[str, ...]
    program: tuple[str, ...]
    flags: tuple[tuple[str, ...], ...]
    content: YamlContent
    env: Mapping[str, str]
    secrets: tuple[str, ...]
    mounts: tuple[Path, ...]
    gpus: int
    image: str | None
    own_command: bool
    startup_timeout_s: float
    stop_timeout_s: float
    prefix_caching: bool | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """All flags in one row."""
        return tuple(word for group in self.flags for word in group)

    @property
    def from_hub(self) -> bool:
        """Whether the model comes from the hub, not from a folder of this machine."""
        return not Path(self.model).is_absolute()

    def head(self, *more: str) -> str:
        """The comment at the head of a file: provenance, then what a person must know."""
        notes = [*self.provenance.lines(), *more]
        for flag in self.content.withheld:
            variable = _SECRET_VARIABLES.get(flag)
            where = f"set {variable} in the environment" if variable else "give it yourself"
            notes.append(f"Left out, since its value is a secret: --{flag}; {where}.")
        if any(REDACTED in word for word in self.command):
            notes.append(f"Its command holds a secret, which stands here as {REDACTED}: fill it in.")
        # A line break in a value must not end the comment.
        lines = ("\\n".join(note.splitlines()) for note in notes)
        return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def serving(prepared: Prepared, flags: Flags, provenance: Provenance, *, prefix_caching: bool | None = None) -> Serving:
    """How to serve `flags` as the study did."""
    setup, redactor = prepared.setup, prepared.redactor
    content = yaml_content(setup, redactor, flags)
    named = {**setup.server_flags(flags), "served-model-name": setup.served_name}
    groups = [words_of(setup, name, value) for name, value in named.items() if name not in content.withheld]
    shown = tuple(words for words in groups if words)
    env, secrets = _environment(setup.server_env, redactor)
    secrets += tuple(v for name in content.withheld if (v := _SECRET_VARIABLES.get(name)) and v not in secrets)
    # A group of nodes may have another than the driver, whose this is while no node is joined.
    version = setup.dialect.version if prepared.config.resources.group_by is None else prepared.fingerprint.vllm
    # `vllm serve` of the CPU build does not start without what sweep.vllm_cpu does for it.
    installed = setup.is_installed_vllm and "sweep.vllm_cpu" not in setup.server_command
    return Serving(
        name=dns_name(prepared.config.study.name),
        provenance=provenance,
        model=setup.model,
        command=("vllm", "serve") if installed else redactor.argv(setup.server_command),
        program=_absolute(redactor.argv(setup.server_command)),
        flags=shown,
        content=content,
        env=env,
        secrets=secrets,
        mounts=_mounts([setup.model, *(word for words in shown for word in words)]),
        gpus=prepared.config.gpus(flags) if setup.uses_gpus else 0,
        image=image_of(version, gpus=setup.uses_gpus),
        own_command=not setup.is_installed_vllm,
        startup_timeout_s=setup.startup_timeout_s,
        stop_timeout_s=setup.stop_timeout_s,
        prefix_caching=prefix_caching,
    )


def dns_name(study: str) -> str:
    """`vllm-STUDY` as a DNS label: lower case letters, digits and hyphens, at most 50 characters."""
    plain = re.sub(r"[^a-z0-9]+", "-", study.lower()).strip("-")
    return f"vllm-{plain}"[:50].rstrip("-")


def image_of(version: str | None, *, gpus: bool) -> str | None:
    """vLLM's own image of a released version; None for any other."""
    found = _RELEASE.fullmatch(version or "")
    if found is None:
        return None
    return f"vllm/vllm-openai{'' if gpus else '-cpu'}:v{found[1]}"


def _environment(env: Mapping[str, str], redactor: Redactor) -> tuple[dict[str, str], tuple[str, ...]]:
    """What may be written, and the names of what may not."""
    clean = redactor.environment(env)
    secrets = tuple(name for name, value in env.items() if clean[name] != value)
    return {name: value for name, value in env.items() if name not in secrets}, secrets


def _absolute(command: tuple[str, ...]) -> tuple[str, ...]:
    found = shutil.which(command[0])
    return (str(Path(found).absolute()), *command[1:]) if found else command


def _mounts(words: Iterable[str]) -> tuple[Path, ...]:
    """The words that are files or folders of this machine, each once and none that lies within another."""
    found = sorted({Path(os.path.normpath(word)) for word in words if word.startswith("/") and Path(word).exists()})
    return tuple(path for path in found if not any(other in path.parents for other in found))
