"""What the code that raised an error tells about its cause, where no sentence does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto

from sweep.diagnosis.message import Message
from sweep.diagnosis.rule import Rule, Tier
from sweep.diagnosis.values import FailureClass as Class
from sweep.diagnosis.values import Phase

FRAME = re.compile(r'File "([^"]+)", line \d+(?:, in (\S+))?')


class Stage(Enum):
    """How far a start had come."""

    BEFORE_WEIGHTS = auto()
    WEIGHTS = auto()
    AFTER_WEIGHTS = auto()


_WEIGHTS = re.compile(
    r"model_loader/|model_executor/\S+ __init__$"
    r"| (?:_?init(?:ialize)?_model|load_model|load_weights|create_weights|get_model|process_weights_after_loading)$"
)
_AFTER = re.compile(
    r"torch/cuda/graphs\.py| (?:determine_\w+|profile_run|_?profile_\w+|_?dummy_\w*run|capture\w*|_?warm_?up\w*|"
    r"compile_or_warm_up_model|_?initialize_kv_cache\w*|initialize_(?:cache|from_config|attn_backend)|"
    r"_?allocate_kv_cache\w*|execute_model|sample_tokens)$"
)
_BEFORE = re.compile(
    r" (?:init_device|set_device|_lazy_init|init_worker_distributed_environment|init_distributed_environment)$"
)
_MARKERS = (
    (
        re.compile(
            r"(?:Model loading|Loading (?:model )?weights) took|Available KV cache memory|GPU KV cache size"
            r"|# GPU blocks|torch\.compile takes|Memory profiling takes|Capturing |Graph capturing|init engine \("
        ),
        Stage.AFTER_WEIGHTS,
    ),
    (re.compile(r"Starting to load model|Loading (?:safetensors|pt|np|gguf)\b|Loading model from"), Stage.WEIGHTS),
)


def stage_of_frames(frames: Sequence[str]) -> Stage | None:
    """The stage a traceback stands in; frames are "path function"."""
    if any(_WEIGHTS.search(frame) for frame in frames):
        return Stage.WEIGHTS
    if any(_AFTER.search(frame) for frame in frames):
        return Stage.AFTER_WEIGHTS
    return Stage.BEFORE_WEIGHTS if any(_BEFORE.search(frame) for frame in frames) else None


def stage_of_marker(text: str) -> Stage | None:
    """The stage a progress line reports."""
    return next((stage for pattern, stage in _MARKERS if pattern.search(text)), None)


_NEVER = re.compile(r"(?!)")


def _inferred(failure_class: Class, advice: str, tier: Tier = Tier.GENERAL) -> Rule:
    return Rule(_NEVER, failure_class, advice, tier=tier)


_BY_FRAME = (
    (
        re.compile(
            r"(?:^|/)benchmarks?/.*dataset|benchmark_dataset\.py| (?:sample_\w+_requests|maybe_oversample_requests)$"
        ),
        _inferred(Class.DATASET_MALFORMED, "The prompt file cannot be used: the load client fails while it reads it."),
    ),
    (
        re.compile(r"(?:^|/)(?:vllm/benchmarks|benchmarks)/(?:serve|lib/|benchmark_serving|backend_request)"),
        _inferred(Class.CLIENT_ERROR, "The load client failed by itself."),
    ),
    (
        re.compile(r"/tokeniz\w*/|tokeniz\w+\.py|/sentencepiece/"),
        _inferred(Class.TOKENIZER_ERROR, "The tokenizer cannot be loaded or used."),
    ),
    (
        re.compile(r"/vllm/(?:config/|config\.py|engine/arg_utils\.py|utils/argparse_utils\.py)"),
        _inferred(Class.INVALID_FLAGS, "A check of the configuration refuses these flags; the message says why."),
    ),
    (
        re.compile(r"pynvml|/torch/cuda/__init__\.py .*(?:_lazy_init|_cuda_init|device_count)"),
        _inferred(Class.DRIVER_ERROR, "The driver does not answer as it should: see nvidia-smi and the kernel log."),
    ),
    (
        re.compile(
            r"/vllm/distributed/|/torch/distributed/| (?:init_device|init_worker_distributed_environment|"
            r"init_distributed_environment)$"
        ),
        _inferred(Class.WORKER_INIT_FAILED, "The workers could not set up their communication. Tried again."),
    ),
)
_CHECKS = frozenset(
    {"ValueError", "AssertionError", "NotImplementedError", "ValidationError", "KeyError", "RuntimeError"}
)
_STARTUP = _inferred(Class.OTHER, "An error of the software while starting, of a kind not known here; see the line.")
_ENGINE = _inferred(Class.ENGINE_DIED, "An error inside the engine, of a kind not known here. Tried again once.")
_REQUEST = _inferred(
    Class.ENGINE_DIED, "An error in the server, of a kind not known here. Tried again once.", Tier.COUNT
)
_CLIENT = _inferred(Class.CLIENT_ERROR, "The load client failed by itself; see the line.", Tier.SYMPTOM)
_PROMPTS = _inferred(Class.DATASET_MALFORMED, "The prompt file cannot be used; see the line.")
_IGNORED = frozenset({"CancelledError", "KeyboardInterrupt", "SystemExit", "StopIteration", "GeneratorExit", "Empty"})
_ENGINE_SPEAKER = re.compile(r"Engine|Worker|rank\d")
_ENGINE_FILE = re.compile(r"(?:core|core_client|multiproc\w*|engine|async_llm\w*|dump_input)\.py$")


_LIBRARY = re.compile(r"/(?:transformers|huggingface_hub|safetensors|tokenizers|torch/_inductor|triton)/")


def raised_by_library(frames: Sequence[str]) -> bool:
    """Whether the innermost frame is one of a library that checks models or compiles, not flags."""
    return bool(frames) and _LIBRARY.search(frames[-1]) is not None


def infer(message: Message, frames: Sequence[str], phase: Phase) -> Rule | None:
    """A rule for an exception that no sentence knows: by the innermost telling frame, else by who raised it when."""
    if not message.raised or message.line.quiet or not _IGNORED.isdisjoint(message.raised):
        return None
    if phase is Phase.TEARDOWN:
        return None
    for depth, frame in enumerate(reversed(frames)):
        for pattern, rule in _BY_FRAME:
            if pattern.search(frame) and _fits(rule, message, phase, depth):
                return rule
    if phase is Phase.DATASET:
        return _PROMPTS
    if phase is Phase.CLIENT:
        return _CLIENT
    if phase is Phase.LOAD:
        line = message.line
        inside = _ENGINE_SPEAKER.match(line.speaker) or _ENGINE_FILE.search(line.file)
        return _ENGINE if inside else _REQUEST
    return _STARTUP


def _fits(rule: Rule, message: Message, phase: Phase, depth: int) -> bool:
    """Flags are refused by the check itself (not by what it calls), before serving, by a few kinds of exception."""
    if rule.failure_class is Class.INVALID_FLAGS:
        return depth <= 1 and phase is not Phase.LOAD and not _CHECKS.isdisjoint(message.raised)
    return rule.failure_class is not Class.WORKER_INIT_FAILED or phase not in (Phase.LOAD, Phase.CLIENT)
