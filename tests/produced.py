"""A prepared study whose values are hostile to every file format, and what came of it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fake_study
from test_console import stored

from sweep.config import load
from sweep.config.models import ServeSection
from sweep.flags import Dialect, FlagValue
from sweep.gpu import Gpus
from sweep.prepare import Prepared, prepare
from sweep.recommend import Recommendation, Verdict
from sweep.redact import Redactor
from sweep.store import StoredTrial
from sweep.trial import Flags

INSTALLED = (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve")
HOSTILE = {"note": 'it\'s $HOME, $(HOME), ${HOME}; %n 100% "quoted" \\ `id` # no\nsecond: line\tand - {{ .Values }}'}
NASTY = "a'b\"c $HOME $$ $(HOME) ${X} %i \\n `id` #; \n- x"
SECRET = "sk-verysecret-0123456789"
BASELINE: Flags = {"max-num-seqs": 8, "gpu-memory-utilization": 0.9, "block-size": None}
BEST: Flags = {"max-num-seqs": 64, "gpu-memory-utilization": 0.94, "block-size": None}
BETTER = Recommendation(
    Verdict.BETTER, 1, BEST, 0.8, 0.2, 'Trial 1 is 20.0 % better; "sure"\nof it.', True, 0.15, 0.25
)  # fmt: skip
KEEP = Recommendation(Verdict.KEEP, 0, BASELINE, 1.0, 0.0, "Keep your flags.", True)
UNCONFIRMED = Recommendation(Verdict.BETTER, 1, BEST, 0.8, 0.2, "Trial 1 is 20.0 % better (unconfirmed).")


def trials() -> tuple[StoredTrial, ...]:
    """The baseline and a better one."""
    return (stored(0, flags=BASELINE), stored(1, 0.8, flags=BEST))


def study(folder: Path, **changes: Any) -> Prepared:
    """A study prepared on the fake."""
    path = fake_study.write(folder / "study.yaml", fake_study.study(folder, **changes))
    with Gpus() as gpus:
        found = prepare(load(path), path, folder / "results" / "night", gpus)
    found.setup.folder.mkdir(parents=True, exist_ok=True)
    return found


def with_setup(prepared: Prepared, **changes: Any) -> Prepared:
    """The same study with other values in its setup."""
    return dataclasses.replace(prepared, setup=dataclasses.replace(prepared.setup, **changes))


def hostile(prepared: Prepared) -> Prepared:
    """Started by the installed vLLM 0.32, with values that every format must quote, and secrets."""
    env: Mapping[str, str] = {"ODD": NASTY, "PLAIN": "1", "HF_TOKEN": SECRET, "SOME_API_KEY": "short"}
    fixed: dict[str, FlagValue] = {
        "override-generation-config": HOSTILE,
        "tensor-parallel-size": 4,
        "api-key": SECRET,
        "enable-prefix-caching": False,
        "middleware": ["one.two", "three.four"],
    }
    found = with_setup(
        prepared,
        server_command=INSTALLED,
        dialect=Dialect("0.32.0", None, None),
        fixed_flags=fixed,
        server_env=env,
        served_name=NASTY,
        uses_gpus=True,
    )
    resources = found.config.resources.model_copy(update={"gpus": None})
    config = found.config.model_copy(
        update={"resources": resources, "serve": ServeSection.model_validate({"flags": fixed})}
    )
    return dataclasses.replace(found, redactor=Redactor(env), config=config)
