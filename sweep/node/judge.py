"""What of a machine stands in the way of a study, one line each: what, and how to mend it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sweep.node.values import NodeFacts, Wanted

# A night's logs and tables, and what a server writes for itself.
_DISK_GIB, _SCRATCH_GIB = 2.0, 1.0
# Between the processes of a tensor-parallel server NCCL uses shared memory; the 64 MiB of a container do not do.
_SHM_GIB, _SHM_ALONE_GIB = 1.0, 0.03
# Times of one trial come from one clock; of another machine they only put rows in order and end a night.
_SKEW_S = 2.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the node `where`, and what to do about it."""

    where: str
    what: str
    mend: str

    def line(self) -> str:
        """All of it in one line."""
        return f"{self.where}: {self.what}; {self.mend}"


def faults_of(
    where: str, facts: NodeFacts, wanted: Wanted, *, gpus: float | None = None, skew_s: float | None = None
) -> tuple[Fault, ...]:
    """What stands in the way on the node `where`, worst first.

    `gpus` is how many Ray counts there, None where Ray is still to be started. `skew_s`: how far its clock is ahead of
    the driver's, None for the driver's own machine.
    """
    found = [*_software(facts, wanted), *_files(facts, wanted), *_devices(facts, wanted, gpus)]
    found += [*_room(facts, wanted), *_rest(facts, wanted, skew_s)]
    return tuple(Fault(where, what, mend) for what, mend in found)


def _software(facts: NodeFacts, wanted: Wanted) -> Iterator[tuple[str, str]]:
    if facts.program is None:
        yield f"{wanted.server_command[0]!r} is no program there", "install it at the same path, or set serve.command"
    elif wanted.vllm is not None and facts.vllm is None:
        yield "its vLLM does not tell its version", f"install vLLM {wanted.vllm} there"
    elif wanted.vllm is not None and facts.vllm != wanted.vllm and not wanted.any_vllm:
        yield f"vLLM {facts.vllm}, but the study was checked with {wanted.vllm}", f"install {wanted.vllm} there"
    elif facts.unknown_flags:
        yield f"its vLLM has no flag {', '.join(facts.unknown_flags)}", "install the driver's vLLM there"


def _files(facts: NodeFacts, wanted: Wanted) -> Iterator[tuple[str, str]]:
    yield from _file("model", wanted.model, wanted.model_sha256, facts.model_sha256)
    if wanted.tokenizer != wanted.model:
        yield from _file("tokenizer", wanted.tokenizer, wanted.tokenizer_sha256, facts.tokenizer_sha256)
    if wanted.chat_template is not None:
        template = facts.chat_template_sha256
        yield from _file("chat template", wanted.chat_template, wanted.chat_template_sha256, template)


def _file(what: str, path: str, sha256: str | None, found: str | None) -> Iterator[tuple[str, str]]:
    if sha256 is None or found == sha256:
        return
    if found is None:
        put = "copy it to that path" if path.startswith("/") else "download it there (hf download)"
        yield f"the {what} {path} is not there", put
    else:
        yield (
            f"the {what} {path} is another one (sha256 {found[:12]}, here {sha256[:12]})",
            "copy the same files there; a copy may have been cut short",
        )


def _devices(facts: NodeFacts, wanted: Wanted, gpus: float | None) -> Iterator[tuple[str, str]]:
    if not wanted.gpus:
        return
    if not facts.gpus:
        yield (
            facts.gpu_notice or "no NVIDIA device answers",
            "load the driver (nvidia-smi must list the devices), or pass them to the container",
        )
    elif gpus is not None and gpus > len(facts.gpus):
        yield (
            f"Ray counts {gpus:g} GPUs, NVML lists {len(facts.gpus)}",
            f"start Ray there with --num-gpus {len(facts.gpus)}",
        )
    elif gpus is None and wanted.gpus > len(facts.gpus):
        yield (
            f"a trial needs {wanted.gpus} GPUs, {len(facts.gpus)} are there",
            "lower the parallel sizes, or run on another machine",
        )


def _room(facts: NodeFacts, wanted: Wanted) -> Iterator[tuple[str, str]]:
    if facts.disk_free_gib is not None and facts.disk_free_gib < _DISK_GIB:
        yield f"{facts.disk_free_gib:.1f} GiB free for {wanted.folder}", f"make room for {_DISK_GIB:g} GiB"
    if facts.scratch_free_gib is not None and facts.scratch_free_gib < _SCRATCH_GIB:
        yield (
            f"{facts.scratch_free_gib:.1f} GiB free in the temporary folder",
            "make room there, or set TMPDIR before Ray is started",
        )
    least = _SHM_GIB if wanted.gpus > 1 else _SHM_ALONE_GIB
    if facts.shm_free_gib is None:
        yield "/dev/shm is not there", "mount it; in a container: --shm-size 8g or --ipc=host"
    elif facts.shm_free_gib < least:
        yield (
            f"{facts.shm_free_gib:.2f} GiB free in /dev/shm, {least:g} are needed",
            "make it larger; in a container: --shm-size 8g or --ipc=host",
        )


def _rest(facts: NodeFacts, wanted: Wanted, skew_s: float | None) -> Iterator[tuple[str, str]]:
    if facts.port_problem is not None:
        yield f"no port for a server: {facts.port_problem}", "see serve.host, and what listens there (ss -ltn)"
    if 0 <= facts.files < wanted.files:
        yield (
            f"at most {facts.files} open files, this load may need {wanted.files}",
            "ulimit -n 65536 before Ray is started there",
        )
    if skew_s is not None and abs(skew_s) > _SKEW_S:
        ahead = "ahead of" if skew_s > 0 else "behind"
        yield f"its clock is {abs(skew_s):.1f} s {ahead} the driver's", "set it by NTP (chronyc makestep)"


def comparable(facts: NodeFacts) -> tuple[str, ...]:
    """What decides whether trials of two nodes may be compared: equal for nodes of one group.

    The kind of devices and not their number, since a trial takes as many on each; without any, the processor.
    """
    kinds = tuple(sorted(set(facts.gpus)))
    device = (*kinds, facts.driver or "") if kinds else (facts.cpu_model or "", str(facts.cpu_cores))
    return (facts.vllm or "", facts.model_sha256 or "", *device)
