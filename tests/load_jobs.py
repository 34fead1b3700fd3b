"""Rounds and jobs of the load client for the tests of `loadgen`."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

from sweep.flags import parse_help
from sweep.loadgen import LoadJob
from sweep.workload import ClientFile, Prompt, Round, arrival_times

DATA = Path(__file__).with_name("data")
FAKE = (sys.executable, str(Path(__file__).with_name("fake_vllm.py")))
NEW = parse_help((DATA / "help_bench_0.32.txt").read_text())
# What matters of 0.10.1: another name for the backend, no warm-up, and a test request that cannot be switched off.
OLD = parse_help(
    """usage: vllm bench serve [options]

options:
  --endpoint-type {tgi,vllm,openai,openai-chat,openai-audio}
  --base-url BASE_URL
  --endpoint ENDPOINT
  --model MODEL
  --served-model-name SERVED_MODEL_NAME
  --tokenizer TOKENIZER
  --num-prompts NUM_PROMPTS
  --save-result
"""
)


def prompt(index: int, tokens: int, output: int) -> Prompt:
    # Four characters are one token of the fake's; no two prompts are alike.
    return Prompt(f"prompt-{index}", f"{index:04d}" + " abc" * (tokens - 1), tokens, output, reply="ok, done.")


def a_round(
    count: int = 6, *, rate: float | None = None, seed: int = 3, output: int = 8, tokens: list[int] | None = None
) -> Round:
    times = arrival_times(count, request_rate=rate, burstiness=1.0, seed=seed)
    lengths = tokens or [10 + 7 * (index * 5 % count) for index in range(count)]
    return Round(
        prompts=tuple(prompt(index, lengths[index], output) for index in range(count)),
        arrivals_s=tuple(time - times[0] for time in times),
        lead_s=times[0],
        seed=seed,
        request_rate=rate,
        burstiness=1.0,
        output_tokens=output,
        client_format="sharegpt",
    )


def a_job(folder: Path, plan: Round | None = None, **changes: Any) -> LoadJob:
    plan = plan or a_round()
    job = LoadJob(
        command=(*FAKE, "bench", "serve"),
        help=NEW,
        base_url="http://127.0.0.1:9",
        model="/models/toy",
        served_name="served",
        tokenizer="/models/tokens",
        number=0,
        plan=plan,
        file=ClientFile(folder / "round-0.json", ("--num-prompts", str(len(plan.prompts)))),
        env={**os.environ, "OPENAI_API_KEY": "secret-of-this-trial"},
        folder=folder,
        name="round-0",
        log_path=folder / "client.log",
        record_path=folder / "records" / "client.json",
        max_concurrency=None,
        ignore_eos=True,
        percentiles=(50.0, 95.0, 99.0),
        request_timeout_s=30.0,
        min_success_share=0.99,
    )
    return dataclasses.replace(job, **changes)
