"""The command of the load client: everything said, nothing guessed, in the spelling of the installed version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from sweep.errors import FlagError
from sweep.flags import CommandHelp, FlagValue, canonical, render
from sweep.workload import ClientFile, Round

_CHAT = "openai-chat"
_ENDPOINTS = {_CHAT: "/v1/chat/completions", "openai": "/v1/completions", "vllm": "/v1/completions"}
STARTUP_ALLOWANCE_S = 300.0

# Flags of the client that are decided elsewhere -> where. Given twice, the last one would silently win.
RESERVED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("model", "served-model-name", "tokenizer"), "the section model"),
        **dict.fromkeys(("host", "port", "base-url"), "nothing: the server's address is chosen for each trial"),
        **dict.fromkeys(("dataset-name", "dataset-path"), "load.dataset and load.path"),
        **dict.fromkeys(
            ("output-len", "sharegpt-output-len", "custom-output-len", "hf-output-len"), "load.output_tokens"
        ),
        "input-len": "load.max_prompt_tokens",
        "num-prompts": "load.num_prompts",
        "num-warmups": "load.warmup_prompts (the client's own warm-up repeats the first measured prompt)",
        "request-rate": "load.request_rate",
        "burstiness": "load.burstiness",
        "max-concurrency": "load.max_concurrency",
        "seed": "load.seed",
        "ignore-eos": "load.ignore_eos",
        "metric-percentiles": "load.percentiles",
        **dict.fromkeys(
            ("ramp-up-strategy", "ramp-up-start-rps", "ramp-up-end-rps", "self-timed"),
            "load.request_rate: every trial gets the same requests at the same times",
        ),
        **dict.fromkeys(
            (
                "append-result",
                "disable-shuffle",
                "no-oversample",
                "percentile-metrics",
                "ready-check-timeout-sec",
                "result-dir",
                "result-filename",
                "save-detailed",
                "save-result",
                "skip-chat-template",
                "custom-skip-chat-template",
                "skip-tokenizer-init",
            ),
            "nothing: the measurement depends on it",
        ),
    }
)


@dataclass(frozen=True, slots=True)
class LoadJob:
    """One run of the load client against a ready server.

    `command` are the client's words (`vllm bench serve`), `help` what it knows of flags, None if it could not be asked.
    `plan` and `file` are round `number` as planned and as written for the client. `env` is the client's whole
    environment; it carries the server's key as OPENAI_API_KEY. The result goes into `folder`, under `name`. `flags` are
    further flags of the client (see `check_load_flags`). A request may take `request_timeout_s`.
    """

    command: tuple[str, ...]
    help: CommandHelp | None
    base_url: str
    model: str
    served_name: str
    tokenizer: str
    number: int
    plan: Round
    file: ClientFile
    env: Mapping[str, str] = field(repr=False)
    folder: Path
    name: str
    log_path: Path
    record_path: Path
    max_concurrency: int | None
    ignore_eos: bool
    percentiles: tuple[float, ...]
    request_timeout_s: float
    min_success_share: float
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    startup_allowance_s: float = STARTUP_ALLOWANCE_S
    stop_timeout_s: float = 10.0

    @property
    def result_path(self) -> Path:
        """Where the client writes its result."""
        return self.folder / f"{self.name}.result.json"


def check_load_flags(flags: Mapping[str, FlagValue], *, what: str) -> None:
    """Raise FlagError for what the study file has a place for, what measurement depends on, and a backend alone."""
    for name in flags:
        if (place := RESERVED.get(canonical(name))) is not None:
            raise FlagError(f"{name!r} cannot be set here; use {place}", key=f"{what}.{name}")
    _backend_and_endpoint({canonical(name): value for name, value in flags.items()})


def _backend_and_endpoint(own: Mapping[str, FlagValue]) -> tuple[str, FlagValue]:
    """The client's kind of request and where it goes: as the flags say, chat where they say nothing."""
    backend = str(own.get("backend") or own.get("endpoint-type") or _CHAT)
    endpoint = own.get("endpoint") or _ENDPOINTS.get(backend)
    if endpoint is None:
        key = "load.flags.backend" if own.get("backend") else "load.flags.endpoint-type"
        raise FlagError(f"the backend {backend!r} needs an 'endpoint' beside it, such as /v1/completions", key=key)
    return backend, endpoint


def client_argv(job: LoadJob) -> tuple[str, ...]:
    """The whole command, as a person would type it; the key is not in it. Raises FlagError for a reserved flag.

    The chat endpoint is taken unless `flags` name another. Model, served name and tokenizer are always said:
    left to itself the client takes the one for the other. The client's own test request, which is the first measured
    prompt and would warm the prefix cache for it, is switched off where that is possible (see `sends_test_request`).
    """
    check_load_flags(job.flags, what="load.flags")
    own = {canonical(name): value for name, value in job.flags.items()}
    backend, endpoint = _backend_and_endpoint(own)
    for name in ("backend", "endpoint-type", "endpoint"):
        own.pop(name, None)
    target: dict[str, FlagValue] = {
        _backend_flag(job.help): backend,
        "base-url": job.base_url,
        "endpoint": endpoint,
        "model": job.model,
        "served-model-name": job.served_name,
        "tokenizer": job.tokenizer,
    }
    measurement: dict[str, FlagValue] = {
        "max-concurrency": job.max_concurrency,
        "ignore-eos": job.ignore_eos or None,
        **own,
        "percentile-metrics": "ttft,tpot,itl,e2el",
        "metric-percentiles": ",".join(f"{percentile:g}" for percentile in job.percentiles),
        "num-warmups": 0 if _knows(job.help, "num-warmups") else None,
        "ready-check-timeout-sec": 0 if _can_skip_test_request(job.help) else None,
        "save-result": True,
        "save-detailed": True,
        "result-dir": str(job.folder),
        "result-filename": job.result_path.name,
    }
    return (*job.command, *render(target, job.help), *job.file.argv, *render(measurement, job.help))


def sends_test_request(help_: CommandHelp | None) -> bool:
    """Whether this client sends its first prompt once before the load and cannot be told not to (0.10.1).

    A client whose help is not known is taken for a recent one, which does not.
    """
    return help_ is not None and not _can_skip_test_request(help_)


def _can_skip_test_request(help_: CommandHelp | None) -> bool:
    # In between there were versions that take 0 for "give up at once"; those that skip say so in their help.
    option = None if help_ is None else help_.find("ready-check-timeout-sec")
    return option is not None and "skip" in option.text


def _backend_flag(help_: CommandHelp | None) -> str:
    if help_ is None:
        return "backend"
    option = help_.find("backend")
    if option is None or (option.choices and _CHAT not in option.choices):
        return "endpoint-type" if "endpoint-type" in help_ else "backend"
    return "backend"


def _knows(help_: CommandHelp | None, name: str) -> bool:
    return help_ is None or name in help_
