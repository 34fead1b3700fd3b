"""From a match to a class, for the families whose sentence alone does not decide."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sweep.diagnosis.frames import Stage
from sweep.diagnosis.rule import Kind
from sweep.diagnosis.scan import Match, Scan
from sweep.diagnosis.values import FailureClass as Class
from sweep.diagnosis.values import Phase

_UNITS = {"MiB": 1 / 1024, "GiB": 1.0}
_TOTAL = re.compile(r"has a total capac\w+ of ([\d.]+) (MiB|GiB)(?: of which ([\d.]+) (MiB|GiB|bytes) is free)?")
_OWN = re.compile(r"this process has ([\d.]+) (MiB|GiB) memory in use")
_PROCESS = re.compile(r"Process \d+ has ([\d.]+) (MiB|GiB) memory in use")
_BY_TORCH = re.compile(r"Of the allocated memory ([\d.]+) (MiB|GiB) is allocated by PyTorch")
_FREE = re.compile(r"(?:device|node)\b.*?\(([\d.]+)/([\d.]+) GiB\).*?\(([\d.]+), ([\d.]+) GiB\)")
_NEEDED = re.compile(r"\(([\d.]+) G(?:i?B) KV cache is needed.*?memory \((-?[\d.]+) G")
_REASONS = re.compile(r"Reasons?: (.+)$")
_BACKEND = re.compile(r"\[([^\[\]]*)\]")

WEIGHTS_ADVICE = (
    "The weights do not fit, whatever the other flags: more tensor parallelism, quantization, offload or a smaller "
    "model; lower utilization does not help."
)
_ADVICE = {
    Class.WEIGHTS_OOM: WEIGHTS_ADVICE,
    Class.STARTUP_OOM: "Start-up needs more device memory than is left: lower gpu-memory-utilization, "
    "max-num-batched-tokens, max-num-seqs or the number of captured graphs.",
    Class.LOAD_OOM: "The server starts but runs out of device memory under load: lower gpu-memory-utilization (the "
    "start-up check does not see this), max-num-seqs or max-num-batched-tokens.",
    Class.MEMORY_TAKEN_BY_OTHER: "Another process holds device memory: wait for it to go or end it, then try again.",
    Class.UNSUPPORTED_BLOCK_SIZE: "No attention backend here takes this block size; use one that the message names "
    "(usually 16 or 32).",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A class with what deviates from its usual consequences (None: as usual)."""

    failure_class: Class
    advice: str
    retryable: bool | None = None
    informative: bool | None = None


def resolve(match: Match, scan: Scan, memory_before_gib: float | None, memory_total_gib: float | None) -> Verdict:
    """The class of a match. `memory_before_gib` is what others held before the launch, None when not read."""
    rule = match.rule
    plain = Verdict(rule.class_in(match.phase), rule.advice, rule.retryable, rule.informative)
    taken = memory_before_gib is not None and memory_before_gib >= noticeable_gib(memory_total_gib)
    if rule.kind in (Kind.OUT_OF_MEMORY, Kind.WEIGHTS):
        # before the weights this server holds next to nothing: what is full then is full of others
        full = match.stage is Stage.BEFORE_WEIGHTS or others_in_message(match.text)
        if taken or (memory_before_gib is None and full):
            return _verdict(Class.MEMORY_TAKEN_BY_OTHER)
        return _verdict(_where(match))
    if rule.kind is Kind.KV_CACHE:
        lacking = _lacking_gib(match.text, scan.notes.kv_left_gib)
        enough = lacking is None or memory_before_gib is None or lacking <= memory_before_gib
        return _verdict(Class.MEMORY_TAKEN_BY_OTHER) if taken and enough else plain
    if rule.kind is Kind.FREE_MEMORY:
        others = _others_on_start(match.text, memory_before_gib or 0.0) if not taken else True
        return plain if others else _verdict(Class.STARTUP_OOM)
    if rule.kind is Kind.ATTENTION:
        return _verdict(Class.UNSUPPORTED_BLOCK_SIZE) if _only_block_size(match.text) else plain
    if rule.kind is Kind.FIELD:
        return _verdict(Class.UNSUPPORTED_BLOCK_SIZE) if match.previous.strip() == "block_size" else plain
    if rule.kind is Kind.CLIENT_TIMEOUT:
        if scan.notes.crowded:
            advice = "The server lives and cannot keep up: this configuration does not carry this load."
            return Verdict(plain.failure_class, advice, informative=True)
        return Verdict(plain.failure_class, plain.advice, retryable=True)
    return plain


def noticeable_gib(memory_total_gib: float | None) -> float:
    """From how much foreign memory on a launch is no longer comparable: displays and daemons hold less."""
    return max(1.0, 0.02 * (memory_total_gib or 0.0))


def _verdict(failure_class: Class) -> Verdict:
    return Verdict(failure_class, _ADVICE[failure_class])


def _where(match: Match) -> Class:
    """Weights, the rest of the start, or work: by phase, then by the traceback or the progress above it."""
    if match.phase in (Phase.LOAD, Phase.CLIENT) or match.serving:
        return Class.LOAD_OOM
    weights = match.rule.kind is Kind.WEIGHTS or match.stage is Stage.WEIGHTS
    return Class.WEIGHTS_OOM if weights else Class.STARTUP_OOM


def others_in_message(text: str) -> bool:
    """Whether PyTorch's own accounting leaves memory that only another process can hold.

    "Process N has X" may be this very process under the number it has on the host: then X fits what PyTorch allocated.
    """
    total = _TOTAL.search(text)
    if total is None:
        return False
    capacity = _gib(total[1], total[2])
    named = [_gib(value, unit) for value, unit in _PROCESS.findall(text)]
    own = _OWN.search(text)
    if own is not None:
        free = _gib(total[3], total[4]) if total[3] and total[4] != "bytes" else 0.0
        foreign = max(sum(named), capacity - free - _gib(own[1], own[2]))
    elif named and (torch := _BY_TORCH.search(text)):
        allocated = _gib(torch[1], torch[2])
        fitting = [value for value in named if value >= allocated - 0.1]
        foreign = sum(named) - (min(fitting) if fitting else 0.0)
    else:
        return False
    return foreign >= max(2.0, 0.04 * capacity)


def _gib(value: str, unit: str) -> float:
    return float(value) * _UNITS[unit]


def _others_on_start(text: str, memory_before_gib: float) -> bool:
    """Whether the check for free memory failed for others' sake, not because even an empty device has less.

    Its own figures say so, newer than any reading: a context takes about 0.6 GiB of an otherwise empty GPU, and more is
    somebody's. On a host there is always somebody; a large share is the flags' fault unless more than half is gone.
    """
    figures = _FREE.search(text)
    if figures is None:
        return True
    free, total, share, _ = (float(figure) for figure in figures.groups())
    used = total - free
    if "node" in text:
        return share <= 0.75 or used > total / 2
    return used > memory_before_gib + 0.75 + 0.002 * total


def _lacking_gib(text: str, kv_left_gib: float | None) -> float | None:
    if needed := _NEEDED.search(text):
        return float(needed[1]) - float(needed[2])
    return -kv_left_gib if kv_left_gib is not None and kv_left_gib < 0 else None


def _only_block_size(text: str) -> bool:
    """Whether another block size would do: some backend has no other objection."""
    reasons = _REASONS.search(text)
    if reasons is None:
        return "block_size" in text and "head_size" not in text
    return any(
        all("block" in objection for objection in objections.split(",")) for objections in _BACKEND.findall(reasons[1])
    )
