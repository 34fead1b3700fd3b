"""The plan against the installed load client itself: its readers, its seeds and its arrival process."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sweep.vllm_cpu import installed
from sweep.workload import (
    DEMO_FILE,
    ClientFeatures,
    Conversations,
    Exchange,
    Round,
    SelectionRules,
    check_sharegpt,
    plan_load,
    select,
    write_round,
)

ROOT = Path(__file__).parents[1]

# Runs the client's own main up to the load, and its own arrival process on a clock that only its sleeps move.
CLIENT = """
import asyncio, json, sys, types
from sweep import vllm_cpu
vllm_cpu.adapt()
from vllm.benchmarks import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser

class Clock:
    now = 0.0
    async def sleep(self, seconds):
        self.now += seconds

async def load(*, input_requests, request_rate, burstiness, **_):
    clock = Clock()
    serve.time = types.SimpleNamespace(time=lambda: clock.now)
    serve.asyncio = types.SimpleNamespace(sleep=clock.sleep)
    found.append([
        (request.prompt, request.prompt_len, request.expected_output_len, clock.now)
        async for request, _ in serve.get_request(input_requests, request_rate, burstiness)
    ])
    raise KeyboardInterrupt

serve.benchmark = load
answers = []
for argv in json.load(sys.stdin):
    found = []
    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    try:
        asyncio.run(serve.main_async(parser.parse_args(argv)))
    except KeyboardInterrupt:
        pass
    answers.append(found[0])
json.dump(answers, open(sys.argv[1], "w"))
"""

ODD = [
    'say "x"',
    "a\nb\tc\r\n d",
    "line\u2028sep",
    "emoji \U0001f600",
    "nul \x00 byte",
    "12345",
    " spaces ",
    "\\n é",
    "null",
]


def rounds(count: Callable[[str], int]) -> list[tuple[Round, ClientFeatures]]:
    demo = check_sharegpt(DEMO_FILE)
    own = tuple(Exchange(row, text, output_tokens=row + 1) for row, text in enumerate(ODD))
    custom = Conversations(DEMO_FILE, "", len(own), own)
    long = SelectionRules(max_prompt_tokens=3000)

    def one(found: Conversations, rules: SelectionRules, prompts: int, rate: float | None, burstiness: float) -> Round:
        chosen = select(found, rules, count, needed=prompts, seed=5)
        load = plan_load(
            chosen, warmup_prompts=0, num_prompts=prompts, request_rate=rate, burstiness=burstiness, seed=11
        )
        return load.rounds[0]

    shuffled = ClientFeatures(disable_shuffle=False)
    return [
        (one(demo, SelectionRules(), 60, 8.0, 1.0), ClientFeatures()),
        (one(demo, SelectionRules(output_tokens=1024), 60, 3.7, 0.3), shuffled),
        (one(demo, long, 40, None, 1.0), ClientFeatures()),
        (one(custom, SelectionRules("custom", None, None), len(ODD), 100.0, float("inf")), ClientFeatures()),
    ]


COUNT = """
import sys
from pathlib import Path
from sweep.vllm_cpu import hide_broken_torchvision
hide_broken_torchvision()
from transformers import AutoTokenizer
from sweep.errors import HostError
from sweep.workload import DEMO_FILE, check_sharegpt, token_counter
count, plain = token_counter(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1])
texts = [exchange.prompt for exchange in check_sharegpt(DEMO_FILE).exchanges]
assert all(count(text) == len(plain(text).input_ids) for text in texts)
assert max(map(count, texts)) > 1024
try:
    token_counter(sys.argv[1] + "/absent")
except HostError as error:
    assert "cannot be loaded" in str(error) and len(str(error).splitlines()) == 1
else:
    raise SystemExit("an absent tokenizer was accepted")
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if installed() is None:
        pytest.skip("vLLM is not installed")
    out = tmp_path_factory.mktemp("model") / "toy"
    runpy.run_path(str(ROOT / "scripts" / "build_toy_model.py"))["build"](out)
    return out


def run(code: str, argument: Path, stdin: str = "") -> None:
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    words = [sys.executable, "-c", code, str(argument)]
    done = subprocess.run(
        words, input=stdin, env=os.environ | quiet, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.vllm
def test_tokens_are_counted_by_the_models_tokenizer(toy: Path) -> None:
    run(COUNT, toy)


@pytest.mark.vllm
def test_the_client_sends_what_was_planned_when_it_was_planned(toy: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(toy / "tokenizer.json"))
    planned = rounds(lambda text: len(tokenizer.encode(text).ids))
    common = ["--backend", "openai-chat", "--model", "toy", "--tokenizer", str(toy)]
    jobs = [
        [*common, *write_round(one, tmp_path, name=f"r{number}", client=client).argv]
        for number, (one, client) in enumerate(planned)
    ]
    run(CLIENT, tmp_path / "sent.json", json.dumps(jobs))
    for (one, _), sent in zip(planned, json.loads((tmp_path / "sent.json").read_text()), strict=True):
        assert [prompt for prompt, *_ in sent] == [prompt.text for prompt in one.prompts]
        assert [length for _, length, *_ in sent] == [prompt.input_tokens for prompt in one.prompts]
        assert [length for *_, length, _ in sent] == [prompt.output_tokens for prompt in one.prompts]
        assert [at - one.lead_s for *_, at in sent] == pytest.approx(list(one.arrivals_s), abs=1e-9)
