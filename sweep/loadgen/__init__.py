"""The load: `vllm bench serve` in a process of its own, and its result file, believed only after checks."""

from __future__ import annotations

from sweep.loadgen.client import LoadOutcome, run, time_limit_s
from sweep.loadgen.command import RESERVED, LoadJob, check_load_flags, client_argv
from sweep.loadgen.kept import KeptClient, can_be_kept
from sweep.loadgen.reasons import REASONS
from sweep.loadgen.result_file import read_result

__all__ = [
    "REASONS",
    "RESERVED",
    "KeptClient",
    "LoadJob",
    "LoadOutcome",
    "can_be_kept",
    "check_load_flags",
    "client_argv",
    "read_result",
    "run",
    "time_limit_s",
]
