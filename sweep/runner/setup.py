"""What all trials of a study share, as plain values that travel to a Ray worker."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sweep.flags import Dialect, FlagValue, printable, render
from sweep.objective import Objective
from sweep.trial import Flags, TrialKind, TrialSpec
from sweep.workload import ClientFeatures, ClientFile, LoadPlan, write_round

# Requests of a soak where the flags do not say how many may run at once: twice vLLM's own default on small devices.
_VLLM_SEQS = 512


@dataclass(frozen=True, slots=True)
class TrialSetup:
    """Everything but the searched flags. `folder` is the study's folder.

    `plan` is the load of the search; `confirmation` holds one load a block, of prompts that the search never sends, and
    is empty where none are held out. `soak` are the longest prompts of both, all at once, for the winner's worst burst.
    `calibration` is the ladder of `knee.LADDER`, None where none is asked for. `knee_share`: the share of the knee that
    the study's rate is, None where the study file says the rate itself; until it is known, `plan` sends all at once.
    `cpu_shares`: None where servers are not pinned to CPUs, otherwise how many trials share a machine without devices.
    """

    folder: Path
    server_command: tuple[str, ...]
    client_command: tuple[str, ...]
    dialect: Dialect
    model: str
    served_name: str
    tokenizer: str
    chat_template: str | None
    content_format: str | None
    fixed_flags: Mapping[str, FlagValue]
    server_env: Mapping[str, str]
    client_env: Mapping[str, str]
    host: str
    startup_timeout_s: float
    stop_timeout_s: float
    clean_timeout_s: float
    plan: LoadPlan
    max_concurrency: int | None
    ignore_eos: bool
    percentiles: tuple[float, ...]
    request_timeout_s: float
    min_success_share: float
    client_flags: Mapping[str, FlagValue]
    objective: Objective
    uses_gpus: bool
    max_retries: int
    retry_wait_s: float
    confirmation: tuple[LoadPlan, ...] = ()
    soak: LoadPlan | None = None
    calibration: LoadPlan | None = None
    knee_share: float | None = None
    max_lag_ms: float = 250.0
    client_startup_timeout_s: float = 300.0
    cpu_shares: int | None = None

    def log_folder(self, number: int) -> Path:
        """Where logs and the journal of a trial lie."""
        return self.folder / "logs" / f"{number:04d}"

    def plan_for(self, spec: TrialSpec) -> LoadPlan:
        """The load of a trial: that of the search, or of its block; after the last block the first one's comes again.
        A soak gets the burst, twice as many requests as its flags let run at once; a calibration the whole ladder.

        Raises ValueError for a block where no prompts are held out, and for what the study has no load for.
        """
        if spec.kind is TrialKind.CALIBRATION:
            if self.calibration is None:
                raise ValueError("this study has no ladder of rates to calibrate with")
            return self.calibration
        if spec.kind is TrialKind.SOAK:
            if self.soak is None:
                raise ValueError("this study has no burst to soak anything with")
            seqs = self.server_flags(spec.flags).get("max-num-seqs")
            return self.soak.shortened(2 * seqs if isinstance(seqs, int) and seqs > 0 else _VLLM_SEQS)
        if spec.block is None:
            return self.plan
        if not self.confirmation:
            raise ValueError("no prompts are held out to confirm anything with")
        return self.confirmation[spec.block % len(self.confirmation)]

    def launch_env(self) -> dict[str, str]:
        """The server's environment: the study's, and the switch of vLLM's development endpoints.

        One of them empties the prefix cache between rounds. They are open to everybody who reaches the port, so they
        stay shut where that is not this machine alone, or the study says so.
        """
        ours = {"VLLM_SERVER_DEV_MODE": "1"} if _loopback(self.host) else {}
        return {**ours, **self.server_env}

    def write_round(self, number: int, spec: TrialSpec) -> ClientFile:
        """Round `number` of a trial's load as a file of the load client; the same bytes each time.

        Raises OSError or HostNotReady where it cannot be written.
        """
        plan = self.plan_for(spec)
        name = f"round-{number}" if spec.block is None else f"block-{spec.block}-round-{number}"
        if spec.kind is TrialKind.SOAK:
            name = f"soak-{plan.num_prompts}"
        if spec.kind is TrialKind.CALIBRATION:
            name = f"calibration-{number}"
        help_ = self.dialect.client
        client = ClientFeatures.from_help(None if help_ is None else tuple(help_.options), self.dialect.version)
        folder = self.folder / "load"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # trials that run side by side write the same file
            return write_round(plan.rounds[number], folder, name=name, client=client)

    def server_flags(self, flags: Flags) -> dict[str, FlagValue]:
        """Fixed and searched flags in the order of the study file, those left to vLLM taken out."""
        merged: dict[str, FlagValue] = {**self.fixed_flags, **flags}
        if self.chat_template is not None:
            merged["chat-template"] = self.chat_template
        if self.content_format is not None:
            merged["chat-template-content-format"] = self.content_format
        return {name: value for name, value in merged.items() if value is not None}

    def server_argv(self, flags: Flags, host: str, port: int) -> tuple[str, ...]:
        """The whole command of a server."""
        where: dict[str, FlagValue] = {"host": host, "port": port, "served-model-name": self.served_name}
        words = render({**self.server_flags(flags), **where}, self.dialect.server)
        return (*self.server_command, self.model, *words)

    def command_line(self, flags: Flags) -> str:
        """`pasteable_argv` as a line of shell, after the environment variables of the study."""
        env = [f"{name}={shlex.quote(value)}" for name, value in self.server_env.items()]
        return " ".join([*env, printable(self.pasteable_argv(flags))])

    def pasteable_argv(self, flags: Flags) -> tuple[str, ...]:
        """The command a person would type: no address of ours, and `vllm serve` for the installed vLLM."""
        words = render({**self.server_flags(flags), "served-model-name": self.served_name}, self.dialect.server)
        command = ("vllm", *self.server_command[3:]) if self.is_installed_vllm else self.server_command
        return (*command, self.model, *words)

    @property
    def is_installed_vllm(self) -> bool:
        """Whether servers are started by the vLLM of this Python, not by a command of the user's own."""
        return self.server_command[1:3] in (("-m", "sweep.vllm_cpu"), ("-m", "vllm.entrypoints.cli.main"))

    def visible_devices(self) -> str | None:
        """CUDA_VISIBLE_DEVICES for the server: what Ray assigned to this worker, none when the study asks for none."""
        return os.environ.get("CUDA_VISIBLE_DEVICES") if self.uses_gpus else ""


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
